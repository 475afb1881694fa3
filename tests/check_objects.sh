#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads the objects of an x86-64 build: only those of files named after a level of instructions may hold
# its instructions, or a machine without them would stop anywhere. Prints TAP, a line for each object;
# exits 1 if a check failed.
#
#     check_objects.sh OBJDUMP FOLDER
#
# FOLDER: where the objects are, BUILD/src.
set -u

objdump=$1 folder=$2
code=$(mktemp)
trap 'rm -f "$code"' EXIT

# What an object may not hold, as Perl regular expressions over the disassembly. All instructions of
# AVX and later are in the VEX and EVEX encodings: their names begin with v, or they are those of
# general registers that are listed, or they use mask registers.
evex='%zmm|%k[0-7]|%[xy]mm(1[6-9]|[23][0-9])'
vex="$evex|%ymm|\tv[a-z]|\t(andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx)[lq]?\s"

bf16='\t(vdpbf16ps|vcvtne2?ps2bf16)\s'
amx='\t(t(dp[a-z0-9]+|ile[a-z0-9]+)|ldtilecfg|sttilecfg)\b'

# part of a file's name, what must not be there, what must. The first that fits counts.
levels=(
    "_amx          (?!)          $amx"
    "_avx512bf16   $amx          $bf16"
    "_avx512       ($bf16|$amx)  \tv[a-z0-9]+\s.*%zmm"
    "_avx2   $evex           \tv[a-z0-9]+\s.*%ymm"
    ".       $vex            \tret"
)

passed=0 failed=0
report() {
    if [ "$1" -eq 0 ]; then
        echo "ok - $2"
        passed=$((passed + 1))
    else
        echo "not ok - $2"
        failed=$((failed + 1))
    fi
}

# has PATTERN: does the disassembly?
has() {
    grep -qP "$1" "$code"
}

# Shows the first instructions that break the rule, each with its function.
show() {
    awk '/^[0-9a-f]+ <.*>:$/ { name = $2 } /^ / { print name $0 }' "$code" | grep -P "$1" |
        head -n 3 | sed 's/^/# /'
}

check_object() {
    local object=$1 line part banned wanted
    "$objdump" -d --no-show-raw-insn "$object" > "$code" || return
    for line in "${levels[@]}"; do
        read -r part banned wanted <<< "$line"
        [[ ${object##*/} == *"$part"* ]] && break
    done
    if has "$banned"; then
        show "$banned"
        return 1
    fi
    # A file of constants has no code.
    has "$wanted" || { [ "$part" = . ] && ! has '^ '; }
}

mapfile -t objects < <(find "$folder" -name '*.o' | sort)
for object in "${objects[@]}"; do
    check_object "$object"
    report $? "${object#"$folder"/}"
done

# The kernels, what chooses them, and what calls them.
for name in kernel_generic kernel_avx2 kernel_avx512 cpu_kernels common_call; do
    printf '%s\n' "${objects[@]}" | grep -q "/$name\.c\.o$"
    report $? "$name was read"
done
echo "1..$((passed + failed))"
[ "$failed" -eq 0 ]
