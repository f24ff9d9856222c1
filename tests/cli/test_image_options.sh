#!/usr/bin/env bash
# Options of image folders and the average of the weights, as people type them.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
export ABAR_CACHE=$work/cache

# An image of 8 x 8 pixels, 32 times in each part.
image=iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAZ0lEQVR42hXOQREAQAjDwJWCFKQgBSlIQQpSbq7vThIIkqIZlvMXIVKUaDFixf2zDJmyZMuRK+8jVKhUpVqNWnUfrEOnLt169Or7OhMmTZk2Y9bcj7Bh05ZtO3bt/TQXLl25duPWnXtJxzgBBx9rugAAAABJRU5ErkJggg==
for class in train/a train/b val/a val/b; do
    mkdir -p "set/$class"
    for i in {01..16}; do base64 -d <<<"$image" >"set/$class/$i.png"; done
done
net=(--model resnet50 --blocks 1 --width 2 --data imagefolder:set --device cpu)
small=(--size 8 --test-resize 12 --test-size 12 --batch 8 --epochs 2 --warmup 0)

# --- help ---
succeeds "help on image folders" train "${net[@]}" --help
check "it has a group of its own" says '^Of image folders:'
check "it has the recipe's settings" says 'size N .*\[176\]'
check "it fits 80 columns" awk 'length > 80 { exit 1 }' stdout
check "it has one --classes, that of the folders" test "$(grep -c '^  --classes ' stdout)$(grep -c '^  --classes FILE' stdout)" = 11
succeeds "help on other data" train --model resnet50 --data synthetic --help
check "other data have no such group" bash -c '! grep -q "^Of image folders:" stdout'
check "other data have the model's own --classes" says 'classes N'

# --- running ---
succeeds "a run" train "${net[@]}" "${small[@]}" --ema 0.9 --ema-steps 2 --quiet --out run
check "the settings are kept" grep -q '"images": {"style": "torchvision", "size": 8' run/config.json
check "every epoch has the average's numbers" [ "$(grep -c '"ema_test_acc"' run/log.jsonl)" = 2 ]
check "the average is exported" test -s run/model_ema.safetensors
succeeds "a run that is told of" train "${net[@]}" "${small[@]}" --ema 0.9 --out told
check "it says how good the average is" says '^Average of the weights: accuracy'
succeeds "its export is tested" eval --checkpoint run
succeeds "the average's, too" eval "${net[@]}" --checkpoint run/model_ema.safetensors --test-resize 12 --test-size 12 --batch 8
succeeds "its memory" models "${net[@]}" --ema 0.9
check "its memory has the average" says '^  average '
succeeds "the layers of a net" models --model deit-tiny --depth 1 --data imagefolder:set --device cpu --size 48 --test-size 48
check "their shapes follow --size" says '^patch_embed.proj +conv2d +192 x 12 x 12 '
refuses "the layers for a set that is not there" 1 'there is no folder nowhere' models --model deit-tiny --data imagefolder:nowhere
printf 'b\na\n' >order.txt
succeeds "classes in another order" train "${net[@]}" "${small[@]}" --classes order.txt --quiet --out ordered
check "they are in the export" grep -q 'b\\", \\"a' ordered/model.safetensors
succeeds "a run shorter than the recipe's warm-up" train "${net[@]}" "${small[@]:0:8}" --epochs 1 --no-out
check "half of it is warm-up" says 'warmup 0\.5,'
succeeds "a run without warm-up" train "${net[@]}" "${small[@]}" --no-out
check "it does not mention any" bash -c '! grep -q warmup stdout'
check "nor other sizes" bash -c '! grep -q "makes them equal" stdout'
succeeds "tests on smaller images" train "${net[@]}" "${small[@]}" --size 16 --no-out
check "are mentioned" says '^test images have 12 pixels a side, training images 16: --test-size 16'

# --- refusing ---
refuses "a warm-up that was asked for" 2 '--warmup 3: longer than the run, --epochs 2' train "${net[@]}" "${small[@]}" --warmup 3 --no-out
refuses "an option on other data" 2 '--mixup: an option of image folders' train --model resnet20 --data synthetic --mixup 0.2
refuses "a crop larger than the image" 2 '--test-resize 8: less than --test-size 9' train "${net[@]}" --test-resize 8 --test-size 9 --no-out
refuses "a number in place of a file of classes" 1 '^abar: --classes 2: no such file' train "${net[@]}" "${small[@]}" --classes 2 --no-out
refuses "a missing file of labels" 1 '^abar: --val-labels none: no such file' train "${net[@]}" "${small[@]}" --val-labels none --no-out
refuses "a group that does not fit" 2 'give --mix-group 4' train "${net[@]}" "${small[@]}" --accumulate 2 --no-out
refuses "an average that begins later" 2 '--ema 0: the run to resume was made with 0.9' train --resume run --ema 0 --ema-steps 32
refuses "steps of no average" 2 '--ema-steps 8: there is no average' train --model mlp --data synthetic --ema-steps 8 --no-out
mv set/train/a/01.png set/train/a/00.png
refuses "other files" 2 'its files have changed since the checkpoint \(32 and 32 samples' train --resume run
succeeds "other files, accepted" train --resume run --epochs 3 --accept-data --quiet
finish
