#!/usr/bin/env bash
# kill -9 at random moments, resumed every time, ends in the very same bytes as a run left alone: for every optimizer, for a text
# model and for a comparison.
#
#     KILLS=N ONLY=NAME SEED=N bash tests/campaign/test_kill.sh build/abar tests
#
# KILLS: how many in all, shared among the cases, at least one each [26]. ONLY: this case alone. SEED: repeats the moments.
# shellcheck source=../cli/lib.sh
source "$(dirname "$0")/../cli/lib.sh"
KILLS=${KILLS:-26}
SEED=${SEED:-$$}
RANDOM=$SEED
echo "SEED=$SEED repeats the moments"

for _ in {1..60}; do printf 'abcdefg hij. '; done >text
images=(--model lenet5 --data synthetic --limit-train 1024 --limit-test 128 --batch 32 --epochs 3 --threads 1)
letters=(--model gpt-char --data "text:$work/text" --layers 1 --heads 2 --width 16 --context 8 --batch 4 --epoch-steps 40 --epochs 3
    --threads 1)
read -ra names <<<"$("$abar" optimizers --json |
    python3 -c "import json, sys; o = json.load(sys.stdin); print(*[x['name'] for x in o['rules'] + o['methods']])")"
names+=(mac+adamw text compare)

# begin NAME, go_on NAME: the command in words. The folder is "run" for all, since exports name it.
begin() {
    case $1 in
    text) words=(train "${letters[@]}" --optim mac --checkpoint-every 7) ;;
    mfac) words=(train "${images[@]}" --optim mfac --mfac-gradients 16 --checkpoint-every 5) ;;
    compare) words=(compare "${images[@]}" --epochs 1 --optim sgd,mac --seeds 2) ;;
    adahessian | sophia) words=(train "${images[@]}" --optim "$1" --hessian-every 3 --lr 1e-3 --checkpoint-every 5) ;;
    shampoo) words=(train "${images[@]}" --optim shampoo --shampoo-freq 3 --shampoo-block 64 --checkpoint-every 5) ;;
    soap) words=(train "${images[@]}" --optim soap --soap-freq 3 --max-dim 128 --checkpoint-every 5) ;;
    *) words=(train "${images[@]}" --optim "$1" --checkpoint-every 5) ;;
    esac
    words+=(--out run --quiet)
}
go_on() {
    words=(train --resume run --quiet)
    if [[ $1 == compare ]]; then words[0]=compare; fi
}
has_begun() { [[ -e run/config.json || -e run/compare.json ]]; }

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
lines() { sed -E 's/"[a-z_]*(seconds|per_second|time)[a-z_]*": ?[0-9.e+-]+,?//g' "$1"; }

# The killed run and the one left alone have the same weights and the same lines in their logs.
same() {
    local one other
    while read -r one; do
        other=killed${one#alone}
        cmp "$one" "$other" || return 1
        one=${one%model.safetensors}log.jsonl other=${other%model.safetensors}log.jsonl
        [[ -s $one ]] && cmp <(lines "$one") <(lines "$other") || return 1
    done < <(find alone -name model.safetensors)
    [[ $(find killed -name model.safetensors | wc -l) == $(find alone -name model.safetensors | wc -l) ]] &&
        ! find killed -name '*.tmp-*' | grep -q .
}

# One run, killed until it ends or has been killed often enough; then it is left alone.
round() { # NAME MOST
    local name=$1 most=$2 times=0
    rm -rf "$work/killed" && mkdir "$work/killed" && cd "$work/killed" || exit 1
    rc=137
    while ((rc == 137)); do
        if has_begun; then go_on "$name"; else begin "$name"; fi
        ran="abar ${words[*]}, killed $times times before"
        "$abar" "${words[@]}" >"$work/stdout" 2>"$work/stderr" </dev/null &
        if ((times < most)); then
            sleep "$(awk "BEGIN { print $RANDOM / 32768 * $lasts * 0.7 / 1000 }")"
            kill -9 $! 2>/dev/null
        fi
        { wait $!; } 2>/dev/null
        rc=$?
        if ((rc == 137)); then times=$((times + 1)); fi
    done
    cd "$work" || exit 1
    check "$name: the last resume ends well" test $rc = 0
    check "$name: killed $times times, the same bytes" same
    kills=$((kills + times))
}

all=0
for name in "${names[@]}"; do
    [[ ${ONLY-$name} == "$name" ]] || continue
    rm -rf "$work/alone" && mkdir "$work/alone" && cd "$work/alone" || exit 1
    begin "$name"
    start=$(milliseconds)
    succeeds "$name left alone" "${words[@]}"
    lasts=$(($(milliseconds) - start))
    share=$(((KILLS + ${#names[@]} - 1) / ${#names[@]})) kills=0 rounds=0
    if [[ ${ONLY-} ]]; then share=$KILLS; fi
    while ((kills < share && failed == 0 && rounds < 10 * share)); do
        round "$name" $((share - kills < 12 ? share - kills : 12))
        rounds=$((rounds + 1))
    done
    check "$name: was killed" test $kills -ge "$share"
    echo "$name: killed $kills times in $rounds runs; alone it takes $lasts ms"
    all=$((all + kills))
done
echo "killed $all times"
finish
