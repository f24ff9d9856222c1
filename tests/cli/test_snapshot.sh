#!/usr/bin/env bash
# --snapshot: weights kept after chosen epochs, that eval and analyze read, whatever stopped the run in between.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
flags=("${small[@]}" --epochs 4)
accuracy() { sed -nE 's/.*"test_acc": ?([0-9.]+).*/\1/p' "$work/stdout"; }

succeeds "a run with snapshots" train "${flags[@]}" --snapshot 0,1,4 --out run --quiet
check "there are as many as asked for" test "$(echo run/snapshots/*)" = "run/snapshots/epoch-0000.safetensors run/snapshots/epoch-0001.safetensors run/snapshots/epoch-0004.safetensors"
check "the last one is the export" cmp run/snapshots/epoch-0004.safetensors run/model.safetensors
check "they are weights only" bash -c '! grep -q optim run/snapshots/epoch-0001.safetensors'
succeeds "snapshots in any order" train "${flags[@]}" --snapshot 4,1,0 --out other --quiet
check "the order changes nothing" cmp run/snapshots/epoch-0001.safetensors other/snapshots/epoch-0001.safetensors
succeeds "a run of one epoch of the same schedule" train "${flags[@]}" --stop-after 1 --out one --quiet
check "the snapshot of an epoch is the export after it" cmp one/model.safetensors run/snapshots/epoch-0001.safetensors
succeeds "a run from the snapshot of the initial weights" train "${flags[@]}" --stop-after 1 --init run/snapshots/epoch-0000.safetensors --seed 0 --snapshot 0 --out again --quiet
check "which are those the run began with" cmp one/model.safetensors again/model.safetensors
check "and are its own snapshot" cmp run/snapshots/epoch-0000.safetensors again/snapshots/epoch-0000.safetensors
check "snapshots change no number" cmp run/model.safetensors <("$abar" train "${flags[@]}" --out plain --quiet && cat plain/model.safetensors)

succeeds "eval of the last snapshot" eval --checkpoint run/snapshots/epoch-0004.safetensors --json
last=$(accuracy)
succeeds "eval of the run" eval --checkpoint run --json
check "eval reads them" test -n "$last" -a "$last" = "$(accuracy)"
succeeds "eval by model and data" eval --checkpoint run/snapshots/epoch-0000.safetensors --model lenet5 --data synthetic --json

for list in '1,' ',1' '1,,2' a 1.5 -1 '0 1' 0x1 99999999; do
    refuses "a bad list: '$list'" 2 '--snapshot .*not a list of epochs' train "${flags[@]}" --snapshot "$list" --out bad
done
refuses "an epoch beyond the end" 2 '--snapshot 0,5.*--epochs 4' train "${flags[@]}" --snapshot 0,5 --out bad
refuses "no folder to keep them in" 2 '--snapshot.*--out' train "${flags[@]}" --snapshot 1 --no-out
check "what was refused left nothing" test ! -e bad
run train --help
check "help tells" says '--snapshot'

# --- resuming ---
succeeds "stopped after an epoch" train "${flags[@]}" --snapshot 0,1,4 --stop-after 1 --out resumed --quiet
succeeds "and resumed" train --resume resumed --quiet
for epoch in 0000 0001 0004; do
    check "snapshot $epoch of a resumed run" cmp run/snapshots/epoch-$epoch.safetensors resumed/snapshots/epoch-$epoch.safetensors
done
succeeds "a run that stands after an epoch" train "${flags[@]}" --stop-after 1 --out later --quiet
succeeds "gets snapshots when it is resumed" train --resume later --snapshot 1,2 --quiet
check "of the epoch it stood at, too" cmp run/snapshots/epoch-0001.safetensors later/snapshots/epoch-0001.safetensors
run train --resume later --epochs 5 --snapshot 3,5
check "an epoch that is past is told" grep -q 'past epoch 3' stderr
check "and the others are made" test -s later/snapshots/epoch-0005.safetensors

# --- kill -9 ---
RANDOM=${SEED:-$$}
long=(--model lenet5 --data synthetic --limit-train 2048 --limit-test 128 --batch 64 --epochs 8 --threads 1 --checkpoint-every 5
    --snapshot '0,1,2,3,4,5,6,7,8' --quiet)
start=$(date +%s%N)
succeeds "left alone" train "${long[@]}" --out alone
lasts=$((($(date +%s%N) - start) / 1000000)) # ms
"$abar" train "${long[@]}" --out killed &
for _ in {1..6}; do
    sleep "$(awk "BEGIN { print (0.05 + $RANDOM / 32768 * $lasts / 6000) }")"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    if [[ -e killed/config.json ]]; then
        "$abar" train --resume killed --quiet &
    else
        "$abar" train "${long[@]}" --out killed &
    fi
done
wait $!
rc=$?
check "the last resume ends well" test $rc = 0
for epoch in 0 1 2 3 4 5 6 7 8; do
    check "snapshot $epoch after kill -9" cmp alone/snapshots/epoch-000$epoch.safetensors killed/snapshots/epoch-000$epoch.safetensors
done
finish
