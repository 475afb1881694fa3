#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where the library looks for modules: beside itself, but not where anybody may put them, nor by a
# relative name. Prints TAP; exits 1 if a check failed.
#
#     check_modules.sh TOOL LIBRARY MODULE
#
# TOOL: fwa. LIBRARY: libfwa.so. MODULE: a backend module, fwa-zeros.so.
set -u

tool=$(realpath "$1") library=$(realpath "$2") module=$(realpath "$3")
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
umask 022
unset FWA_BACKEND_PATH
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

# A copy of the library, moved, with a module in the place beside it.
beside=$work/moved/lib/fwa/backends2
mkdir -p "$beside" "$work/link" "$work/elsewhere"
cp "$library" "$work/moved/lib/libfwa.so.0"
cp "$module" "$beside/fwa-zeros.so"
cp "$module" "$work/elsewhere/fwa-zeros.so"
ln -s ../moved/lib/libfwa.so.0 "$work/link/libfwa.so.0"

# info LIBRARY [VARIABLE=VALUE...]: fwa info with that library. The preloaded one is the only one there
# is, since it has the name that the program needs.
info() {
    local preloaded=$1
    shift
    (cd "$work/moved/lib" && env "$@" LD_PRELOAD="$preloaded" "$tool" info | tee /dev/stderr)
}

# finds DIRECTORY LIBRARY...: is the module of that directory the one that is found?
finds() {
    local directory=$1
    shift
    info "$@" | grep -qxF "  zeros: present, $directory/fwa-zeros.so"
}

finds_nothing() {
    ! info "$@" | grep -q '^  zeros:'
}

# finds_nothing_if_open DIRECTORY: where everybody may write to it.
finds_nothing_if_open() {
    chmod o+w "$1"
    finds_nothing "$work/moved/lib/libfwa.so.0"
    local status=$?
    chmod o-w "$1"
    return "$status"
}

check 'beside the library' finds "$beside" "$work/moved/lib/libfwa.so.0"
check 'beside its file, not beside a link to it' finds "$beside" "$work/link/libfwa.so.0"
check 'FWA_BACKEND_PATH comes first' finds "$work/elsewhere" "$work/moved/lib/libfwa.so.0" \
    FWA_BACKEND_PATH="$work/elsewhere"
check 'not by a relative name of the library' finds_nothing ./libfwa.so.0
check 'not where everybody may write' finds_nothing_if_open "$beside"
check 'nor to the directory above' finds_nothing_if_open "${beside%/*}"
check 'nor to that of the library' finds_nothing_if_open "$work/moved/lib"
rm -r "${beside%/*}"
check 'else in the installed directory' finds_nothing "$work/moved/lib/libfwa.so.0"

echo "1..$checks"
[ "$failures" -eq 0 ]
