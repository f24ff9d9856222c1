#!/usr/bin/env bash
# Commands with an allocation failing at many positions, once or for good, whichever library asks. A command may end well, or
# with exit 1 and a line that names memory. It must not crash or hang, nor call a file damaged that is whole. Crashes inside
# a library that abar calls, before that returns to abar, are counted by themselves: nothing in abar can prevent them.
#
#     POSITIONS=N THREADS=N ONLY=NAME OUT=DIR bash tests/campaign/test_memory.sh build/abar tests
#
# POSITIONS: how many of each command, the first N/2 and N/2 spread geometrically over the rest [8]. THREADS: that compute [1].
# ONLY: this command alone. OUT: keeps the output of what went wrong, and of every crash.
# shellcheck source=../cli/lib.sh
source "$(dirname "$0")/../cli/lib.sh"
POSITIONS=${POSITIONS:-8} THREADS=${THREADS:-1}
OUT=${OUT:+$(realpath -m "$OUT")}
# A sanitizer brings an allocator of its own.
if grep -qa __asan_init "$abar" || grep -qa __tsan_init "$abar"; then
    echo "skipped: built with a sanitizer"
    exit 77
fi
shim=$work/fail_malloc.so
${CC:-cc} -O2 -shared -fPIC -o "$shim" "$tests/campaign/fail_malloc.c" || { echo "skipped: no C compiler"; exit 77; }
export OMP_NUM_THREADS=$THREADS ABAR_CACHE=off

for _ in {1..60}; do printf 'abcdefg hij. '; done >text
idx_set images
conv=(--model lenet5 --data fashion-mnist:images --batch 32 --threads "$THREADS")
gpt=(--model gpt-char --data text:text --layers 1 --heads 2 --width 16 --context 8 --batch 4 --epoch-steps 4 --threads "$THREADS")
succeeds "a run to resume" train "${conv[@]}" --optim mac --epochs 1 --out run --quiet
succeeds "a run of a text model" train "${gpt[@]}" --epochs 1 --out said --quiet
succeeds "a comparison to resume" compare "${conv[@]}" --optim sgd,mac --epochs 1 --out compared --quiet
check "a run that wants another epoch" cp -r run half

declare -A command=(
    [train]="train --model resnet20 --data synthetic --limit-train 8 --limit-test 4 --batch 4 --threads $THREADS --optim kfac --epochs 1 --out new --quiet"
    [train-ema]="train --model resnet20 --data synthetic --limit-train 8 --limit-test 4 --batch 4 --threads $THREADS --ema 0.9 --ema-steps 2 --label-smoothing 0.1 --epochs 1 --out new --quiet"
    [train-text]="train ${gpt[*]} --optim mac --epochs 1 --out new --quiet"
    [compare]="compare ${conv[*]} --optim sgd,mac --epochs 1 --out new --quiet"
    [compare-jobs]="compare ${conv[*]} --optim sgd,mac --jobs 2 --epochs 1 --out new --quiet"
    [compare-resume]="compare --resume compared --seeds 2 --quiet"
    [eval]="eval --checkpoint run"
    [sample]="sample --checkpoint said --length 4"
    [bench]="bench --model resnet20 --batch 2 --steps 2 --warmup-steps 1 --threads $THREADS --optim mac"
    [models]="models"
    [models-optim]="models --model resnet20 --optim mac --threads $THREADS"
    [optimizers]="optimizers --optim mac"
    [data]="data --data fashion-mnist:images"
    [resume]="train --resume half --epochs 2 --quiet"
    [sweep]="sweep ${conv[*]} --over lr=0.01,0.1 --optim mac --epochs 1 --out new --quiet"
    [tune]="tune ${conv[*]} --over lr=0.01:0.1:log --trials 3 --optim sgd --seeds 1 --epochs 3 --out new --quiet"
    [runs]="runs ."
    [report]="report . --out page.html"
)
# What a command writes to: made anew before each try.
declare -A changes=([train]=new [train-ema]=new [train-text]=new [compare]=new [compare-jobs]=new [compare-resume]=compared [resume]=half
    [sweep]=new [tune]=new)
mkdir whole && cp -r compared half whole/

restore() { # NAME
    local folder=${changes[$1]-}
    [[ $folder ]] || return 0
    rm -rf "$folder"
    if [[ -e whole/$folder ]]; then cp -r "whole/$folder" .; fi
}

damage='not JSON|not valid JSON|damaged|truncated|anew|fresh copy|not UTF-8|too short|ends .* early|another program'
# The innermost frame that is not the C or C++ runtime's or the shim's says who crashed. An exception that nobody catches ends in
# std::terminate right where it is thrown, and is ours: what throws is called through wrappers.
crash() {
    local at
    at=$(sed -nE 's/^frame ([^(]*)\(?.*/\1/p' stderr | grep -vE 'fail_malloc|libc\.so|libstdc\+\+|libgcc_s|ld-linux' | head -1)
    if grep -q '^frame .*__cxa_throw' stderr; then
        echo "signal $((rc - 128)), an exception that was not caught"
    elif [[ $at && $at != "$abar" ]]; then
        echo "crash inside ${at##*/}"
    else
        echo "signal $((rc - 128))"
    fi
}

