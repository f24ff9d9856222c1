#!/usr/bin/env bash
# Text models: what train, eval and data print for them; sample, its repeatability and its errors.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

for _ in {1..60}; do printf 'abcdefg hij. '; done >text
tiny=(--model gpt-char --data text:text --layers 1 --heads 2 --width 16 --context 8 --batch 4 --epoch-steps 40 --epochs 5
    --lr 0.01 --weight-decay 0 --device ref --optim adamw)

# --- training ---
succeeds "train on a text" train "${tiny[@]}" --out run
check "an epoch's line has perplexity and bits" says '^epoch 5/5  loss [0-9.]+  test [0-9.]+  ppl [0-9.]+  bpc [0-9.]+  '
check "an epoch's line counts tokens" says 'tok/s'
check "the end names the loss" says '^Test loss [0-9.]+ \(best [0-9.]+ in epoch [0-9]+\) after 5 epochs'
check "no line is too long" awk 'length > 80 && !/abar/ { exit 1 }' stdout
check "the end suggests to sample" says 'sample --checkpoint run'
check "the log has both numbers" test "$(grep -c '"test_ppl": [0-9.]*, "test_bpc": [0-9.]*' run/log.jsonl)" = 5
run train "${tiny[@]}" --epochs 1 --json --no-out
check "--json prints one object" one_json_object
check "--json has both numbers" says '"test_ppl": [0-9.]+, "test_bpc": [0-9.]+'
cp run/model.safetensors apart.safetensors
succeeds "eval of a run" eval --checkpoint run
check "eval says both numbers" bash -c "tr '\n' ' ' <stdout | grep -qE \
    'test loss [0-9.]+, perplexity [0-9.]+, [0-9.]+ bits per character, accuracy .* 72 tokens'"
check "eval's lines are not too long" awk 'length > 80 { exit 1 }' stdout
succeeds "eval of an export that lies elsewhere" eval --checkpoint apart.safetensors
refuses "logits in place of the weights" 2 'belongs to a run' eval --checkpoint run --logits 5:run/model.safetensors
succeeds "more logits than there are" eval --checkpoint run --logits 5000:logits.safetensors
check "logits are counted" says 'the first 9 test windows'
refuses "augmented text" 2 'augment.*leave it out' train "${tiny[@]}" --augment --no-out
run eval --checkpoint run --json
check "eval --json has both numbers" says '"test_ppl": [0-9.]+, "test_bpc": [0-9.]+'
succeeds "data of a text" data --data text:text
check "data counts characters" says '702 training and 78 test characters, 12 different'
succeeds "a model of text" models --model gpt-char --device ref
check "a model of text counts parameters" says '^total .* 10,745,088 '

# --- sampling ---
mv text elsewhere # sampling needs no data
succeeds "sample" sample --checkpoint run --prompt 'abc' --length 10 --temperature 0
check "what can follow in only one way does" test "$(cat stdout)" = 'abcdefg hij. '
check "a pipe gets the text alone" test "$(wc -c <stdout)" = 13
hot=(--length 100 --temperature 3)
succeeds "sample at random" sample --checkpoint run "${hot[@]}" --seed 7
cp stdout first
check "so many characters" test "$(wc -c <first)" = 100
succeeds "sample again" sample --checkpoint run/state.safetensors "${hot[@]}" --seed 7
check "a seed repeats" cmp -s stdout first
succeeds "sample with another seed" sample --checkpoint run "${hot[@]}" --seed 8
check "another seed, another text" bash -c '! cmp -s stdout first'
mkdir apart && cp run/model.safetensors apart/some.safetensors
succeeds "sample from an export alone" sample --checkpoint apart/some.safetensors --prompt abc --length 4 --temperature 0
check "an export alone knows its characters" test "$(cat stdout)" = 'abcdefg'
succeeds "sample nothing" sample --checkpoint run --length 0
check "nothing is nothing" test ! -s stdout

# --- mistakes ---
refuses "no checkpoint" 2 'checkpoint.*needed' sample
refuses "a checkpoint without its flag" 2 'did you mean --checkpoint run' sample run
refuses "a checkpoint by a misspelt flag" 2 'did you mean --checkpoint' sample --checkpont run
if [[ -e /dev/full ]]; then
    ran="sample >/dev/full"
    "$abar" sample --checkpoint run >/dev/full 2>stderr
    rc=$? && : >stdout
    check "a text that nobody can take" failed_well 1 'standard output: No space'
fi
refuses "a checkpoint that is not there" 1 'nowhere.*no such' sample --checkpoint nowhere
refuses "a file that is no checkpoint" 1 'elsewhere' sample --checkpoint elsewhere
mkdir empty
refuses "a folder without a run" 1 'empty.*holds no run' sample --checkpoint empty
refuses "a character the model does not know" 2 'prompt.*character x' sample --checkpoint run --prompt x
refuses "a character of several bytes" 2 'prompt.*U\+20AC' sample --checkpoint run --prompt 'a€'
refuses "a prompt that is no text" 2 'prompt.*UTF-8' sample --checkpoint run --prompt $'\xff'
refuses "a negative length" 2 'length' sample --checkpoint run --length -1
refuses "a setting of training" 2 'not a flag of abar sample' sample --checkpoint run --lr 1
"$abar" train "${small[@]}" --epochs 1 --quiet --out image >stdout 2>stderr
refuses "a model of images" 2 'lenet5.*makes no text' sample --checkpoint image
refuses "an export of a model of images" 1 'not a checkpoint' sample --checkpoint image/model.safetensors
refuses "a text that has gone" 1 'there is no file text' train "${tiny[@]}" --out out
refuses "no text at all" 1 'text:FILE' train --model gpt-char --device ref --no-out
refuses "images for a model of text" 2 'reads text' train --model gpt-char --data synthetic --no-out
refuses "a text for a model of images" 2 'reads images' train --model lenet5 --data text:elsewhere --no-out
printf '\377\376 is no UTF-8, whatever it may be' >binary
refuses "bytes that are no characters" 1 'binary: not UTF-8 at byte 0.*--text bytes' data --data text:binary
refuses "a text shorter than a window" 2 'test part has 78 characters.*--context' train "${tiny[@]}" --data text:elsewhere --context 100 --no-out
succeeds "bytes that are no characters, as bytes" data --data text:binary --text bytes
check "bytes are counted as such" says ' test bytes'
mkfifo pipe
refuses "a pipe without a writer" 1 'pipe: is a pipe' data --data text:pipe
truncate -s 3G huge
refuses "a text larger than memory should take" 1 'huge: has 3221225472 bytes, abar reads files of up to 2147483647' data --data text:huge
rm huge
: >none
refuses "an empty text" 1 'none: is empty' data --data text:none
check "nothing left behind" test ! -e out/state.safetensors
finish
