#!/usr/bin/env bash
# `make quickstart` compiles few objects, and the files that it compiles together also compile alone; `make test` makes the programs
# of bench/, `make` all that is installed. Nothing is built: a script stands in for cmake and lists the commands of the build.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

for tool in make cmake ninja; do
    command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
unset BUILD CUDA
mkdir bin
cat >bin/cmake <<'END_OF_CMAKE'
#!/bin/sh
[ "$1" = --build ] || exec "$REAL_CMAKE" "$@"
folder=$2
while [ "$1" != --target ]; do shift; done
shift
ninja -C "$folder" -t commands "$@" >"$COMMANDS"
printf '#!/bin/sh\n' >"$folder/abar" # quickstart runs it next
chmod +x "$folder/abar"
END_OF_CMAKE
chmod +x bin/cmake
REAL_CMAKE=$(command -v cmake)
export REAL_CMAKE COMMANDS=$work/commands

# ---- the number of objects -------------------------------------------------------------------------------------------------
ran='make quickstart CUDA=off'
env -u MAKEFLAGS -u MAKELEVEL PATH="$work/bin:$PATH" make --no-print-directory -C "$root" -o bootstrap BUILD="$work/out" quickstart CUDA=off \
    >stdout 2>stderr
rc=$?
check "quickstart is configured" test $rc = 0
grep -- ' -c ' commands >together
objects=$(wc -l <together)
check "quickstart compiles $objects objects: more than 0, at most 250" test "$objects" -gt 0 -a "$objects" -le 250

# ---- the programs of bench/: built with the tests, not by quickstart ----------------------------------------------------------
ninja -C out -t commands all >everything
for source in "$root"/bench/bench_*.c; do
    check "${source##*/} is built with the tests" grep -qF -- " -c $source" everything
done
check "quickstart builds none of them" test "$(grep -cF -- "$root/bench/" together)" = 0

# ---- what is installed: files that neither the configuration nor `make` makes, such as a module for an MPI -------------------
ran='make build CUDA=off'
env -u MAKEFLAGS -u MAKELEVEL PATH="$work/bin:$PATH" COMMANDS="$work/all" make --no-print-directory -C "$root" -o bootstrap \
    BUILD="$work/out" build CUDA=off >stdout 2>stderr
rc=$?
check "the build is configured" test $rc = 0
grep -oE "\"$work/out/[^\"$]+\"" out/cmake_install.cmake | tr -d '"' | sort -u >installed
check "files of the build are installed" grep -q 'libabar_optim.so' installed
while IFS= read -r file; do
    check "${file##*/}, which is installed, is built" test -e "$file" -o "$(grep -cF -- "${file##*/}" all)" -gt 0
done <installed

# ---- files alone: a file that lacks an include still compiles after one that has it -------------------------------------------
ran='cmake -DABAR_UNITY=OFF'
cmake --preset release -S "$root" -B alone -DABAR_CUDA=OFF -DABAR_TESTS=OFF -DABAR_UNITY=OFF --log-level=WARNING >stdout 2>stderr
rc=$?
check "ABAR_UNITY=OFF is configured" test $rc = 0
ninja -C alone -t commands abar_cli | grep -- ' -c ' >alone.commands
sed 's/.* -c //' together | sort -u >together.sources
# of a kernel the first instruction set alone
while IFS= read -r command; do
    source=${command##* -c }
    grep -qxF -- "$source" together.sources || printf '%s\t%s\n' "$source" "${command%% -MD *} -Werror=implicit-function-declaration -fsyntax-only $source"
done <alone.commands | sort -u -t $'\t' -k1,1 | cut -f2- >checks
check "some files are compiled together" test -s checks
ran='the commands of ABAR_UNITY=OFF, with -fsyntax-only'
(cd alone && xargs -d '\n' -P "$(nproc)" -n 1 sh -c <../checks) >stdout 2>stderr
rc=$?
check "each of them compiles alone" test $rc = 0
finish