verdict() { # of the last try
    if ((rc == 124 || rc == 137)); then
        echo hang
    elif ((rc >= 128)); then
        crash
    elif grep -qE "$damage" stdout stderr; then
        echo "calls a good file damaged"
    elif ((rc == 0)); then
        echo ended
    elif ((rc == 1)) && grep -qi memory stderr && [[ $(grep -c . stderr) == 1 ]]; then
        echo refused
    elif ((rc == 1 || rc == 3)) && grep -rq --include=report.json '"failure": "[^"]*memory' .; then # of a comparison: its table has the reason
        echo refused
    else
        echo "exit $rc without a word of memory"
    fi
}

# Whether what a command left behind can be used, or is nothing at all.
usable() { # NAME
    local folder=${changes[$1]-}
    case $1 in
    train | train-ema | train-text | resume)
        [[ ! -e $folder/config.json ]] || "$abar" train --resume "$folder" --quiet >stdout 2>stderr </dev/null
        ;;
    compare*)
        [[ ! -e $folder/compare.json ]] || "$abar" compare --resume "$folder" --quiet >stdout 2>stderr </dev/null
        ;;
    sweep | tune)
        [[ ! -e $folder/$1.json ]] || "$abar" "$1" --resume "$folder" --quiet >stdout 2>stderr </dev/null
        ;;
    esac
}

positions() { # CALLS: numbers from 1 to CALLS
    awk -v calls="$1" -v n="$POSITIONS" 'BEGIN {
        first = int(n / 2); if (first > calls) first = calls
        for (i = 1; i <= first; i++) print i
        last = first
        for (i = 1; i <= n - first; i++) {
            at = int(first * exp(log(calls / first) * i / (n - first)) + 0.5)
            if (at > last) print at
            last = at
        }
    }'
}

keep() { # NAME VERDICT
    if [[ $OUT ]]; then mkdir -p "$OUT" && { echo "$2: $ran" && cat stderr; } >"$OUT/$1"; fi
}

try() { # NAME VARIABLE POSITION
    local seen
    restore "$1"
    ran="$2=$3 LD_PRELOAD=fail_malloc.so abar ${command[$1]}"
    # shellcheck disable=SC2086
    { env "$2=$3" LD_PRELOAD="$shim" timeout -k 1 300 "$abar" ${command[$1]} >stdout 2>stderr </dev/null; } 2>/dev/null
    rc=$?
    seen=$(verdict)
    tally[$seen]=$((${tally[$seen]-0} + 1))
    if [[ $seen != ended && $seen != refused && $seen != crash\ inside* ]]; then
        fail "$1, $2=$3: $seen"
        keep "$1-$2-$3" "$seen"
    elif [[ $seen == crash* ]]; then
        pass
        keep "$1-$2-$3" "$seen"
    elif (($3 % 7 == 0)); then
        check "$1, $2=$3: what it leaves is good" usable "$1"
    else
        pass
    fi
}

# Where nothing can be mapped, oneDNN would write to a code buffer that it did not get: it must not be called.
for model in resnet20 mlp; do # convolutions, products alone
    # shellcheck disable=SC2086
    { FAIL_MAPS=1 LD_PRELOAD=$shim "$abar" ${command[bench]/resnet20/$model} >stdout 2>stderr </dev/null; } 2>/dev/null
    rc=$? ran="FAIL_MAPS=1 LD_PRELOAD=fail_malloc.so abar ${command[bench]/resnet20/$model}"
    seen=$(verdict)
    check "$model, nothing can be mapped: $seen" test "$seen" = refused -o "$seen" = ended
done

for name in train train-ema train-text compare compare-jobs compare-resume eval sample bench models models-optim optimizers data resume sweep tune runs report; do
    [[ ${ONLY-$name} == "$name" ]] || continue
    restore $name
    # shellcheck disable=SC2086
    FAIL_COUNT=$work/count LD_PRELOAD=$shim "$abar" ${command[$name]} >stdout 2>stderr </dev/null
    rc=$? ran="abar ${command[$name]}"
    check "$name without a failure" test $rc = 0
    calls=$(<count)
    declare -A tally=()
    for at in $(positions "$calls"); do
        try $name FAIL_AT "$at"
        try $name FAIL_FROM "$at"
    done
    echo "$name: $calls allocations;$(for seen in "${!tally[@]}"; do printf ' %s %d;' "$seen" "${tally[$seen]}"; done)"
    unset tally
done
finish
