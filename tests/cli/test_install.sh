#!/usr/bin/env bash
# What is installed is enough: the example builds against it, with pkg-config and with CMake, and learns.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
build=$(dirname "$abar")
prefix=$work/prefix
ran="cmake --install"
check "it installs" cmake --install "$build" --prefix "$prefix" >install.log 2>&1
check "the command is installed" test -x "$prefix/bin/abar"
pc=$(dirname "$(find "$prefix" -name abar_optim.pc)")
export PKG_CONFIG_PATH=$pc LD_LIBRARY_PATH=$(dirname "$pc")

ran="cc embed.c with pkg-config"
# shellcheck disable=SC2046
check "the example builds" cc -O2 -std=c11 -Wall -Wextra -Werror -o embed "$root/examples/embed.c" $(pkg-config --cflags --libs abar_optim) -lm

# learns METHOD SET: whatever the seed, the loss of the last steps is below half that of the first. Chance is 1.39; methods end at
# 0.08 to 0.2, because the example's learning rates are stable and fall to 0.
learns() {
    local seed
    for seed in {1..20}; do
        OMP_NUM_THREADS=1 "$root/tools/with-isa" "$2" ./embed "$1" "$seed" >stdout 2>stderr || return
        awk 'NR == 1 { first = $4 } END { exit !(NR == 10 && $4 < 0.5 * first) }' stdout || return
    done
}
for set in $("$root/tools/with-isa" --list); do
    for method in mac smac foof kfac eva lngd sgd; do
        ran="embed $method ($set)"
        check "$method learns from 20 seeds ($set)" learns $method "$set"
    done
done
ran="embed nothing"
rc=0
./embed nothing >stdout 2>stderr || rc=$?
check "a method that does not exist is an error" test $rc = 1 -a -s stderr

ran="exported symbols"
for library in libabar_optim.so libabar.so; do
    nm -D --defined-only "$LD_LIBRARY_PATH/$library" | awk '{print $3}' >symbols
    check "$library exports abar_optim_step" grep -q '^abar_optim_step' symbols
    check "$library keeps its inside to itself" bash -c "! grep -vE '^abar_[a-z]' symbols"
done
check "the optimizer library stands alone" bash -c "! ldd '$LD_LIBRARY_PATH/libabar_optim.so' | grep -E 'dnnl|cjson|libz'"

mkdir cmake-user && cat >cmake-user/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(abar REQUIRED)
add_executable(embed ${EXAMPLE})
target_link_libraries(embed PRIVATE abar::optim m)
END
ran="find_package(abar)"
check "a CMake project finds it" bash -c "cmake -S cmake-user -B cmake-user/build -DEXAMPLE='$root/examples/embed.c' -DCMAKE_PREFIX_PATH='$prefix' >stdout 2>stderr && cmake --build cmake-user/build >>stdout 2>>stderr && cmake-user/build/embed >>stdout"
ran="cc headers"
for header in "$prefix"/include/abar/*.h; do
    echo "#include <abar/$(basename "$header")>" >one.c
    check "$(basename "$header") stands alone in C" cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -fsyntax-only one.c
    check "$(basename "$header") stands alone in C++" c++ -x c++ -std=c++17 -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only one.c
done

ran="cc embed.c with pkg-config from a prefix with a space"
spaced="$work/a prefix"
check "it installs into a folder with a space" cmake --install "$build" --prefix "$spaced" >install.log 2>&1
PKG_CONFIG_PATH=$(dirname "$(find "$spaced" -name abar_optim.pc)")
eval "flags=($(pkg-config --cflags --libs abar_optim))" # pkg-config escapes spaces for the shell
check "the example builds there" cc -std=c11 -o spaced "$root/examples/embed.c" "${flags[@]}" -lm
finish
