#!/usr/bin/env bash
# Mistyped names, flags and values; help.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

# --- help ---
for words in "" "help" "--help" "-h"; do
    # shellcheck disable=SC2086
    succeeds "overview by '$words'" $words
    check "overview by '$words' names the commands" says '^  train '
done
for command in train compare sweep tune runs report serve eval sample bench models data optimizers analyze; do
    succeeds "$command --help" $command --help
    check "$command --help shows its usage" says "^usage: abar $command"
    check "$command --help fits 80 columns" awk 'length > 80 { exit 1 }' stdout
    cp stdout first
    run help $command
    check "help $command is $command --help" cmp -s stdout first
done
succeeds "train --help with another recipe" train --model resnet20 --help
check "train --help shows the recipe's defaults" says 'lr X .*\[0\.1\]'
run train --help
check "train --help shows the default recipe's" says 'lr X .*\[0\.05\]'
succeeds "train --help with another optimizer" train --optim adamw --help
check "train --help shows the optimizer's own options" says '--beta'
for command in sweep tune; do
    run $command --help
    check "$command --help shows its own default of --validation" bash -c 'grep -A2 -e "--validation X" stdout | grep -q "\[0\.1\]"'
done
run analyze all --help
check "a flag that is on says so, and how it goes off" bash -c 'grep -A1 -e "--\[no-\]homogeneous " stdout | grep -q "\[on\]"'
check "a flag that is off is just set" says '^  --dump '
succeeds "version" --version
check "version says a number" says '^abar [0-9]+\.[0-9]+\.[0-9]+$'
succeeds "optimizers" optimizers
check "optimizers lists options" says '--momentum'
succeeds "one optimizer" optimizers --optim mac+adamw
check "one optimizer has its method's options" says '--value-stat'
check "one optimizer has its rule's options" says '--beta'
check "one optimizer is alone" bash -c '! "$1" optimizers --optim mac | grep -q "^foof"' _ "$abar"
refuses "an unknown optimizer" 2 'did you mean' optimizers --optim mca
refuses "an optimizer as a lone word" 2 'did you mean --optim mac' optimizers mac
succeeds "models" models
check "models counts parameters" says '^lenet5 .* 61,706 '
succeeds "one model" models --model resnet20 --batch 64
check "one model sums parameters" says '^total .* 269,722 '
check "one model plans memory" says 'activations .*iB'
check "overview fits 80 columns" bash -c '"$1" help | awk "length > 80 { exit 1 }"' _ "$abar"
check "optimizers fits 80 columns" bash -c '"$1" optimizers | awk "length > 80 && !/abar train/ { exit 1 }"' _ "$abar"
succeeds "data" data
check "data lists synthetic" says '^synthetic'

# --- names ---
refuses "unknown command" 2 'did you mean abar train' trian
refuses "hopeless command" 2 'abar help' xyzzyquux
refuses "a command without a name" 2 '^abar: "": no such command' ''
refuses "a flag before its command" 2 'flags follow a command, as in abar train --quiet' --quiet train
refuses "a word without letters" 2 '^abar: "": a lone word' train ''
refuses "unknown model" 2 'lenet6.*lenet5' train --model lenet6
refuses "unknown data" 2 'fashion-mnits.*fashion-mnist' train --data fashion-mnits
refuses "unknown data, checked" 2 'fashion-mnits.*fashion-mnist' data --data fashion-mnits
refuses "unknown optimizer" 2 'sdg.*sgd' train --optim sdg
refuses "unknown device" 2 'cpo.*cpu' train --device cpo
refuses "unknown flag" 2 'epoch.*did you mean --epochs' train --epoch 3
refuses "a flag by another library's name" 2 'did you mean --lr' train --learning-rate 3
refuses "hopeless flag" 2 'abar train --help' train --xyzzyquux 1
refuses "another optimizer's flag" 2 'momentum.*sgd' train --optim adamw --momentum 0.5
refuses "another command's flag" 2 'lr.*not a flag of abar eval' eval --lr 1
refuses "single dash" 2 'spelled out' train -x
refuses "lone word" 2 'lone word' train something
refuses "lone folder" 2 'did you mean --resume \.' train .
refuses "several optimizers" 2 'abar compare' train --optim sgd,mac
refuses "a label where there is none" 2 'here it is --damping' train --optim mac --mac.damping 1
refuses "an option of several" 2 'option of mac, smac, foof, kfac, eva' train --damping 1
refuses "a path for a data set" 2 'text:FILE' train --data "$tests"
refuses "a setting of texts" 2 'epoch-steps.*models of text' train --epoch-steps 5
refuses "a layer that is not there" 2 '--skip-layers fc9: fits no layer' train "${small[@]}" --no-out --optim mac --skip-layers 'conv*,fc9'
refuses "a layer that is not there, shown" 2 '--skip-layers x: fits' models --model lenet5 --data synthetic --optim mac --skip-layers x
refuses "checkpoints without a folder" 2 '--checkpoint-every: there is no folder' train "${small[@]}" --no-out --checkpoint-every 3
succeeds "layers that are there" train "${small[@]}" --epochs 1 --no-out --quiet --optim mac --skip-layers 'conv*,fc1'
refuses "lone model" 2 'did you mean --model lenet5' models lenet5

