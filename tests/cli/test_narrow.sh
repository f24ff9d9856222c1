#!/usr/bin/env bash
# A window of 40 columns: no line is broken inside a word but those of commands to paste, which must stay one line.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
script -qec true /dev/null >/dev/null 2>&1 </dev/null || { skip "script(1) cannot make a terminal here" && finish; }
mkdir bin && ln -s "$abar" bin/abar && PATH=$work/bin:$PATH

# narrow ARGUMENTS...: abar in a window of 40 columns, what it showed in stdout, without colours.
narrow() {
    ran="abar $* in 40 columns"
    TERM=xterm script -qec "stty cols ${columns-40}; abar $*" raw >/dev/null </dev/null
    sed -e '1d' -e '/^Script done/d' -e 's/\r$//' -e 's/.*\r//' -e $'s/\033\\[[0-9;]*[mK]//g' -e $'s/\302\261/+/g' raw >stdout
}
# fits NAME ARGUMENTS...: a case.
fits() {
    local name=$1
    shift
    narrow "$@"
    check "$name" test -s stdout
    check "$name fits" awk 'length > 40 && !/^  abar / { exit 1 }' stdout
}

tiny=(--model mlp --widths 784-8-10 --data synthetic --limit-train 64 --limit-test 32 --batch 16 --epochs 2 --threads 1)
fits "the overview" ''
for command in train compare sweep tune runs report serve eval sample bench models data optimizers analyze; do fits "$command --help" $command --help; done
fits "data" data
check "where data are is readable" says '^      found in|^      always there'
fits "one data set" data --data synthetic
fits "models" models
check "a summary is below its model" says '^  LeNet-5, two'
fits "one model" models --model lenet5 --optim mac
check "parameters are shown" says '^total +61,706$'
fits "the rules of parameters" models --model lenet5 --optim mac+muon
check "every parameter has its rule" says "^  conv2.weight +muon"
columns=28 narrow models --model gpt2 --layers 1 --width 16 --heads 2 --context 8 --device ref
check "of names that are too long the end is shown" says '^\.\.[a-z.0]*\.mlp\.c_fc +1,088$'
fits "optimizers" optimizers
fits "a training" train "${tiny[@]}" --out run
check "an epoch shows what counts" says '^epoch 2/2  .*test +[0-9.]+ %'
fits "nothing left to do" train --resume run
fits "a test" eval --checkpoint run --logits 3:logits.safetensors
fits "a comparison" compare "${tiny[@]}" --optim sgd,adamw --seeds 2 --out compared
check "a run shows what counts" says '^\[1/4\] sgd +seed 0  test'
check "the table has means" says '^sgd .* \+-? '
fits "a comparison with a failure" compare "${tiny[@]}" --epochs 5 --optim sgd,bad=sgd --bad.lr 1e6 --bad.weight-decay 1 --bad.schedule constant --out failed
check "the failure is counted" says '^bad .* 1 of 1$'
fits "a long label" compare "${tiny[@]}" --optim a-label-of-thirty-one-character=mac,sgd --out labelled
check "settings are below a long label" says '^      lr 0\.'
fits "side by side" compare "${tiny[@]}" --optim sgd,adamw --jobs 2 --out beside
fits "a benchmark" bench --model lenet5 --batch 8 --steps 3 --threads 1 --profile --optim mac
fits "a sweep" sweep "${tiny[@]/--limit-test/--limit-train}" --optim sgd,mac --over lr=0.01,0.1 --out swept
check "a label that is cut shows its value" says '^\[[12]/4\] \.\.[a-z=]*0\.01  seed 0  '
check "a value that is cut is told from the others" says '^\[[12]/4\] \.\.[a-z=]*=0\.1  *seed 0  '
check "the table has what is tested" says '^optimizer +best at +test acc %$'
fits "a tuning" tune "${tiny[@]/--limit-test/--limit-train}" --optim sgd,mac --over lr=0.01:0.1 --trials 3 --seeds 2 --out tuned
check "a verdict is short" says '^  sgd - mac .*told apart$'
run train "${tiny[@]}" --epochs 1 --optim mac+adamw --out listed/alone
run compare "${tiny[@]}" --epochs 1 --optim sgd,adamw,mac,nadamw,foof,kfac,eva --out listed/compared
columns=80 narrow runs listed
check "a long list is cut, no column is left out for it" says '^folder  .* model .* optim .* epochs '
check "its beginning is shown" says '^listed/compared +comparison +mlp +sgd,ad[a-z,]*\.\. +7/7 runs '
check "an optimizer alone is not cut" says '^listed/alone +run +mlp +mac\+adamw +1/1 '
check "the table fits 80 columns" awk 'length > 80 { exit 1 }' stdout
columns=200 narrow runs listed
check "where there is space the list is whole" says ' sgd,adamw,mac,nadamw,foof,kfac,eva  '
fits "a long list" runs listed
fits "a mistake" train --modle lenet5
fits "a failure" train --resume nowhere
finish
