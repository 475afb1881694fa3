# SPDX-License-Identifier: Apache-2.0
# For scripts that hold a GPU backend's module to what strangers rely on, and the command to what it says
# about it. They set `tool`, `module` and `work`, an empty folder, source this and end with finish_checks.
# shellcheck shell=bash disable=SC2154

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

# The vendor's library is loaded by name at run time, or not at all.
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
check "needs no library of the vendor's" needed
check 'no run path' sh -c "! readelf -d '$module' | grep -E 'RPATH|RUNPATH'"
check 'no text relocations' sh -c "! readelf -d '$module' | grep -q TEXTREL"
check 'no executable stack' sh -c "readelf -lW '$module' | grep GNU_STACK | grep -q 'RW '"

# Prints the plan; fails if a check did.
finish_checks() {
    echo "1..$checks"
    [ "$failures" -eq 0 ]
}