# --- values ---
refuses "missing value at the end" 2 'lr.*value' train --lr
refuses "missing value before a flag" 2 'lr.*value' train --lr --epochs 3
refuses "missing name" 2 'as in --model NAME' train --model
refuses "missing choice" 2 'cosine' train --schedule
refuses "wrong choice" 2 'cosinus.*cosine' train --schedule cosinus
refuses "lr nan" 2 'lr' train --lr nan
refuses "lr infinite" 2 'lr' train --lr inf
refuses "lr negative" 2 'lr' train --lr -1
refuses "lr a word" 2 'lr' train --lr=fast
refuses "lr with a tail" 2 'lr' train --lr 0.1x
refuses "lr empty" 2 'lr' train --lr ''
refuses "batch 0" 2 'batch' train --batch 0
refuses "epochs negative" 2 'epochs' train --epochs -1
refuses "epochs 0" 2 'epochs' train --epochs 0
refuses "epochs a fraction" 2 'epochs' train --epochs 1.5
refuses "epochs overflow" 2 'epochs' train --epochs 99999999999999999999
refuses "seed a letter" 2 'seed' train --seed x
refuses "seed negative" 2 'seed -1: .*from 0 to 9007199254740991$' train --seed -1
refuses "bool with a value" 2 'nesterov' train --nesterov=maybe
refuses "negated bool with a value" 2 'no-nesterov' train --no-nesterov=1
refuses "negated number" 2 'no-lr' train --no-lr
refuses "batch that cannot be split" 2 'accumulate' train --batch 32 --accumulate 5
refuses "bench steps" 2 'steps' bench --steps 0
refuses "eval without a checkpoint" 2 'checkpoint' eval
refuses "logits without a file" 2 'logits' eval --checkpoint . --model lenet5 --logits 5
check "no mistake left anything behind" test ! -e runs

