#!/usr/bin/env bash
# --validation on the command line: names in the output and in the files, eval on either part, what is refused; bench/search-rate.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
held=(--model lenet5 --data synthetic --limit-train 500 --batch 32 --epochs 2 --threads 1 --validation 0.1)

# --- train ---
succeeds "train with a validation part" train "${held[@]}" --out run
check "the beginning counts it" says '^validation: 50 of 500 training images; the test set is not used'
check "epochs name it" test "$(grep -cE '^epoch [12]/2 .* validation +[0-9.]+ %' stdout)" = 2
check "the end names it" says '^Validation accuracy [0-9.]+ %'
check "no line speaks of test numbers" bash -c '! grep -qiE "test (accuracy|loss)|  test " stdout'
check "no line of the log speaks of test numbers" bash -c '! grep -q test_ run/log.jsonl'
check "the log names it" test "$(grep -c '"validation_loss": .*"validation_acc": ' run/log.jsonl)" = 2
check "the settings have it" grep -q '"validation": 0.1, "validation-seed": 0' run/config.json
run train "${held[@]}" --no-out --json
check "--json counts the parts" says '"train_samples": 450, "validation_samples": 50'
check "--json names it" says '"validation_acc": [0-9]'
check "--json has no test numbers" bash -c '! grep -q "\"test_" stdout'
run train "${small[@]}" --no-out --json
check "--json counts a test part" says '"train_samples": 512, "test_samples": 128'

# --- eval ---
accuracy=$(tail -1 run/log.jsonl | sed -nE 's/.*"validation_acc": ([0-9.]+).*/\1/p')
succeeds "eval is on the test set" eval --checkpoint run
check "eval says so" says 'test accuracy [0-9.]+ %, loss [0-9.]+, 1,024 images'
succeeds "eval on the validation part" eval --checkpoint run --split validation
check "eval names it" says 'validation accuracy [0-9.]+ %, loss [0-9.]+, 50 images'
run eval --checkpoint run/model.safetensors --split validation --json
check "eval agrees with training" test "$(sed -nE 's/.*"validation_acc": ([0-9.]+).*/\1/p' stdout | cut -c1-8)" = "${accuracy:0:8}"
succeeds "eval writes logits of it" eval --checkpoint run --split validation --logits 10:logits.safetensors
check "eval names them" says 'logits of the first 10 validation images'
succeeds "train without it" train "${small[@]}" --out plain
refuses "a part that a run does not have" 2 '--split validation: plain does not belong to a run with --validation' eval --checkpoint plain --split validation
refuses "a limit that changes the part" 2 '--limit-train: would change what the run held out' eval --checkpoint run --split validation --limit-train 100

# --- resume ---
refuses "another part" 2 '--validation 0.2: the run to resume was made with 0.1' train --resume run --validation 0.2
refuses "another draw" 2 '--validation-seed 1: the run to resume was made with 0' train --resume run --validation-seed 1
succeeds "the same part" train --resume run --validation 0.1 --epochs 3 --quiet
check "the log goes on" test "$(grep -c validation_acc run/log.jsonl)" = 3

# --- compare ---
succeeds "compare on a validation part" compare --optim sgd,mac --seeds 2 "${held[@]}" --out both
check "a line per run names it" test "$(grep -cE '^\[[1-4]/4\] .* validation +[0-9.]+ %' stdout)" = 4
check "the table names it" says '^optimizer +validation acc %'
check "the CSV names it" grep -q '^optim,seed,epoch,train_loss,train_acc,validation_loss,validation_acc,' both/compare.csv
check "the page names it" grep -q '^| optimizer | runs | validation accuracy, % | best, % |' both/compare.md
check "the page says what it is" grep -q 'the test set was not used' both/compare.md
check "the picture names it" grep -q 'Validation accuracy, %' both/compare.svg
check "the picture has no test accuracy" bash -c '! grep -q "Test accuracy" both/compare.svg'
refuses "one part for each" 2 '--validation: 0.1 for sgd but 0.2 for mac' compare --optim sgd,mac "${held[@]}" --mac.validation 0.2 --out other
refuses "a resumed comparison keeps it" 2 'keeps its settings' compare --resume both --validation 0.2

