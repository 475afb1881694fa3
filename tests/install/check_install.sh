#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build and uses the installation as a stranger would. Prints TAP; exits 1 if a check failed.
#
#     check_install.sh BUILD WORK [DESTDIR]
#
# BUILD: a compiled build folder. WORK: a folder for this test's programs; it is replaced. DESTDIR: where
# to stage the installation, as packagers do; without it, it goes to the prefix of the build. What is there is
# removed first, so it must be a folder beside the build, or below one.
set -u
export CMAKE_GENERATOR=Ninja # a bare machine has no make

build=$(realpath "$1") destdir=${3-}
source=$(realpath "$(dirname "$0")/../..")
rm -rf "$2" && mkdir -p "$2" && work=$(realpath "$2") || exit 1

option() {
    meson introspect "$build" --buildoptions | jq -r ".[] | select(.name == \"$1\").value"
}
prefix=$(option prefix) library=$(option libdir) kind=$(option default_library) tool=$(option tool)
version=$(sed -n "s/^ *version: '\([0-9.]*\)',$/\1/p" "$source/meson.build" | head -n 1)
if [ -z "$prefix" ] || [ -z "$library" ] || [ -z "$version" ]; then
    echo "Bail out! $build is no build of this project"
    exit 1
fi
root=$(realpath -m "$destdir$prefix")
# A build has /usr/local for its prefix if nobody said otherwise: that is not ours to remove.
if [[ $root != "$(dirname "$build")"/?* || $root == "$build"* || $build == "$root"* ]]; then
    echo "Bail out! $root, which would be removed, is not a folder beside $build"
    exit 1
fi
modules=$prefix/$library/fwa/backends2
# The backends that are modules of this build: "cuda hip".
built=$(meson introspect "$build" --targets |
    jq -r '[.[].name | select(. == "fwa-cuda" or . == "fwa-hip") | ltrimstr("fwa-")] | unique | join(" ")')

export PKG_CONFIG_LIBDIR=$root/$library/pkgconfig
[ -n "$destdir" ] && export PKG_CONFIG_SYSROOT_DIR=$destdir
export LD_LIBRARY_PATH=$root/$library
unset PKG_CONFIG_PATH FWA_BACKEND_PATH
warnings='-Wall -Wextra -Wpedantic -Werror'
static=
[ "$kind" = static ] && static=--static

checks=0 failures=0
check() {
    local name=$1
    shift
    checks=$((checks + 1))
    if "$@" > "$work/log" 2>&1; then
        echo "ok $checks - $name"
    else
        failures=$((failures + 1))
        echo "not ok $checks - $name"
        sed 's/^/# /' "$work/log"
    fi
}

install_build() {
    rm -rf "$root"
    DESTDIR=$destdir meson install -C "$build" --no-rebuild
}

