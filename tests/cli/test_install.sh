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
check "the example builds" cc -std=c11 -Wall -Wextra -Werror -o embed "$root/examples/embed.c" $(pkg-config --cflags --libs abar_optim) -lm
for method in mac smac foof kfac eva lngd sgd; do
    ran="embed $method"
    ./embed "$method" >stdout 2>stderr
    rc=$?
    check "$method runs" test $rc = 0
    first=$(awk 'NR == 1 {print $4}' stdout) last=$(awk 'END {print $4}' stdout)
    check "$method learns ($first to $last)" awk -v a="$first" -v b="$last" 'BEGIN {exit !(b < 0.7 * a)}'
done

# What the headers declare and what the libraries export is the same (docs/abi.md). A name before (* is a type's.
# shellcheck disable=SC2086 # several headers are several words
declared() { printf '#include <abar/%s>\n' $1 | cc -E -P -x c -I"$prefix/include" - | grep -oE '\babar_[a-z0-9_]+ ?\([^*]' | grep -oE '^abar_[a-z0-9_]+' | sort -u; }
exported() { nm -D --defined-only "$LD_LIBRARY_PATH/$1" | awk '{print $3}' | sort -u; }
same_symbols() {
    diff <(declared "$1") <(exported "$2") >stdout 2>stderr
    rc=$?
    test $rc = 0
}
ran="diff of declared (<) and exported (>) symbols"
check "there are declarations to compare" test "$(declared abar.h | wc -l)" -gt 150
check "libabar exports what abar.h declares" same_symbols abar.h libabar.so
check "libabar_optim exports what optim.h and analysis.h declare" same_symbols "optim.h analysis.h" libabar_optim.so

ran="exported symbols"
for library in libabar_optim.so libabar.so; do
    nm -D --defined-only "$LD_LIBRARY_PATH/$library" | awk '{print $3}' >symbols
    check "$library exports abar_optim_step" grep -q '^abar_optim_step' symbols
    check "$library keeps its inside to itself" bash -c "! grep -vE '^abar_[a-z]' symbols"
done
check "the optimizer library stands alone" bash -c "! ldd '$LD_LIBRARY_PATH/libabar_optim.so' | grep -E 'dnnl|cjson|libz'"

# Every C example of the README and of the headers' comments (lines indented by five) compiles and runs. One without a main is
# part of a program that has a context, a device and a net.
read_examples() {
    awk -v into="$1" '
        function begin() { n++; file = sprintf("%s-%02d.part", into, n) }
        /^```c$/ { begin(); fenced = 1; next }
        /^```$/ { fenced = 0; next }
        FILENAME ~ /\.h$/ && /^ \*     [^ ]/ { if (!listed) begin(); listed = 1; sub(/^ \*     /, ""); print >file; next }
        FILENAME ~ /\.h$/ { listed = 0 }
        fenced { print >file }' "$2"
}
complete() { # PART: a program on stdout
    if grep -q 'int main' "$1"; then
        cat "$1"
        return
    fi
    echo '#include <abar/abar.h>'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    echo '    abar_context *ctx; abar_device *dev; abar_net *net; abar_loss loss;'
    echo '    if (abar_context_create(NULL, &ctx) < 0 || abar_device_open(ctx, "cpu", NULL, &dev) < 0 || abar_net_create(ctx, &net) < 0) return 1;'
    grep -q 'abar_value x' "$1" || echo '    abar_value x = abar_input(net, 1, (int64_t[]){16});'
    cat "$1"
    grep -q abar_net_compile "$1" || echo '    abar_softmax_cross_entropy(net, x, 0.0); abar_net_compile(net, dev, &ABAR_CONFIG(abar_compile_config, .batch = 2));'
    echo '    int failed = abar_net_forward(net, &ABAR_CONFIG(abar_run_config, .training = false), &loss) < 0;'
    echo '    if (failed) fprintf(stderr, "%s\n", abar_context_error(ctx));'
    echo '    abar_net_destroy(net); abar_device_close(dev); abar_context_destroy(ctx);'
    echo '    return failed; }'
}
read_examples readme "$root/README.md"
for header in "$prefix"/include/abar/*.h; do read_examples "$(basename "$header" .h)" "$header"; done
grep -lE 'abar_[a-z0-9_]+\(' ./*.part >parts
check "there are examples to try" test "$(wc -l <parts)" -ge 4
while read -r part; do
    ran="the example $part"
    complete "$part" >example.c
    # shellcheck disable=SC2046
    check "$part compiles" cc -std=c11 -Wall -Wextra -Werror -o example example.c $(pkg-config --cflags --libs abar) >stdout 2>stderr
    ./example >stdout 2>stderr
    rc=$?
    check "$part runs" test $rc = 0
done <parts

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
finish
