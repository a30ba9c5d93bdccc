#!/bin/sh
# abort_test.sh COMMAND...: the command must print the message and end with exit code 3 in time.
output=$(timeout 300 "$@" 2>&1)
code=$?
echo "$output"
if [ "$code" -ne 3 ]; then
  echo "exit code $code, expected 3 (124: ranks were left waiting)"
  exit 1
fi
echo "$output" | grep -q "the last rank has had enough"
