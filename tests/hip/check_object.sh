#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads the kernels for one architecture as they were compiled and holds them to what must be so on every
# device. Prints TAP; exits 1 if a check failed.
#
#     check_object.sh READELF OBJDUMP OBJECT
#
# READELF, OBJDUMP: LLVM's. OBJECT: the code object, kernels_TARGET.co.
set -u

readelf=$1 objdump=$2 object=$3
target=$(basename "$object" .co)
target=${target#kernels_}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0 failures=0

# check NAME COMMAND...
check() {
    local name=$1 verdict=ok
    shift
    checks=$((checks + 1))
    "$@" > "$work/log" 2>&1 || { verdict='not ok' failures=$((failures + 1)); }
    echo "$verdict $checks - $target: $name"
    [ "$verdict" = ok ] || head -n 40 "$work/log" | sed 's/^/# /'
}

# What gfx9 has is different from what all later ones have; matrix instructions for bf16 are not everywhere.
case $target in
    gfx90a | gfx94? | gfx950) wave=64 matrix='v_mfma_f32_16x16x16_?bf16' ;;
    gfx9*) wave=64 matrix= ;;
    gfx11* | gfx12*) wave=32 matrix=v_wmma_f32_16x16x16_bf16 ;;
    *) wave=32 matrix= ;;
esac

if [ "$wave" = 64 ]; then
    may_spill='chunk_forward_(head|channel)_._256|chunk_forward_channel_._128|recurrent_backward_256'
else
    may_spill='chunk_(forward|backward)_pass_._(128|256)|chunk_forward_pass_1_64|chunk_gradients_._(64|128|256)'
    may_spill+='|chunk_forward_(head|channel)_._(64|128|256)|recurrent_(backward_128|[a-z_]*_256)'
fi

if ! "$readelf" --notes "$object" > "$work/notes" ||
    ! "$objdump" -d --no-show-raw-insn "$object" > "$work/code"; then
    echo "not ok 1 - $target: $object can be read"
    echo 1..1
    exit 1
fi

# A line for each kernel: its name, then `key=value`.
awk '
    function flush() { if (name) print name, line; name = line = "" }
    /^ *- \.(agpr_count|args):/ { flush() }
    /\.symbol:/ { name = $NF; sub(/\.kd$/, "", name) }
    /\.(vgpr|sgpr|vgpr_spill)_count:/ || /\.(private|group)_segment_fixed_size:/ ||
    /\.(wavefront_size|max_flat_workgroup_size|uses_dynamic_stack):/ {
        sub(/^[ -]*\./, ""); sub(/: */, "="); line = line " " $0
    }
    END { flush() }' "$work/notes" | sort > "$work/kernels"

# Instructions with their kernels: "name instruction".
awk '/^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); next } NF && name { print name, $1 }' \
    "$work/code" | sort | uniq -c | awk '{ print $2, $3, $1 }' > "$work/instructions"

# none WHAT PATTERN: no kernel's line has it.
none() {
    ! grep -E "$1" "$work/kernels"
}

# lacks PATTERN: no instruction is called so.
lacks() {
    ! awk -v pattern="^($1)\$" '$2 ~ pattern' "$work/instructions" | grep .
}

complete() {
    [ "$(wc -l < "$work/kernels")" -ge 60 ]
}

all_have_wave() {
    ! grep -v "wavefront_size=$wave\b" "$work/kernels"
}

# Registers of a lane that go to its own memory and back. (Those of a wave are kept in lanes of others.) What
# does so today is listed: no kernel may join.
spilling() {
    awk '!/ vgpr_spill_count=0( |$)/ || !/ private_segment_fixed_size=0( |$)/ { print $1 }' "$work/kernels"
}

no_spills() {
    ! spilling | grep -vxE "$may_spill" | grep -wFf - "$work/kernels"
}

# Each hot kernel multiplies by matrix instructions; there are none of another type.
has_matrix() {
    local kernel status=0
    while read -r kernel; do
        grep -qE "^$kernel $matrix" "$work/instructions" || {
            echo "$kernel has none"
            status=1
        }
    done < <(awk '$1 ~ /^chunk_(prepare|forward|backward|gradients)/ { print $1 }' "$work/kernels")
    return $status
}

check 'all kernels are there' complete
check "waves of $wave" all_have_wave
check 'no registers are spilled, but in kernels that are known for it' no_spills
check 'no stack of unknown size' none 'uses_dynamic_stack=true'
check 'no shared memory but what a launch asks for' none 'group_segment_fixed_size=[1-9]'
check 'no doubles' lacks 'v_.*_f64.*|s_.*_f64.*'
check 'no atomics' lacks '(global|flat|buffer)_atomic_.*|ds_(add|sub|min|max|cmpst|cmpswap|pk_add)_.*'
check 'memory is known to be global or shared' lacks 'flat_.*'
[ -z "$matrix" ] || check 'matrix instructions in all kernels of chunks' has_matrix

echo "1..$checks"
[ "$failures" -eq 0 ]