# --- texts ---
for ((i = 0; i < 200; i++)); do echo "the quick brown fox $i jumps over the lazy dog"; done >text
text=(--model gpt-char --data text:text --layers 1 --heads 2 --width 16 --context 16 --batch 8 --epochs 1 --epoch-steps 5 --threads 1)
succeeds "train on a text" train "${text[@]}" --validation 0.1 --out words
check "the beginning counts its end" says '^validation: the last [0-9,]+ of [0-9,]+ training tokens; the test set is not used'
check "the epoch names its loss" says '^epoch 1/1 .* validation [0-9.]+ '
check "the end names its loss" says '^Validation loss [0-9.]+'
check "the log has its perplexity" grep -q '"validation_ppl": .*"validation_bpc": ' words/log.jsonl
succeeds "eval of a text's validation part" eval --checkpoint words --split validation
check "eval names its loss" says 'validation loss [0-9.]+, perplexity'
refuses "a text is not drawn from" 2 'the end of a text is held out' train "${text[@]}" --validation 0.1 --validation-seed 1 --no-out
refuses "a part without a window" 2 'its validation part has [0-9]+ characters' train "${text[@]}" --validation 0.001 --no-out

# --- analyze: the training part alone, or the test set ---
run analyze spectra --checkpoint run --samples 451 --out analysis
check "analyze has the training part" grep -q 'training part of synthetic has 450' stderr
run analyze spectra --checkpoint run --samples 1025 --split test --out analysis
check "analyze has the test set" grep -q 'test part of synthetic has 1024' stderr

# --- bench/search-rate ---
search() {
    ran="search-rate $*"
    MODEL=lenet5 DATA=synthetic EPOCHS=${EPOCHS-1} OPTIONS="--limit-train 500 --batch 32 --threads 1" "$root/bench/search-rate" "$abar" rates "$@" >stdout 2>stderr
    rc=$?
}
search "sgd: 0.1 0.01" "high=mac --damping 10: 0.1"
check "search-rate trains every rate" test $rc = 0 -a "$(grep -cE '^(sgd|high), lr [0-9.]+: validation accuracy' stdout)" = 3
check "search-rate prints a table" test "$(grep -cE '^(sgd|high) +0\.0?1 +[0-9.]+[ *] +[0-9.]+ +[0-9.]+$' stdout)" = 3
check "search-rate finds the best" test "$(grep -cE '^(sgd|high): best lr 0\.0?1' stdout)" = 2
check "search-rate keeps reports" test "$(find rates -name report.json | wc -l)" = 3
rm rates/sgd-lr0.1/report.json
search "sgd: 0.1 0.01 0.3" "high=mac --damping 10: 0.1"
check "search-rate goes on" test $rc = 0 -a "$(grep -cE '^sgd, lr 0\.[13]: validation accuracy' stdout)" = 2 -a "$(grep -c 'lr 0.01: val' stdout)" = 0
EPOCHS=2 search "sgd: 0.1"
check "search-rate does not mix settings" test $rc = 2 -a "$(grep -c 'made with other settings' stderr)" = 1
search "wild=sgd ${explode[*]:2}: 1e6 0.1"
check "search-rate tells a divergence" test $rc = 0 -a "$(grep -cE '^wild +1e6 +diverged$' stdout)" = 1
search "sgd --nonsense 1: 0.2"
check "search-rate ends on a mistake" test $rc = 2 -a "$(grep -c 'no such flag' stderr)" = 1

# --- refusals ---
for value in 0.5 1 -1 nan; do
    refuses "--validation $value" 2 "--validation $value: .* give a value from 0 to 0.499" train --data synthetic --validation $value --no-out
done
refuses "--validation 1e-9" 2 '--validation 1e-09: holds out none of the 8192 training samples, choose more' train --data synthetic --validation 1e-9 --no-out
refuses "--validation 1e-9 of a comparison" 2 '--validation 1e-09: holds out none' compare --data synthetic --validation 1e-9 --out none
refuses "less than a batch" 2 '--batch 128: more than the 126 training samples that --validation leaves' train --data synthetic --limit-train 140 --validation 0.1 --no-out
no_effect='--limit-test: with --validation a part of the training set is measured, and what sweep and tune choose on all of the test set; leave it out, or give --validation 0$'
refuses "a limit without effect" 2 "$no_effect" train --data synthetic --limit-test 100 --validation 0.1 --no-out
refuses "a limit that a sweep's last test would not have" 2 "$no_effect" sweep --data synthetic --limit-test 100 --over lr=0.1,0.2 --optim sgd --out none
refuses "a limit that a tuning's last test would not have" 2 "$no_effect" tune --data synthetic --limit-test 100 --over lr=0.1,0.2 --optim sgd --out none
refuses "a seed without effect" 2 '--validation-seed: there is no validation part' train --data synthetic --validation-seed 1 --no-out
check "nothing was left behind" test ! -e none -a ! -e other
finish
