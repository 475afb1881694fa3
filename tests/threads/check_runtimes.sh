#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs runtime.c as compiled for each OpenMP runtime, without any setting of theirs, and compares what
# they print. A program that is killed or fails counts as failed.
#
#     check_runtimes.sh NAME PROGRAM [NAME PROGRAM]...
#
# NAME: the runtime's library, libgomp or libomp, which the program must have loaded. Prints TAP.
set -u

mapfile -t settings < <(env | sed -n 's/^\(\(OMP\|GOMP\|KMP\)_[A-Z_]*\)=.*/\1/p')
for setting in "${settings[@]}"; do
    unset "$setting"
done

tests=0 failed=0 first=
# check NAME COMMAND...
check() {
    local name=$1
    shift
    tests=$((tests + 1))
    if "$@"; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        failed=$((failed + 1))
    fi
}

while [ $# -ge 2 ]; do
    runtime=$1 program=$2
    shift 2
    check "$runtime: the program has it" grep -q "/$runtime\.so" <(ldd "$program")
    result=$("$program")
    check "$runtime: regions around calls" test $? -eq 0 -a -n "$result"
    check "$runtime: the results of all" test "$result" = "${first:=$result}"
done

echo "1..$tests"
[ "$failed" -eq 0 ]
