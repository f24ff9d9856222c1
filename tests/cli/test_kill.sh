#!/usr/bin/env bash
# kill -9 at ten random moments, resumed every time, ends in the very same bytes as a run left alone.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
SEED=${SEED:-$$}
RANDOM=$SEED
echo "SEED=$SEED repeats the moments"
flags=(--model lenet5 --data synthetic --limit-train 4096 --limit-test 512 --batch 64 --epochs 12 --threads 1
    --checkpoint-every 7 --quiet)

start=$(date +%s%N)
succeeds "left alone" train "${flags[@]}" --out alone
lasts=$((($(date +%s%N) - start) / 1000000)) # ms
mkdir killed
"$abar" train "${flags[@]}" --out killed/run &
kills=0
for _ in {1..10}; do
    sleep "$(awk "BEGIN { print $RANDOM / 32768 * $lasts / 8000 }")" # ten of them: less than the whole, on any machine
    kill -9 $! 2>/dev/null && kills=$((kills + 1))
    wait $! 2>/dev/null
    if [[ -e killed/run/config.json ]]; then
        "$abar" train --resume killed/run --quiet &
    else
        "$abar" train "${flags[@]}" --out killed/run &
    fi
done
wait $!
rc=$?
echo "killed $kills times; alone it takes $lasts ms"
check "the last resume ends well" test $rc = 0
check "it was killed again and again" test $kills -ge 8
check "the weights are the same bytes" cmp alone/model.safetensors killed/run/model.safetensors
lines() { sed -E 's/"[a-z_]*(seconds|per_second|time)[a-z_]*": ?[0-9.e+-]+,?//g' "$1"; }
check "the logs are there" test -s alone/log.jsonl -a -s killed/run/log.jsonl
check "the logs have the same lines" cmp <(lines alone/log.jsonl) <(lines killed/run/log.jsonl)
finish
