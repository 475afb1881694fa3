#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the conformance cases with the CPU backend held to one level of instructions. Where the machine
# lacks the level, the tool must refuse. Prints TAP, a line for each case; exits 1 if a check failed.
#
#     check_isa.sh TOOL ISA [OPTION...]
#
# TOOL: the fwa command. ISA: generic, avx2, avx512, avx512bf16, amx or neon.
# OPTION: more for `fwa check`.
set -u

tool=$1 isa=$2
shift 2
case $isa in
    generic) needs=() ;;
    avx2) needs=(avx2 fma f16c) ;;
    avx512) needs=(avx512f avx512bw avx512dq avx512vl) ;;
    avx512bf16) # where it is fast: not on Intel's
        needs=(avx512f avx512bw avx512dq avx512vl avx512_bf16)
        if grep -qw GenuineIntel /proc/cpuinfo; then needs+=(refused); fi
        ;;
    amx) needs=(avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16) ;;
    neon) needs=(asimd) ;;
    *) echo "Bail out! no such level: $isa"; exit 1 ;;
esac
here=$(dirname "$0")

present=yes
for need in "${needs[@]}"; do
    grep -qw "$need" /proc/cpuinfo || present=no
done

export FWA_CPU_ISA=$isa
[ "$present" = no ] || exec "$here/check_cases.sh" "$tool" --backend cpu "$@"

output=$("$tool" check --backend cpu --verbose "$@" 2>&1)
status=$?
echo 1..1
if [ "$status" -eq 4 ] && grep -q "FWA_CPU_ISA is \"$isa\"" <<< "$output"; then
    echo "ok - refuses $isa on this machine"
    exit 0
fi
echo "not ok - refuses $isa on this machine"
exit 1
