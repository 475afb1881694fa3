#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds the CUDA module to what strangers rely on, and the command to what it says about it. Prints TAP;
# exits 1 if a check failed.
#
#     check_module.sh TOOL MODULE DRIVER
#
# TOOL: fwa in its build folder, which has to find the module by itself. MODULE: fwa-cuda.so. DRIVER: the
# tests' libcuda.so.1.
set -u

tool=$(realpath "$1") module=$(realpath "$2") driver=$(dirname "$(realpath "$3")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset FWA_BACKEND_PATH LD_LIBRARY_PATH
checks=0 failures=0

# check NAME COMMAND...
check() {
    local name=$1 verdict=ok
    shift
    checks=$((checks + 1))
    "$@" > "$work/log" 2>&1 || { verdict='not ok' failures=$((failures + 1)); }
    echo "$verdict $checks - $name"
    [ "$verdict" = ok ] || sed 's/^/# /' "$work/log"
}

exports() {
    diff <(printf '%s\n' fwa_module_abi fwa_module_backend) \
        <(nm -D --defined-only "$module" | awk '{ print $3 }' | sort)
}

# The driver is loaded by name at run time, or not at all.
needed() {
    ! readelf -d "$module" | grep NEEDED |
        grep -vE '\[(libc|libm|libdl|libpthread|libgcc_s|ld-linux.*)\.so'
}

# says LINE [VARIABLE=VALUE...]: does `fwa info` print the line, and nothing on the standard error?
says() {
    local line=$1
    shift
    env "$@" "$tool" info > "$work/info" 2> "$work/errors"
    cat "$work/info" "$work/errors"
    grep -qxE "$line" "$work/info" && [ ! -s "$work/errors" ]
}

check 'exports the two symbols and no more' exports
check 'needs no library of CUDA' needed
check 'no run path' sh -c "! readelf -d '$module' | grep -E 'RPATH|RUNPATH'"
check 'no text relocations' sh -c "! readelf -d '$module' | grep -q TEXTREL"
check 'no executable stack' sh -c "readelf -lW '$module' | grep GNU_STACK | grep -q 'RW '"

with="LD_LIBRARY_PATH=$driver"
check 'a device' says '    device 0: Fake 90A, sm_90; threads: [0-9]+' "$with"
check 'found in the build folder' says "  cuda: present, ${tool%/tool/fwa}/fwa/backends[0-9]+/fwa-cuda.so" \
    "$with"
check 'no device' says '  cuda: absent: no device' "$with" FAKE_CUDA_DEVICES=
check 'a device without an image' \
    says '  cuda: absent: device 0 \(Fake 35A, sm_35\) has no kernel image in this module \(.*\)' \
    "$with" FAKE_CUDA_DEVICES=35
check 'an old driver' says '  cuda: absent: driver 9\.2 is older than [0-9]+\.0 that these kernels need' \
    "$with" FAKE_CUDA_VERSION=9020

echo 'This is no shared object.' > "$work/libcuda.so.1"
check 'a broken driver' says '  cuda: absent: .*libcuda\.so\.1: .*' "LD_LIBRARY_PATH=$work"
# This machine, whatever it has.
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    check 'this machine' says '  cuda: .*'
else
    check 'this machine, which has no driver' \
        says '  cuda: absent: libcuda\.so\.1: cannot open shared object file: .*'
fi

echo "1..$checks"
[ "$failures" -eq 0 ]
