#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles every C block of the documents, and runs those that are programs.
#
#     check_snippets.sh DOCUMENTS LIBRARY HEADERS CC [CFLAG...]
#
# DOCUMENTS: the source tree, of which README.md and doc/*.md are read. LIBRARY: the libfwa.so to link.
# HEADERS: the folder that holds fwa/fwa.h. A ```c block with a main must compile without warnings,
# link, and exit with 0; where a ```text block follows it directly, it must print just that. A block
# without a main is functions and types: it must compile, after fwa.h and the usual headers.
set -eu

documents=$1 library=$2 headers=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One file per block: NAME.c, and NAME.expected where a text block follows.
for document in "$documents/README.md" "$documents"/doc/*.md; do
    awk -v stem="$work/$(basename "$document" .md)" '
        /^```c$/ { file = sprintf("%s-%d.c", stem, NR); last = file; printf "" > file; next }
        /^```text$/ && last { file = last; sub(/c$/, "expected", file); printf "" > file; last = ""; next }
        /^```/ { if (file) { close(file); file = "" } else { last = "" } next }
        file { print > file; next }
        NF { last = "" }
    ' "$document"
done

programs=0 fragments=0 wrong=0
fail() {
    echo "$name: $1" >&2
    wrong=$((wrong + 1))
}

for source in "$work"/*.c; do
    name=$(basename "$source" .c)
    if grep -q 'main(' "$source"; then
        programs=$((programs + 1))
        if ! "$@" -std=c11 -Wall -Wextra -Werror -I"$headers" "$source" -o "$work/program" \
            "$library" -Wl,-rpath,"$(dirname "$library")" -lm -pthread; then
            fail "does not compile"
        elif ! "$work/program" > "$work/output"; then
            fail "exits with an error"
        elif [ -f "$work/$name.expected" ] && ! diff -u "$work/$name.expected" "$work/output"; then
            fail "prints something else"
        fi
    else
        fragments=$((fragments + 1))
        { printf '#include <%s>\n' fwa/fwa.h math.h stdio.h stdlib.h string.h; cat "$source"; } \
            > "$work/fragment.c"
        "$@" -std=c11 -Wall -Wextra -Werror -Wno-unused-function -I"$headers" \
            -c "$work/fragment.c" -o "$work/fragment.o" || fail "does not compile"
    fi
done

echo "$programs programs, $fragments fragments, $wrong wrong"
# A change of the documents' form must not leave nothing to check.
[ "$programs" -ge 6 ] && [ "$wrong" -eq 0 ]
