#!/usr/bin/env bash
# launch/fetch-data against file:// addresses: good files, a damaged one, none. Exit code 77: skipped.
set -euo pipefail
fetch=$1/launch/fetch-data
package=/usr/share/datasets/fashion-mnist
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

[[ -d $package ]] || { echo "skipped: the package dataset-fashion-mnist is not installed" && exit 77; }
command -v curl >/dev/null || { echo "skipped: wget knows no file:// addresses, and there is no curl" && exit 77; }

# expect CODE PATTERN COMMAND...: exit code and output of the command
expect() {
  local code=$1 pattern=$2 status=0 output
  shift 2
  output=$("$@" 2>&1) || status=$?
  if [[ $status != "$code" || $output != *"$pattern"* ]]; then
    printf 'expected exit code %s and "%s"; got %s and:\n%s\n' "$code" "$pattern" "$status" "$output"
    exit 1
  fi
}
holds() { [[ $(find "$1" -mindepth 1 | wc -l) == "$2" ]] || { find "$1" && exit 1; }; }

expect 0 "is in $temp/good" env DDPTRAIN_DATA_URL="file://$package" "$fetch" fashion-mnist "$temp/good"
holds "$temp/good" 4
# What is there and good is not fetched again; what is damaged is.
echo damaged >"$temp/good/t10k-labels-idx1-ubyte.gz"
expect 2 "t10k-labels-idx1-ubyte.gz could not be downloaded" \
  env DDPTRAIN_DATA_URL="file://$temp/nothing" "$fetch" fashion-mnist "$temp/good"
expect 0 "t10k-labels" env DDPTRAIN_DATA_URL="file://$package" "$fetch" fashion-mnist "$temp/good"
expect 0 "is in" env DDPTRAIN_DATA_URL="file://$temp/nothing" "$fetch" fashion-mnist "$temp/good"

mkdir "$temp/foreign"
echo foreign | gzip >"$temp/foreign/train-images-idx3-ubyte.gz"
expect 2 "checksum" env DDPTRAIN_DATA_URL="file://$temp/foreign" "$fetch" fashion-mnist "$temp/none"
holds "$temp/none" 0
expect 2 "dataset-fashion-mnist" env DDPTRAIN_DATA_URL=http://127.0.0.1:9 "$fetch" fashion-mnist "$temp/none"
expect 2 "usage" "$fetch" cifar
expect 2 "usage" "$fetch" fashion-mnist "$temp/none" 2
expect 2 "shards" "$fetch" fineweb "$temp/none" many

# A text is checked by its hash; a file of tokens by its header and its size.
mkdir "$temp/shards"
echo foreign >"$temp/foreign/input.txt"
expect 2 "checksum" env DDPTRAIN_DATA_URL="file://$temp/foreign" "$fetch" tinyshakespeare "$temp/none"
holds "$temp/none" 0
# tokens COUNT MAGIC: a header and COUNT tokens (one digit) of two bytes
tokens() {
  printf "$2\\001\\000\\000\\000\\00$1\\000\\000\\000"
  head -c $((1012 + 2 * $1)) /dev/zero
}
magic='\210\330\064\001'
tokens 5 "$magic" >"$temp/shards/fineweb_val_000000.bin"
tokens 7 "$magic" >"$temp/shards/fineweb_train_000001.bin"
tokens 7 "$magic" | head -c 1030 >"$temp/shards/fineweb_train_000002.bin"
tokens 7 '\000\000\000\000' >"$temp/shards/fineweb_train_000003.bin"
expect 0 "fineweb is in" env DDPTRAIN_DATA_URL="file://$temp/shards" "$fetch" fineweb "$temp/tokens"
holds "$temp/tokens" 2
expect 2 "000002.bin: the file is damaged" env DDPTRAIN_DATA_URL="file://$temp/shards" "$fetch" fineweb "$temp/tokens" 3
tokens 7 "$magic" >"$temp/shards/fineweb_train_000002.bin"
expect 2 "000003.bin: the file is damaged" env DDPTRAIN_DATA_URL="file://$temp/shards" "$fetch" fineweb "$temp/tokens" 3
holds "$temp/tokens" 3