expected_files() {
    if [ "$tool" = true ]; then
        echo bin/fwa
        echo share/bash-completion/completions/fwa
        echo share/man/man1/fwa.1
        echo share/zsh/site-functions/_fwa
    fi
    printf 'include/fwa/%s.h\n' backend dlpack fwa
    local name
    for name in $built; do
        echo "$library/fwa/backends2/fwa-$name.so"
    done
    printf "$library/%s\n" cmake/fwa/fwaConfig.cmake cmake/fwa/fwaConfigVersion.cmake pkgconfig/fwa.pc
    [ "$kind" != shared ] && echo "$library/libfwa.a"
    [ "$kind" != static ] && printf "$library/%s\n" libfwa.so libfwa.so.0 libfwa.so.0.1.0
    (cd "$source" && printf 'share/doc/fwa/%s\n' CHANGELOG.md CONTRIBUTING.md LICENSE README.md \
        bench/results/README.md doc/*.md examples/decode.c examples/first.c include/fwa/fwa.h)
}

same_files() {
    diff -u --label expected --label installed <(expected_files | LC_ALL=C sort) \
        <(cd "$root" && find . ! -type d | sed 's,^\./,,' | LC_ALL=C sort)
}

same_headers() {
    diff -r "$source/include/fwa" "$root/include/fwa"
}

# What the documents link to, from where they are.
document_links() {
    local document link missing=0
    while read -r document; do
        while read -r link; do
            [ -e "$(dirname "$document")/$link" ] && continue
            echo "$document links to $link"
            missing=1
        done < <(grep -oE '\]\([^)#:]+[)#]' "$document" | sed 's/^](//; s/.$//')
    done < <(find "$root/share/doc/fwa" -name '*.md')
    return "$missing"
}

links() {
    [ "$(readlink "$root/$library/libfwa.so")" = libfwa.so.0 ] &&
        [ "$(readlink "$root/$library/libfwa.so.0")" = libfwa.so.0.1.0 ]
}

soname() {
    readelf -d "$root/$library/libfwa.so" | tee /dev/stderr | grep -q 'SONAME.*\[libfwa\.so\.0\]$'
}

# What is installed must find its libraries as the system does.
no_run_path() {
    local file
    for file in "$@"; do
        readelf -d "$root/$file" | grep -E 'RPATH|RUNPATH' && return 1
    done
    return 0
}

# Only what every system has, so that nobody's CPU pulls in a GPU's libraries.
needed() {
    diff -u - <(readelf -d "$root/$library/libfwa.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        LC_ALL=C sort | grep -vE '^(ld-linux.*|libgomp\.so\.1|libomp\.so\.5)$') <<< "$(printf '%s\n' libc.so.6 libm.so.6)"
}

pc_values() {
    [ "$(pkg-config --modversion fwa)" = "$version" ] &&
        [ "$(PKG_CONFIG_SYSROOT_DIR='' pkg-config --variable=moduledir fwa)" = "$modules" ] &&
        [ "$(pkg-config --cflags-only-I fwa | tr -d ' ')" = "-I$root/include" ]
}

# To three digits, as the numbers stand in the file.
prints() {
    "$2" > "$work/numbers" && awk '{ printf "%.3f %.3f\n", $1, $2 }' "$work/numbers" | diff -u "$1" -
}

# What the language model needs besides the library: its own sources and the project's file reader,
# which is not installed.
has_lm_libraries() {
    printf '#include <%s.h>\n' dnnl popt jansson | gcc -E - >/dev/null 2>&1
}

language_model() {
    # The flags are several words.
    # shellcheck disable=SC2046
    gcc -std=c11 -O1 -Wall -Wextra -Werror -D_GNU_SOURCE -DLM_USE_DNNL -fopenmp \
        -I "$source/src/files" "$source"/examples/lm/*.c \
        "$source"/src/files/{atomic_file,safetensors*}.c -o "$work/lm" \
        $(pkg-config --cflags --libs ${static:+"$static"} fwa) -ldnnl -lpopt -ljansson -lm
}

cmake_project() {
    cmake -S "$source/tests/install" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$root" \
        -DCMAKE_LIBRARY_ARCHITECTURE="${library#lib/}" -DFWA_EXPECTED_VERSION="$version" \
        -DEXAMPLES="$source/examples" "$@" && cmake --build "$work/cmake"
}

# A package whose library is gone says so, instead of failing at the link.
cmake_broken() {
    local copy=$work/broken
    mkdir -p "$copy/include" "$copy/$library/cmake" && cp -a "$root/include/fwa" "$copy/include" &&
        cp -a "$root/$library/cmake/fwa" "$copy/$library/cmake" || return 1
    ! cmake -S "$source/tests/install" -B "$work/cmake-broken" -DCMAKE_PREFIX_PATH="$copy" \
        -DCMAKE_LIBRARY_ARCHITECTURE="${library#lib/}" -DFWA_EXPECTED_VERSION="$version" \
        -DEXAMPLES="$source/examples" || return 1
    grep -q 'installation of fwa is broken' "$work/log"
}

tool_version() {
    [ "$("$root/bin/fwa" --version)" = "fwa $version" ]
}

# Modules that are there are found beside the shared library, also where it is only staged.
tool_modules() {
    local found=$modules
    [ "$kind" != static ] && [ -d "$root/$library/fwa/backends2" ] &&
        found=$(realpath "$root/$library/fwa/backends2")
    "$root/bin/fwa" info | tee /dev/stderr | grep -qxF "    looked for in $found/fwa-hip.so"
}

# The module of a backend is read, and has no device or has one.
tool_finds() {
    "$root/bin/fwa" info | tee /dev/stderr | grep "^  $1:" | grep -v 'no such file'
}

expected=$source/examples/first.expected

check 'meson install' install_build
check 'the files, and no others, are installed' same_files
check 'the headers are those of the source' same_headers
check 'what the documents link to is there' document_links
if [ "$kind" != static ]; then
    check 'links to the library' links
    check 'SONAME' soname
    check 'the library has no run path' no_run_path "$library/libfwa.so"
    check 'the library needs only libc, libm and OpenMP' needed
fi
if [ "$tool" = true ]; then
    check 'the tool has no run path' no_run_path bin/fwa
    check 'fwa --version' tool_version
    check 'fwa info looks for modules in the installed directory' tool_modules
    for module in $built; do
        [ "$kind" = static ] && break
        check "the module $module has no run path" no_run_path "$library/fwa/backends2/fwa-$module.so"
        check "fwa info finds the module $module" tool_finds "$module"
    done
    check 'the man page formats' mandoc -T utf8 "$root/share/man/man1/fwa.1"
    check 'the bash completion parses' bash -n "$root/share/bash-completion/completions/fwa"
fi
check 'fwa.pc: version, module directory, include path' pc_values
# The flags are several words.
# shellcheck disable=SC2046,SC2086
{
    check 'C11 program by pkg-config' gcc -std=c11 $warnings "$source/examples/first.c" \
        -o "$work/first" $(pkg-config --cflags --libs $static fwa)
    check 'it prints the right numbers' prints "$expected" "$work/first"
    check 'the decoding example by pkg-config' gcc -std=c11 $warnings "$source/examples/decode.c" \
        -o "$work/decode" $(pkg-config --cflags --libs $static fwa) -lm
    check 'it is content with its answers' "$work/decode"
    if has_lm_libraries; then
        check 'the language model by pkg-config' language_model
        check 'its self-test' "$work/lm" --self-test
    fi
    check 'C++17 program by pkg-config' g++ -std=c++17 $warnings "$source/tests/install/program.cc" \
        -o "$work/program" $(pkg-config --cflags --libs $static fwa)
    check 'it prints the right numbers' prints "$expected" "$work/program"
}
check 'CMake project' cmake_project
check 'its C program prints the right numbers' prints "$expected" "$work/cmake/first"
check 'its decoding example is content with its answers' "$work/cmake/decode"
check 'its C++ program prints the right numbers' prints "$expected" "$work/cmake/program"
check 'CMake refuses a broken installation' cmake_broken
if [ -z "$destdir" ]; then
    check 'uninstall' ninja -C "$build" uninstall
    check 'nothing is left' test -z "$(find "$root" ! -type d 2>/dev/null)"
fi

echo "1..$checks"
[ "$failures" -eq 0 ]
