#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds the HIP module to what strangers rely on, and the command to what it says about it. Prints TAP;
# exits 1 if a check failed.
#
#     check_module.sh TOOL MODULE RUNTIME TARGET
#
# TOOL: fwa in its build folder, which has to find the module by itself. MODULE: fwa-hip.so. RUNTIME: the
# tests' libamdhip64.so.6. TARGET: an architecture that the module has an image for.
set -u

# shellcheck disable=SC2034 # module: of module_checks.sh
tool=$(realpath "$1") module=$(realpath "$2") runtime=$(realpath "$(dirname "$3")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset FWA_BACKEND_PATH LD_LIBRARY_PATH
# shellcheck disable=SC1091 # is checked by itself
. "$(dirname "$0")/../gpu/module_checks.sh"

with="LD_LIBRARY_PATH=$runtime"
check 'a device' says "    device 0: Fake A, $4; threads: [0-9]+" "$with" "FAKE_HIP_DEVICES=$4"
check 'found in the build folder' says "  hip: present, ${tool%/tool/fwa}/fwa/backends[0-9]+/fwa-hip.so" \
    "$with" "FAKE_HIP_DEVICES=$4"
check 'no device' says '  hip: absent: no device' "$with" FAKE_HIP_DEVICES=
check 'a device without an image' \
    says '  hip: absent: device 0 \(Fake A, gfx803\) has no kernel image in this module \(.*\)' \
    "$with" FAKE_HIP_DEVICES=gfx803
check 'an old runtime' says '  hip: absent: HIP runtime 5\.2 is older than 6\.0 that these kernels need' \
    "$with" FAKE_HIP_VERSION=50221152

# What script/hip-objects writes: every file that a launch names is there, as long as it says.
traced() {
    local launch file size
    mkdir "$work/trace"
    env "$with" "FAKE_HIP_DEVICES=$4" "FAKE_HIP_TRACE=$work/trace" "$tool" check --backend hip \
        --filter '003/*' || return
    ls "$work/trace"
    for launch in "$work"/trace/*.json; do
        while read -r size file; do
            [ "$(stat -c %s "$work/trace/$file")" = "$size" ] || return
        done < <(jq -r '"\(.args_size) \(.args)", (.memory[] | "\(.size) \(.before)", "\(.size) \(.after)")' \
            "$launch")
        jq -e '.grid > 0 and .block > 0 and .shared <= 65536 and (.pointers | max) < .args_size
            and (.memory | length) > 0' "$launch" || return
    done
}
check 'launches written down' traced "$@"

# This machine, whatever it has.
if ldconfig -p 2>/dev/null | grep -q 'libamdhip64\.so'; then
    check 'this machine' says '  hip: .*'
else
    check 'this machine, which has no runtime' \
        says '  hip: absent: libamdhip64\.so\.7, \.6 and \.5: none is found by the loader'
fi

finish_checks
