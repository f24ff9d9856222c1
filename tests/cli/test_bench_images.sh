#!/usr/bin/env bash
# abar bench on a folder of images: rates of the loader, and whether a model waits for it.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=images.sh
source "$tests/cli/images.sh"

image_set good
set=(bench --data imagefolder:good --batch 2 --seconds 0.1)
succeeds "rates" "${set[@]}" --workers 1,2
check "a table with a row per number of workers" test "$(grep -cE '^ +(workers +read +decode, crop, resize|[12] +[0-9,]+ +[0-9,]+)' "$work/stdout")" = 3
check "files are warm, and it says so" says 'files in +memory|files in$'
check "batches are timed as the workers make them" says '^  workers .* loader +normalised'
check "and it says what that is" says '^loader: images of whole batches'
check "no step is timed" test "$(grep -c 'step' "$work/stdout")" = 0
succeeds "rates as JSON" "${set[@]}" --workers 1 --json
check "one object" one_json_object
check "its rates" says '"loader": \[\{"workers": 1, "read": [0-9.e+]+, "view": [0-9.e+]+, "policy": ([0-9.e+]+|null), "images_per_second": [0-9.e+]+, "images_per_cpu_second": [0-9.e+]+, "loader_per_second": [0-9.e+]+\}\]'
succeeds "the number of workers may be left out" "${set[@]}"
succeeds "so may the batch, of fewer images than the recipe's" bench --data imagefolder:good --seconds 0.1 --workers 1 --json
check "it is one that fits" says '"batch": 4,'
succeeds "and of a part of them" bench --data imagefolder:good --seconds 0.1 --workers 1 --limit-train 3 --json
check "one that fits the part" says '"batch": 2,'

model=(--model mlp --steps 3 --warmup-steps 1 --threads 1)
succeeds "with a model and a profile" "${set[@]}" "${model[@]}" --workers 1 --profile
check "its step" says 'step on a batch in place +[0-9.]+ ms +[0-9,]+ images/s'
check "training" says 'training, 1 worker +[0-9.]+ ms +[0-9,]+ images/s'
check "which is waited for, in per cent" says 'training is bound by (the step|data)'
check "the time waited for data in the profile" says 'waited for data, 1 worker: [0-9.]+ us'
succeeds "with a model, as JSON" "${set[@]}" "${model[@]}" --workers 1 --json
check "one object for it" one_json_object
check "the verdict" says '"ms_median": .*"ms_trained": [0-9.e-]+, "ms_waited": [0-9.e-]+, "trained_per_second": .*"bound_by": "(data|step)"'

refuses "no such folder" 1 'nowhere' bench --data imagefolder:nowhere
refuses "zero workers" 2 '--workers 0' "${set[@]}" --workers 0
refuses "a list with a hole" 2 '--workers 1,,2' "${set[@]}" --workers 1,,2
refuses "a list that ends in a comma" 2 '--workers 1,' "${set[@]}" --workers 1,
refuses "a word" 2 '--workers many' "${set[@]}" --workers many
refuses "a batch larger than the set" 2 '--batch' bench --data imagefolder:good --batch 512 --workers 1
refuses "a profile without a model" 2 '--profile' "${set[@]}" --profile
refuses "workers of data in memory" 2 '--workers: is for folders of images' bench --data synthetic --workers 2
refuses "seconds of data in memory" 2 '--seconds: is for folders of images' bench --data synthetic --seconds 2
: >good/train/cat/0.jpg && : >good/train/cat/1.jpg && : >good/train/cat/2.jpg
: >good/train/dog/0.jpg && : >good/train/dog/1.jpg && : >good/train/dog/2.jpg
refuses "damaged images" 1 'good/train/.*: ' "${set[@]}" --workers 1

finish
