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

# explains NAME CODE STREAM ARGUMENTS...: a case: an example ends with its usage, and makes nothing.
explains() {
    local name=$1 code=$2 stream=$3
    shift 3
    ran="$*"
    mkdir empty && cd empty || exit 1
    "../$@" >../stdout 2>../stderr
    rc=$?
    cd .. || exit 1
    check "$name" test $rc = "$code" -a "$(grep -c '^usage: ' "$stream")" = 1 -a "$(cat stdout stderr | wc -l)" = 2
    check "$name, and nothing is made" rmdir empty
}
explains "the example says how it is called" 0 stdout embed --help
explains "a flag that the example does not have is refused" 2 stderr embed --seed
explains "a seed that is no number is refused" 2 stderr embed mac two
explains "a third argument is refused" 2 stderr embed mac 1 2

ran="cc own_network.c with pkg-config"
# shellcheck disable=SC2046
check "the example of one's own network builds" cc -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Werror -o own_network "$root/examples/own_network.c" $(pkg-config --cflags --libs abar)
explains "the example of one's own network says how it is called" 0 stdout own_network --help
explains "it refuses a flag" 2 stderr own_network --resume
explains "it refuses another word than resume" 2 stderr own_network out again
explains "it refuses a third argument" 2 stderr own_network out resume more
learned() { awk -v from="$1" -v epochs="$2" '/^epoch/ {n++; if ($2 != from + n) bad = 1; last = $(NF - 1)} END {exit bad || n != epochs || last < 95}' stdout; }
ran="own_network"
./own_network >stdout 2>stderr
rc=$?
check "one's own network runs" test $rc = 0
check "one's own network learns" learned 0 4
ran="own_network out"
./own_network out >stdout 2>stderr
check "one's own network keeps its run" test -s out/state.safetensors -a -s out/model.safetensors -a -s out/log.jsonl
ran="own_network out resume"
./own_network out resume >stdout 2>stderr
rc=$?
check "one's own network resumes" test $rc = 0
check "one's own network goes on where it was" learned 4 4

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

# Every struct with members is of a kind that docs/abi.md names: it begins with its size, or is listed there.
awk 'match($0, /^(typedef )?struct abar_[a-z0-9_]+ \{/) {sub(/^typedef /, ""); name = $2; next}
     name {sub(/;.*/, ""); print name, ($0 ~ /^ +size_t size$/ ? "sized" : "listed"); name = ""}' "$prefix"/include/abar/*.h >structs
ran="the structs of the headers and docs/abi.md"
check "there are structs to look at" test "$(wc -l <structs)" -gt 50
while read -r name kind; do
    if test "$kind" = listed; then check "docs/abi.md says how $name may change" grep -q "\`$name\`" "$root/docs/abi.md"; fi
done <structs

ran="exported symbols"
for library in libabar_optim.so libabar.so; do
    nm -D --defined-only "$LD_LIBRARY_PATH/$library" | awk '{print $3}' >symbols
    check "$library exports abar_optim_step" grep -q '^abar_optim_step' symbols
    check "$library keeps its inside to itself" bash -c "! grep -vE '^abar_[a-z]' symbols"
done
check "the optimizer library stands alone" bash -c "! ldd '$LD_LIBRARY_PATH/libabar_optim.so' | grep -E 'dnnl|cjson|libz'"

# Every C example of README.md, docs/c.md and the headers' comments (lines indented by five) compiles and runs. One without a main
# is part of a program that has a context, a device and a net, which gets a loss and is compiled where the example does not do it.
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
    grep -qE 'abar_net_compile|cross_entropy' "$1" || echo '    abar_softmax_cross_entropy(net, x, 0.0);'
    grep -q abar_net_compile "$1" || echo '    abar_net_compile(net, dev, &ABAR_CONFIG(abar_compile_config, .batch = 2));'
    echo '    int failed = abar_net_forward(net, &ABAR_CONFIG(abar_run_config, .training = false), &loss) < 0;'
    echo '    if (failed) fprintf(stderr, "%s\n", abar_context_error(ctx));'
    echo '    abar_net_destroy(net); abar_device_close(dev); abar_context_destroy(ctx);'
    echo '    return failed; }'
}
read_examples readme "$root/README.md"
read_examples c "$root/docs/c.md"
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

ran="cc embed.c with pkg-config from a prefix with a space"
spaced="$work/a prefix"
check "it installs into a folder with a space" cmake --install "$build" --prefix "$spaced" >install.log 2>&1
PKG_CONFIG_PATH=$(dirname "$(find "$spaced" -name abar_optim.pc)")
eval "flags=($(pkg-config --cflags --libs abar_optim))" # pkg-config escapes spaces for the shell
check "the example builds there" cc -std=c11 -o spaced "$root/examples/embed.c" "${flags[@]}" -lm
finish
