#!/bin/sh
# install_test.sh CMAKE BUILD MPIRUN...: installs the build, builds program/ against the installed files alone, and
# trains with one and two ranks, which must come to the same.
set -e
cmake=$1
build=$2
shift 2
source=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/installed" >"$work/log" || { cat "$work/log"; exit 1; }
"$work/installed/bin/ddptrain" --version
"$work/installed/bin/ddpplan" --help >/dev/null
cp -r "$source/program" "$work/program"
"$cmake" -S "$work/program" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_BUILD_TYPE=Release
"$cmake" --build "$work/build"
for ranks in 1 2; do
  "$@" -np $ranks "$work/build/points" | tee "$work/$ranks"
done
grep -q '^accuracy' "$work/2"
[ "$(grep ^accuracy "$work/1")" = "$(grep ^accuracy "$work/2")" ] || { echo "one and two ranks differ"; exit 1; }
