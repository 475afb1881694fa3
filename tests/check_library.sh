#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds the headers and the shared library to what strangers rely on: each header compiles alone as C11
# and C++17, the library exports fwa_* and nothing else, and resolves all that it needs.
#
#     check_library.sh LIBRARY HEADERS CC CXX [HEADER...]
#
# LIBRARY: libfwa.so. HEADERS: the folder that holds fwa/fwa.h. HEADER: the headers to compile,
# by default all three. Prints TAP and, last, the sum: N passed, N failed. Exits 1 if a check failed.
set -u

library=$(realpath "$1") headers=$(realpath "$2") cc=$3 cxx=$4
shift 4
[ $# -eq 0 ] && set -- fwa/fwa.h fwa/backend.h fwa/dlpack.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# check NAME COMMAND...
check() {
    local name=$1
    shift
    if "$@" > "$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok - $name"
    else
        failed=$((failed + 1))
        echo "not ok - $name"
        sed 's/^/# /' "$work/log"
    fi
}

# ---- Headers ----

warnings='-Wall -Wextra -Werror -pedantic -Wshadow -Wconversion -Wno-sign-conversion -Wundef'

# compiles HEADER LANGUAGE STANDARD COMPILER: alone, first, and twice.
compiles() {
    local source=$work/alone.$2
    printf '#include <%s>\n#include <%s>\nint used(void);\nint used(void) { return 0; }\n' "$1" "$1" \
        > "$source"
    # shellcheck disable=SC2086
    $4 -std="$3" $warnings -I"$headers" -fsyntax-only "$source"
}

for header in "$@"; do
    # shellcheck disable=SC2086
    check "$header compiles alone as C11" compiles "$header" c c11 "$cc -Wstrict-prototypes -Wold-style-definition"
    check "$header compiles alone as C++17" compiles "$header" cc c++17 "$cxx"
done

# The INIT macros and inline functions, used from both languages.
cat > "$work/use.c" <<'SOURCE'
#include <fwa/backend.h>
int main(void)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_backend_info info = FWA_BACKEND_INFO_INIT;
    fwa_problem problem = FWA_PROBLEM_INIT;
    fwa_forward_args forward = FWA_FORWARD_ARGS_INIT;
    fwa_backward_args backward = FWA_BACKWARD_ARGS_INIT;
    fwa_tensor tensor = fwa_tensor_contiguous(NULL, FWA_DTYPE_F32, 2, 3, 4);
    return !(options.struct_size == sizeof options && info.struct_size == sizeof info &&
             problem.struct_size == sizeof problem && problem.window == 1 && problem.scale == 1.0 &&
             problem.eps == 1e-6 && problem.decay_floor == 1e-6 && problem.norm_eps == 1e-6 &&
             problem.heads_key == 1 && problem.dtype == FWA_DTYPE_F32 && problem.state_dtype == 0 &&
             problem.eps_attn == 0.0 && problem.form == 0 && problem.key_dim == 0 &&
             forward.struct_size == sizeof forward && backward.struct_size == sizeof backward &&
             tensor.stride[0] == 4 && fwa_version() >= 1000);
}
SOURCE
cp "$work/use.c" "$work/use.cc"
# uses LANGUAGE STANDARD COMPILER
uses() {
    # shellcheck disable=SC2086
    $3 -std="$2" $warnings -I"$headers" "$work/use.$1" "$library" -Wl,-rpath,"$(dirname "$library")" \
        -o "$work/use" && "$work/use"
}
check 'INIT macros from C' uses c c11 "$cc"
check 'INIT macros from C++' uses cc c++17 "$cxx"

# Every function that the header declares is exported, and the other way round.
grep -oE '\bfwa_[a-z_0-9]+\(' <(sed -n '/^FWA_API/,/;/p' "$headers/fwa/fwa.h") | tr -d '(' | sort -u \
    > "$work/declared"
nm -D --defined-only "$library" | awk '{ print $3 }' | sort -u > "$work/exported"
check 'exports what fwa.h declares and no more' diff "$work/declared" "$work/exported"
check 'declares functions' test "$(wc -l < "$work/declared")" -ge 20
check 'exports fwa_* only' test -z "$(grep -v '^fwa_' "$work/exported")"

# ---- The shared object ----

dynamic() {
    readelf -d "$library" | sed -n "s/.*($1).*\[\(.*\)\]/\1/p"
}
check 'SONAME' test "$(dynamic SONAME)" = libfwa.so.0
# Meson lets a library that is not installed yet find the OpenMP runtime of its compiler, which may
# be outside of the system's folders. (The installed one has no path at all: tests/install.)
search_path() {
    dynamic RPATH
    dynamic RUNPATH | tr ':' '\n' | while read -r folder; do
        compgen -G "$folder/lib*omp.so*" > /dev/null || echo "$folder"
    done
}
check 'no search path' test -z "$(search_path)"
check 'no text relocations' sh -c "! readelf -d '$library' | grep -q TEXTREL"
check 'no executable stack' sh -c "readelf -lW '$library' | grep GNU_STACK | grep -q 'RW '"

# undefined: symbols that nothing resolves.
undefined() {
    ldd -r "$library" 2>&1 | grep -E 'undefined|not found'
}
check 'nothing undefined' test -z "$(undefined)"

# What it may need: the C library's parts, the OpenMP runtime, and the compiler's support library.
others() {
    dynamic NEEDED | grep -vE '^(libc|libm|libdl|libpthread|libgomp|libomp|libgcc_s|ld-linux.*)\.so'
}
check 'needs the C library and OpenMP only' test -z "$(others)"

# The library leaves the process alone: no printing, no ending, no handlers.
forbidden='^(printf|puts|putchar|perror|fprintf|vfprintf|abort|exit|_exit|signal|sigaction|atexit|__assert_fail|pthread_atfork|__register_atfork|setenv|putenv|system|fork|strtok|rand|srand|setlocale)$'
used() {
    nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $2); print $2 }' | grep -E "$forbidden"
}
check 'neither prints nor aborts nor installs handlers' test -z "$(used)"

# ---- The program in the header's comment ----

sed -n '/^ \* A complete program/,/^ \* Shapes/s/^ \*     //p' "$headers/fwa/fwa.h" > "$work/first.c"
first() {
    $cc -std=c11 -Wall -Wextra -Werror -I"$headers" "$work/first.c" "$library" \
        -Wl,-rpath,"$(dirname "$library")" -o "$work/first" && "$work/first" > "$work/first.out"
}
check 'the program in fwa.h compiles and runs' first

# falcon1 by hand: token t writes (k_{t-1}, v_t) with step 1/(1 + 1e-6), the first none. q reads 0; the
# row of k_2, still empty; v_2 where k_1 stands; v_3 where k_2 does.
numbers() {
    paste -d ' ' "$work/first.out" <(printf '0 0\n0 0\n3 4\n5 6\n') | awk '
        { a = $1 - $3; b = $2 - $4; if (NF != 4 || a * a > 1e-8 || b * b > 1e-8) wrong = 1 }
        END { exit wrong || NR != 4 }' || { cat "$work/first.out"; false; }
}
check 'and prints the right numbers' numbers

echo "1..$((passed + failed))"
echo "# $passed passed, $failed failed"
[ "$failed" -eq 0 ]
