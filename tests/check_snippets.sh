#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles every C block of README.md and doc/*.md, and runs those that are programs.
#
#     check_snippets.sh SOURCE LIBRARY CC...
#
# SOURCE: the source tree. LIBRARY: the libfwa to link. A ```c block with a main must compile without
# warnings, exit with 0 and, where a ```text block follows it directly, print just that. A block without
# a main is functions and types: it must compile after fwa.h and the usual headers. The first program of
# README.md must be that of fwa.h and of examples/first.c. Prints TAP; exits 1 if a check failed.
set -u

source=$(realpath "$1") library=$(realpath "$2")
shift 2
compiler=("$@" -std=c11 -Wall -Wextra -Werror "-I$source/include")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0 failures=0 programs=0
dlpack=yes
echo '#include <dlpack/dlpack.h>' | "$@" -x c - -fsyntax-only 2> /dev/null || dlpack=no

# check NAME COMMAND...
check() {
    local name=$1 verdict=ok
    shift
    checks=$((checks + 1))
    "$@" > "$work/log" 2>&1 || { verdict='not ok' failures=$((failures + 1)); }
    echo "$verdict $checks - $name"
    [ "$verdict" = ok ] || sed 's/^/# /' "$work/log"
}

# program FILE: compiles, runs and compares what it prints with FILE.expected, if that exists.
program() {
    "${compiler[@]}" -x c "$1" -x none -o "$work/program" "$library" \
        "-Wl,-rpath,$(dirname "$library")" -fopenmp -lm -ldl -pthread || return
    "$work/program" > "$work/printed" || return
    [ ! -f "$1.expected" ] || diff -u "$1.expected" "$work/printed"
}

fragment() {
    { printf '#include <%s>\n' fwa/fwa.h math.h stdio.h stdlib.h string.h; cat "$1"; } |
        "${compiler[@]}" -Wno-unused-function -x c - -c -o "$work/fragment.o"
}

# A file per block, named after document and line; the text block behind it is FILE.expected.
for document in "$source/README.md" "$source"/doc/*.md; do
    awk -v stem="$work/block-$(basename "$document")" '
        /^```c$/ { file = sprintf("%s:%d", stem, NR); last = file; printf "" > file; next }
        /^```text$/ && last { file = last ".expected"; last = ""; printf "" > file; next }
        /^```/ { if (file) { close(file); file = "" } else last = ""; next }
        file { print > file; next }
        NF { last = "" }
    ' "$document"
done

for file in "$work"/block-*; do
    name=${file#"$work"/block-}
    case $name in
        *.expected) ;;
        *) if grep -q 'fwa/dlpack.h' "$file" && [ "$dlpack" = no ]; then
               checks=$((checks + 1))
               echo "ok $checks - $name # SKIP no dlpack/dlpack.h"
           elif grep -q 'main(' "$file"; then
               programs=$((programs + 1))
               check "$name, a program" program "$file"
           else
               check "$name, a fragment" fragment "$file"
           fi ;;
    esac
done

sed -n '/^#include/,$p' "$source/examples/first.c" > "$work/first"
sed -n '/^ \* A complete program/,/^ \* Shapes/s/^ \*     //p' "$source/include/fwa/fwa.h" > "$work/header"
awk '/^```c$/ { on = 1; next } /^```/ { if (on) exit } on' "$source/README.md" > "$work/readme"
check 'fwa.h has the first program' diff -u "$work/first" "$work/header"
check 'README.md has the first program' diff -u "$work/first" "$work/readme"
# A change of the documents' form must not leave nothing to check.
check 'the documents have programs' test "$programs" -ge 7

echo "1..$checks"
[ "$failures" -eq 0 ]
