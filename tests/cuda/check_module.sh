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

# shellcheck disable=SC2034 # module: of module_checks.sh
tool=$(realpath "$1") module=$(realpath "$2") driver=$(dirname "$(realpath "$3")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset FWA_BACKEND_PATH LD_LIBRARY_PATH
# shellcheck disable=SC1091 # is checked by itself
. "$(dirname "$0")/../gpu/module_checks.sh"

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

finish_checks
