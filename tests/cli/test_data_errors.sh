#!/usr/bin/env bash
# Data that is missing or damaged is reported in one line, before anything is written.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

idx_set good
succeeds "a good set" data --data fashion-mnist:good
check "a good set is counted" says '64 training and 32 test images'
check "a part of a set is called so" says 'not complete: fashion-mnist has 60000 \+ 10000'
succeeds "a good set trains" train --model lenet5 --data fashion-mnist:good --batch 16 --epochs 1 --threads 1 --no-out

# broken NAME PATTERN: DIR "bad" must be refused by data and by train, with exit status 1.
broken() {
    refuses "$1: data" 1 "$2" data --data fashion-mnist:bad
    refuses "$1: train" 1 "$2" train --model lenet5 --data fashion-mnist:bad --batch 16 --epochs 1 --threads 1 --out out
    check "$1: nothing left behind" test ! -e out/state.safetensors
    rm -rf bad out
}
images=train-images-idx3-ubyte.gz labels=train-labels-idx1-ubyte.gz

broken "missing folder" 'bad'
mkdir bad && broken "empty folder" 'bad'
: >bad && broken "a file in place of the folder" 'bad'
cp -r good bad && rm bad/t10k-labels-idx1-ubyte.gz && broken "missing file" 't10k-labels'
cp -r good bad && : >bad/$images && broken "empty file" "$images"
cp -r good bad && truncate -s 40 bad/$images && broken "truncated gz" "$images"
cp -r good bad && gzip -dc good/$labels | head -c 50 | gzip >bad/$labels && broken "fewer bytes than announced" "$labels"
cp -r good bad && { gzip -dc good/$labels && bytes 3 '\1'; } | gzip >bad/$labels && broken "more bytes than announced" "$labels"
cp -r good bad && printf 'not gzip at all, and long enough' >bad/$images && broken "not a gz" "$images"
cp -r good bad && printf '\xff\xff\xff\xff' | dd of=bad/$images bs=1 seek=30 conv=notrunc status=none && broken "corrupt gz" "$images"
cp -r good bad && { u32 2052 64 28 28 && bytes $((64 * 784)) '\1'; } | gzip >bad/$images && broken "wrong magic" "$images"
cp -r good bad && { u32 2049 63 && bytes 63 '\1'; } | gzip >bad/$labels && broken "counts that differ" '6[34]'
cp -r good bad && { u32 2049 64 && bytes 63 '\1' && bytes 1 '\12'; } | gzip >bad/$labels && broken "label out of range" '10'
cp -r good bad && { u32 2051 64 27 28 && bytes $((64 * 27 * 28)) '\1'; } | gzip >bad/$images && broken "images of another size" '27|28'
cp -r good bad && { u32 2051 4294967295 28 28; } | gzip >bad/$images && broken "absurd count" "$images"

mkdir cifar && bytes 3073 '\1' >cifar/data_batch_1.bin
refuses "cifar10 with a missing batch" 1 'cifar' data --data cifar10:cifar
for i in 1 2 3 4 5; do bytes 3073 '\1' >cifar/data_batch_$i.bin; done
bytes 3000 '\1' >cifar/test_batch.bin
refuses "cifar10 truncated" 1 'test_batch.bin' data --data cifar10:cifar
refuses "cifar10 without a folder" 1 'cifar10' train --model resnet20 --data cifar10 --epochs 1 --no-out

refuses "batch larger than the data" 2 'batch' train --model lenet5 --data fashion-mnist:good --batch 100 --epochs 1 --out out
check "batch larger than the data: nothing left behind" test ! -e out/state.safetensors
refuses "limit smaller than the batch" 2 'limit-train' train --data synthetic --limit-train 10 --batch 32 --no-out
refuses "a model that cannot take the data" 2 'widths' train --model mlp --widths 100-10 --data synthetic --no-out
finish
