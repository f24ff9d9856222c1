#!/usr/bin/env bash
# Includes point down only; and the script that says so notices when they do not.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
ran=tools/check-includes rc=
check "the tree's includes point down" "$root/tools/check-includes"

cp -r "$root/include" "$root/src" "$root/cli" "$root/examples" .

refused() { # NAME FILE: check-includes refuses the copied tree, because of this file alone
    ran="tools/check-includes, $1"
    "$root/tools/check-includes" . >stdout 2>stderr
    rc=$?
    check "$1" test $rc = 1 -a "$(grep -c "^$2:" stdout)" -gt 0 -a "$(grep -vc "^$2:" stdout)" = 0
}

plant() { # FILE INCLUDE: the tree with a file of this one line must be refused
    mkdir -p "$(dirname "$1")"
    if [[ -e $1 ]]; then mv "$1" saved; fi
    echo "#include \"$2\"" >"$1"
    refused "$1 must not include $2" "$1"
    rm "$1"
    if [[ -e saved ]]; then mv saved "$1"; fi
}
plant src/net/net.c abar/optim.h
plant src/net/net.c optim/optim_impl.h
plant src/optim/sgd.c net/net_impl.h
plant src/optim/sgd.c abar/net.h
plant src/base/rng.c tensor/tensor_impl.h
plant src/tensor/tensor.c device/device_impl.h
plant src/io/jsonl.c net/net_impl.h
plant src/data/idx.c io/io.h
plant src/device/cpu/conv.c net/net_impl.h
plant cli/main.c base/base_impl.h
plant include/abar/net.h abar/optim.h
plant include/abar/base.h base/base_impl.h
plant src/newcomer/new.c abar/base.h
plant src/device/cuda/new.cu device/cuda/core/cuda_impl.h
plant src/device/cuda/stats/new.cu ../step/maps.h

# Wrong includes between folders of one layer: FOLDER, then the folders it must not include. One run of the script finds them all.
forbid() {
    local from=$1 to
    shift
    for to in "$@"; do
        echo "#include \"$to/planted.h\"" >"src/$from/planted_${to//\//_}.h"
        planted+=("src/$from/planted_${to//\//_}.h:1: $from may not include $to ($to/planted.h)")
    done
}
planted=()
c=device/cuda
nn="$c/nn $c/nn/attention $c/nn/conv $c/nn/norm"
# shellcheck disable=SC2086 # lists
{
    forbid device device/ref device/cpu device/cpu/isa $c/core $c/stats $c/factors $c/step $c/feed $nn
    forbid device/ref device/cpu $c/core
    forbid device/cpu device/ref $c/core
    forbid $c/core $c/stats $c/factors $c/step $c/feed $nn device/cpu device/ref
    forbid $c/stats $c/factors $c/step $c/feed $nn device/cpu
    forbid $c/factors $c/step $c/feed $nn device/cpu
    forbid $c/step $c/feed $nn device/cpu curvature optim
    forbid $c/feed $c/stats $c/factors $c/step $nn data
    forbid $c/nn $c/stats $c/factors $c/step $c/feed ${nn#* } net
    for each in attention conv norm; do forbid $c/nn/$each $c/stats $c/factors $c/step $c/feed; done
    forbid $c/nn/attention $c/nn/conv $c/nn/norm
    forbid $c/nn/conv $c/nn/attention $c/nn/norm
    forbid $c/nn/norm $c/nn/attention $c/nn/conv
    forbid curvature $c/core $c/step device/cpu
    forbid optim $c/core $c/step
    forbid net net/ops net/models $c/nn
    forbid net/ops net/models
    forbid net/models net/ops
    forbid train train/bench train/compare analysis
    forbid train/bench train/compare analysis
    forbid train/compare analysis
}
ran="tools/check-includes with ${#planted[@]} wrong includes"
"$root/tools/check-includes" . >stdout 2>stderr
rc=$?
check "wrong includes between folders fail" test $rc = 1
for line in "${planted[@]}"; do check "expected: $line" grep -qxF "$line" stdout; done
check "and nothing else fails" test "$(wc -l <stdout)" = ${#planted[@]}
find src -name 'planted_*' -delete

mv src/device/cuda/feed elsewhere
refused "a folder of the table must exist" src/device/cuda/feed
finish
