#!/usr/bin/env bash
# Includes point down only; and the script that says so notices when they do not.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
ran=tools/check-includes rc=
check "the tree's includes point down" "$root/tools/check-includes"

plant() { # FILE INCLUDE: a tree with this one line must be refused
    rm -rf planted
    mkdir -p "planted/$(dirname "$1")"
    echo "#include \"$2\"" >"planted/$1"
    ran="$1 includes $2"
    "$root/tools/check-includes" planted >stdout 2>stderr
    rc=$?
    check "$1 must not include $2" test $rc = 1 -a -s stdout
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
finish
