#!/usr/bin/env bash
# Standard streams that are closed: what is printed must not end up in the files of a run.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

# closed STREAMS COMMAND...: runs with these of the streams 0, 1 and 2 closed; sets rc.
closed() {
    local streams=$1
    shift
    ran="abar $* with streams $streams closed"
    : >stdout
    : >stderr
    (
        exec </dev/null >"$work/stdout" 2>"$work/stderr"
        [[ $streams == *0* ]] && exec <&-
        [[ $streams == *1* ]] && exec >&-
        [[ $streams == *2* ]] && exec 2>&-
        exec "$abar" "$@"
    )
    rc=$?
}
# What a run keeps, without what differs from run to run.
kept() {
    sed -E 's/"[a-z_]*(seconds|per_second|time)[a-z_]*": ?[0-9.e+-]+,?//g' "$1/log.jsonl"
    sed -E 's/"out": "[^"]*"//' "$1/config.json"
    wc -c <"$1/.lock"
    cksum <"$1/model.safetensors"
    LC_ALL=C ls -A "$1" | sed 's/tfevents.*//'
}

succeeds "all streams open" train "${small[@]}" --out open
for streams in 0 1 2 01 02 12 012; do
    closed $streams train "${small[@]}" --out "closed-$streams"
    check "streams $streams closed: trains" test $rc = 0
    check "streams $streams closed: the run keeps what it keeps otherwise" cmp <(kept open) <(kept closed-$streams)
    closed $streams train --resume closed-$streams --epochs 3
    check "streams $streams closed: goes on" test $rc = 0
    closed $streams train --resume nowhere
    check "streams $streams closed: a failure is one" test $rc = 1
done
two=(--model mlp --widths 784-8-10 --data synthetic --limit-train 64 --limit-test 32 --batch 16 --epochs 1 --threads 1)
closed 012 compare "${two[@]}" --optim sgd,adamw --jobs 2 --out compared
check "a comparison without streams" test $rc = 0
check "its files are its own" bash -c "grep -q '^{\"abar\".*}\$' compared/compare.json && head -c 6 compared/compare.csv | grep -q optim, && [[ ! -s compared/.lock ]]"
finish