# --- sizes that the data determine may be given if they agree ---
idx_set set
idx_set odd 12
deit=(--model deit-tiny --patch 4 --width 8 --heads 1 --depth 1 --batch 16 --threads 1)
refuses "another size than the data have" 2 '--image-size 64: cifar10 has images of 32 x 32' models --model deit-tiny --data cifar10 --image-size 64
refuses "other classes than the data have" 2 '--classes 10: cifar100 has 100 classes' bench "${deit[@]}" --data cifar100 --image-size 32 --classes 10
refuses "another size than the files have" 2 '--image-size 28: .*12 x 12' train "${deit[@]}" --data fashion-mnist:odd --image-size 28
refuses "another size, compared" 2 '--mac.image-size 32: .*28 x 28' compare "${deit[@]}" --data fashion-mnist:set --mac.image-size 32
refuses "a size that is none" 2 '--image-size 0: out of range' train "${deit[@]}" --data fashion-mnist:set --image-size 0
refuses "a size of a text" 2 '--data text:x: deit-tiny reads images' train "${deit[@]}" --data text:x --image-size 28
succeeds "the size that published data have" models "${deit[@]}" --data cifar10 --image-size 32 --classes 10
check "shows a network of that size" says ' 8 x 8 x 8 '
succeeds "the size that data have, timed" bench "${deit[@]}" --data cifar10 --image-size 32 --classes 10 --steps 2
succeeds "the size that the files have" train "${deit[@]}" --epochs 1 --quiet --data fashion-mnist:odd --image-size 12 --no-out
succeeds "the size that the data have, compared" compare "${deit[@]}" --data fashion-mnist:set --epochs 1 --image-size 28 --mac.classes 10 --quiet --out sizes
succeeds "without a size" train "${deit[@]}" --epochs 1 --quiet --data fashion-mnist:set --out plain
succeeds "with the size" train "${deit[@]}" --epochs 1 --quiet --data fashion-mnist:set --image-size 28 --classes 10 --out sized
check "is the same run" cmp -s plain/model.safetensors sized/model.safetensors
succeeds "goes on with the size" train --resume plain --quiet --epochs 2 --image-size 28 --classes 10
refuses "goes on with no other" 2 '--image-size 32: fashion-mnist has images of 28 x 28' train --resume plain --epochs 3 --image-size 32
succeeds "is tested with the size" eval --checkpoint sized --image-size 28

# --- what must work ---
succeeds "last flag wins" train "${small[@]}" --no-out --epochs 7 --epochs=1
check "last flag won" says '^epoch 1/1 '
succeeds "bools and their negation" train "${small[@]}" --no-out --epochs 1 --nesterov --no-nesterov --no-augment
check "--no-out keeps nothing" test ! -e runs
refuses "an --out that is not set" 2 '--out: .*no name' train "${small[@]}" --out ''
refuses "an --out that is not set, compared" 2 '--out: .*no name' compare "${small[@]}" --out=
refuses "keep it, and do not" 2 'no-out.*--out x' train "${small[@]}" --no-out --out x
check "neither kept anything" test ! -e runs -a ! -e x
refuses "resume nothing" 2 '--resume: .*no name' train --resume '' --no-out
refuses "resume no comparison" 2 '--resume: .*no name' compare --resume=
# OpenBLAS prints each choice of kernels as "Core: NAME" when it is loaded.
cores() { env -u OPENBLAS_CORETYPE -u ABAR_ISA OPENBLAS_VERBOSE=2 "$@" "$abar" models 2>&1 | sed -n 's/^Core: //p'; }
if [[ -z $(cores) ]]; then
    skip "this OpenBLAS does not say which kernels it uses"
else
    best=$("$root/tools/with-isa" --list | tail -1)
    check "kernels of OpenBLAS are no older than the processor" \
        bash -c "[[ $best == baseline || ! '$(cores | tail -1)' =~ ^(Prescott|Core2|Nehalem|Barcelona|Sandybridge|Generic)$ ]]"
    check "kernels that were asked for are used, at once" test "$(cores OPENBLAS_CORETYPE=Prescott)" = Prescott
    check "with ABAR_ISA the choice is OpenBLAS's own" test "$(cores ABAR_ISA=baseline | wc -l)" = 1
fi

# libgomp prints its settings when it is loaded.
spins() { env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose "$@" "$abar" models 2>&1 | sed -n "s/.*GOMP_SPINCOUNT = '\\(.*\\)'/\\1/p"; }
if [[ -z $(spins) ]]; then
    skip "this OpenMP runtime does not say how long its threads spin"
else
    check "waiting threads sleep soon" test "$(spins | tail -1)" = 3000
    check "a number of spins that was asked for is used" test "$(spins GOMP_SPINCOUNT=77 | sort -u)" = 77
    check "so is a policy" test "$(spins OMP_WAIT_POLICY=passive | sort -u)" = 0
fi
finish
