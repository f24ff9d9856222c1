#!/usr/bin/env bash
# Wrong commands end at once: one line, before data are read or anything is trained, and no folder is left behind.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
deep=(--model mlp --widths 784-16-10 --data synthetic --limit-train 256 --batch 32 --epochs 2 --threads 1)
flat=(--model mlp --widths 784-10 --data synthetic --limit-train 256 --batch 32 --epochs 2 --threads 1) # no hidden matrix
succeeds "a run" train "${deep[@]}" --quiet --out there
printf 'no weights, and long enough for a header' >text
printf '#!/bin/sh\nulimit -t 5\nexec "%s" "$@"\n' "$abar" >brief # ended after 5 seconds of work
chmod +x brief
before=$(ls)

# --- the optimizer on the network ---
none='optimizer muon: takes none of the parameters'
refuses "compare: muon without hidden matrices" 2 "$none" compare "${flat[@]}" --optim sgd,muon
refuses "the same side by side" 2 "$none" compare "${flat[@]}" --optim sgd,muon --jobs 2
refuses "sweep" 2 "$none" sweep "${flat[@]}" --optim sgd,muon --over lr=0.1,0.2
refuses "tune" 2 "$none" tune "${flat[@]}" --optim sgd,muon --over lr=0.1,0.2 --trials 2
refuses "train" 2 "$none" train "${flat[@]}" --optim muon
refuses "bench" 2 "$none" bench --model mlp --widths 784-10 --data synthetic --optim muon
refuses "models" 2 "$none" models --model mlp --widths 784-10 --data synthetic --optim muon
refuses "a part of a comparison" 2 "$none" compare "${flat[@]}" --optim sgd,muon --seeds 2 --part 2/2
run compare "${flat[@]}" --optim sgd,muon --json
check "with --json the error is an object" bash -c "[[ $rc == 2 ]] && grep -q '^{\"error\": \"$none.*\"status\": 2}$' stdout"
refuses "a method on a rule that takes none" 2 'mac.adahessian' compare "${deep[@]}" --optim sgd,mac+adahessian

# --- names in options ---
refuses "compare: a layer that is not there" 2 '--mac.skip-layers nope: fits no layer' compare "${deep[@]}" --optim sgd,mac --mac.skip-layers nope
refuses "a parameter that is not there" 2 '--muon.muon-take nope: fits no' compare "${deep[@]}" --optim sgd,muon --muon.muon-take nope
refuses "sweep: a layer" 2 '--skip-layers nope: fits no layer' sweep "${deep[@]}" --optim mac --over skip-layers=fc1,nope
refuses "tune: a layer" 2 '--skip-layers nope: fits no layer' tune "${deep[@]}" --optim mac --over skip-layers=fc1,nope --trials 2

# --- the network and its samples ---
refuses "sweep: widths" 2 '--widths 784-5: the data need' sweep "${deep[@]}" --optim sgd --over widths=784-16-10,784-5
refuses "sweep: a batch" 2 '--batch 240: more than the 230 training samples' sweep "${deep[@]}" --optim sgd --over batch=32,240
refuses "tune: a batch" 2 '--batch 240: more than the 230 training samples' tune "${deep[@]}" --optim sgd --over batch=32,240 --trials 2
# before 5000 images of 224 x 224 are made
abar=$PWD/brief refuses "train: heads" 2 '7 heads do not divide a width of 192' train --model deit-tiny --data synthetic --heads 7 --threads 1
abar=$PWD/brief refuses "train: a patch" 2 '--patch 5: does not divide' train --model deit-tiny --data synthetic --patch 5 --threads 1

# --- weights to begin with ---
refuses "train: no file" 1 '^abar: nope.safetensors: no such file' train "${deep[@]}" --init nope.safetensors
refuses "train: a file of another kind" 1 '^abar: text: .*no safetensors file' train "${deep[@]}" --init text
refuses "train: weights of another model" 1 'is it of another model' train "${flat[@]}" --init there/model.safetensors --out new
refuses "compare: no file" 1 '^abar: nope.safetensors: no such file' compare "${deep[@]}" --init nope.safetensors
refuses "compare: weights of another model" 1 'is it of another model' compare "${flat[@]}" --init there/model.safetensors --out new
refuses "compare: weights of another shape" 1 'has shape .*is it of another model' compare "${deep[@]}" --widths 784-17-10 \
    --init there/model.safetensors --out new
refuses "sweep: no file" 1 '^abar: nope.safetensors: no such file' sweep "${deep[@]}" --optim sgd \
    --over init=there/model.safetensors,nope.safetensors

# --- folders and data ---
refuses "train: a folder in use" 2 'there: already holds a run' train --model deit-tiny --data synthetic --out there
refuses "compare: no data" 1 'fashion-mnist: there is no folder' compare --data fashion-mnist:nope
refuses "compare: no images" 1 'imagefolder: there is no folder' compare --model deit-tiny --data imagefolder:nope
refuses "sweep: no text" 1 'text: there is no file' sweep --model gpt-char --data text:nope --over lr=0.1,0.2
check "nothing is left behind" test "$(ls)" = "$before"

# --- what is right ---
succeeds "weights of the same model" compare "${deep[@]}" --init there/model.safetensors --quiet --out fine
succeeds "weights of a checkpoint" train "${deep[@]}" --init there/state.safetensors --quiet --no-out
for _ in {1..20}; do echo 'the quick brown fox jumps over the lazy dog'; done >fox.txt
words=(--model gpt-char --data text:fox.txt --layers 1 --width 16 --heads 2 --context 16 --batch 4 --epochs 1 --epoch-steps 5 --threads 1)
succeeds "a run on a text" train "${words[@]}" --quiet --out words
succeeds "weights with its vocabulary" train "${words[@]}" --init words/model.safetensors --quiet --no-out
succeeds "the same, compared" compare "${words[@]}" --optim adamw,mac --init words/model.safetensors --quiet --out compared
refuses "no weights for one of two" 1 '^abar: nope: no such file' sweep "${words[@]}" --optim adamw --quiet \
    --over init=words/model.safetensors,nope
succeeds "a part is checked alone" compare "${flat[@]}" --optim sgd,muon --part 1/2 --quiet --out part
finish
