#!/usr/bin/env bash
# The Makefile's variables reach CMake: BUILD, CUDA and a PREFIX with spaces. A script that records its arguments stands in for cmake.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

command -v make >/dev/null || { echo 'skipped: make is not installed'; exit 77; }
unset CUDA

mkdir bin
cat >bin/cmake <<'END'
#!/bin/sh
for argument in "$@"; do
    echo "[$argument]"
    case $argument in
    -DABAR_CUDA=*) choice=${argument#*=} ;;
    esac
done >>"$CALLS"
case $1 in
--preset)
    mkdir -p "$4"
    touch "$4/build.ninja"
    echo "ABAR_CUDA:STRING=${choice-AUTO}" >"$4/CMakeCache.txt"
    ;;
esac
END
chmod +x bin/cmake
printf '#!/bin/sh\nexit 1\n' >bin/nvidia-smi
printf '#!/bin/sh\n' >bin/nvcc
chmod +x bin/nvidia-smi bin/nvcc
export PATH=$work/bin:$PATH CALLS=$work/calls

# make_ ARGUMENTS...: make with that cmake, without installing packages; the build folder is out.
make_() {
    ran="make $*"
    : >calls
    env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory -C "$root" -o bootstrap BUILD="$work/out" "$@" >stdout 2>stderr
    rc=$?
}
called() { grep -qxF -- "[$1]" calls; }
not() { ! "$@"; }

make_ configure
check "a new folder is configured" called --preset
check "without CUDA= the default is CMake's" not grep -q ABAR_CUDA calls
make_ configure
check "a configured folder is left alone" not called --preset
make_ configure CUDA=off
check "CUDA=off arrives" called -DABAR_CUDA=OFF
make_ configure
check "CUDA=off is remembered" not called --preset
make_ build CUDA=off
check "CUDA=off again changes nothing" not called --preset
check "make builds the command" called abar_cli
check "make does not build the tests" not called all
make_ build CUDA=on
check "CUDA=on switches" called -DABAR_CUDA=ON
make_ configure CUDA=maybe
check "another value is refused" test $rc != 0
CUDA=/usr/local/cuda make_ configure
check "a folder in the environment is not a choice" test $rc = 0
make_ -o build install PREFIX="$work/a prefix"
check "a prefix may have spaces" called "$work/a prefix"
if [[ -e /dev/nvidia0 || -e /dev/dxg ]]; then
    skip "quickstart without a GPU: this machine has one"
else
    rm -rf out
    make_ quickstart
    check "without a GPU quickstart is built for the CPU" called -DABAR_CUDA=OFF
    check "which it says" grep -q 'No NVIDIA GPU' stdout
    rm -rf out
    make_ quickstart CUDA=auto
    check "unless told otherwise" called -DABAR_CUDA=AUTO
fi
finish
