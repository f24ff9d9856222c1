#!/usr/bin/env bash
# Several ranks that train together, as people start them: --ranks, mpirun, and what torchrun sets. The weights have the same
# bits on any number of them.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1
job=(train --model lenet5 --data synthetic --limit-train 192 --limit-test 50 --batch 24 --micro 6 --epochs 2 --threads 1 --optim mac)

# --- one machine ---
succeeds "one rank" "${job[@]}" --out one
for n in 2 4; do
    succeeds "$n ranks" "${job[@]}" --ranks $n --out on$n
    check "$n ranks: the same weights" cmp one/model.safetensors on$n/model.safetensors
    check "$n ranks: rank 0 alone prints" test "$(grep -c '^Test accuracy' stdout)" = 1
    check "$n ranks: says so" says "^$n ranks.*micro-batches of 6"
done
succeeds "divided state" "${job[@]}" --optim adamw --ranks 2 --zero 1 --out zero
check "divided state: says how much rank 0 has" says '^2 ranks.*of the optimizer.s state on rank 0'
succeeds "divided state: the whole on one rank" train --resume zero --epochs 3 --quiet
succeeds "the default micro-batch" "${job[@]}" --micro 0 --ranks 4 --out default --quiet
check "the default micro-batch: batch / ranks" cmp one/model.safetensors default/model.safetensors
check "it is kept" grep -q '"micro": 6' default/config.json
succeeds "one JSON object" "${job[@]}" --ranks 2 --no-out --json
check "one JSON object: it is one" one_json_object
succeeds "a folder of its own" "${job[@]}" --ranks 3 --micro 4 --quiet
check "a folder of its own: one" test "$(find runs -mindepth 1 -maxdepth 1 | wc -l)" = 1

# --- what is refused, in one line ---
refuses "a misspelt flag" 2 'no such flag' "${job[@]}" --lrr 1 --ranks 3
refuses "ranks that do not divide" 2 '3 ranks: do not divide the 4 micro-batches' "${job[@]}" --ranks 3 --no-out
refuses "a method of the whole batch" 1 'optim ngd: needs the gradients of all examples in one process' train --optim ngd --ranks 2 --no-out
refuses "no number of ranks" 2 'ranks' "${job[@]}" --ranks 0 --no-out
refuses "no time" 2 'timeout' "${job[@]}" --ranks 2 --timeout 0 --no-out
refuses "no number of GPUs" 2 'gpus x: give a number from 1 to 254, or all' "${job[@]}" --gpus x --no-out
refuses "GPUs and ranks" 2 'leave --ranks out' "${job[@]}" --gpus all --ranks 2 --no-out
refuses "GPUs and another device" 2 'leave one of them out' "${job[@]}" --gpus all --device cpu --no-out
refuses "more GPUs than there are" 1 'gpus 200: (no CUDA GPU was found|this machine has [0-9]+)' "${job[@]}" --gpus 200 --no-out
refuses "NCCL between CPUs" 2 'transport nccl: is for GPUs' "${job[@]}" --device cpu --transport nccl --no-out
refuses "a folder with a run" 2 'already holds a run' "${job[@]}" --ranks 2 --out one

# --- stopping, dying, going on ---
long=(train --model lenet5 --data synthetic --limit-train 4096 --limit-test 50 --batch 24 --micro 2 --epochs 2 --threads 1 --optim mac --checkpoint-every 20)
# As failed_well, of a run that has printed.
failed_with_line() { [[ $rc == "$1" ]] && [[ $(wc -l <stderr) == 1 ]] && grep -qE -- "$2" stderr; }
# begin FOLDER FLAGS...: starts a run in the background and waits for its first checkpoint. Its process is $pid.
begin() {
    local folder=$1
    shift
    ran="abar ${long[*]} $*"
    "$abar" "${long[@]}" --out "$folder" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null &
    pid=$!
    appears "$folder/state.safetensors"
}
succeeds "a longer run" "${long[@]}" --out long --quiet
begin stopped --ranks 4
kill -TERM $pid
wait $pid
rc=$?
check "a signal to rank 0 stops all" test $rc = 143 -a ! -s stderr
check "it says how to go on" says 'train --resume stopped'
succeeds "going on with other ranks" train --resume stopped --ranks 3 --quiet
check "going on with other ranks: the same weights" cmp long/model.safetensors stopped/model.safetensors
begin asked --ranks 4
kill -TERM "$(pgrep -P $pid | tail -n 1)"
wait $pid
rc=$?
check "a signal to another rank stops all, which is no success" test $rc = 143 -a ! -s stderr
check "it says how to go on, too" says 'train --resume asked'
begin killed --ranks 4
victim=$(pgrep -P $pid | tail -n 1)
kill -KILL "$victim"
wait $pid
rc=$?
check "a rank that is killed ends the run, in one line that says how to go on" \
    failed_with_line 1 '^abar: rank [123] on .*: ended by signal 9 \(killed\); go on .* with: .*train --resume killed$'
check "no process is left" test -z "$(pgrep -P $pid)"
succeeds "going on with the ranks that are left" train --resume killed --ranks 2 --quiet
check "going on: the same weights" cmp long/model.safetensors killed/model.safetensors

"$abar" "${long[@]}" --checkpoint-every 0 --limit-train 60000 --epochs 9 --out early --ranks 2 >stdout 2>stderr </dev/null &
pid=$!
appears early/log.jsonl
kill -KILL "$(pgrep -P $pid | tail -n 1)"
wait $pid
rc=$?
check "a rank that is killed before there is a checkpoint" failed_with_line 1 '^abar: rank 1 on .*: ended by signal 9 \(killed\)$'

# --- rank 0 cannot write: it alone tells ---
limit=$(ulimit -S -f)
ulimit -S -f 100 # KiB
refuses "a checkpoint that does not fit" 1 'ulimit -f' "${job[@]}" --ranks 3 --micro 4 --out full --quiet
ulimit -S -f "$limit"

# --- ranks that cannot gather: one line ---
for rank in 0 1; do
    ran="abar train as rank $rank of two machines"
    RANK=$rank WORLD_SIZE=2 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29400 \
        "$abar" "${job[@]}" --no-out >stdout 2>stderr </dev/null
    rc=$?
    if [[ $rank == 0 ]]; then
        check "rank 0 tells that others cannot reach it" failed_with_line 2 'store: localhost is .*, which others cannot reach: set MASTER_ADDR'
    else
        check "another rank of its machine is silent" test $rc = 1 -a ! -s stderr -a ! -s stdout
    fi
done

# --- mpirun ---
for kind in openmpi mpich; do
    launcher=$(command -v mpirun.$kind)
    if [[ ! -e $(dirname "$abar")/libabar_mpi_$kind.so ]]; then
        skip "mpirun: abar was built without $kind"
        continue
    elif [[ -z $launcher ]]; then
        skip "mpirun: there is no mpirun.$kind"
        continue
    fi
    extra=()
    if [[ $kind == openmpi ]]; then extra=(--allow-run-as-root --oversubscribe); fi
    for n in 1 2 4; do
        ran="$launcher -np $n abar ${job[*]}"
        "$launcher" "${extra[@]}" -np $n "$abar" "${job[@]}" --out $kind$n >stdout 2>stderr </dev/null
        rc=$?
        check "$kind, $n ranks" succeeded
        check "$kind, $n ranks: the same weights" cmp one/model.safetensors $kind$n/model.safetensors
        check "$kind, $n ranks: rank 0 alone prints" test "$(grep -c '^Test accuracy' stdout)" = 1
    done
    ran="$launcher with two settings"
    "$launcher" "${extra[@]}" -np 1 "$abar" "${job[@]}" --no-out : -np 1 "$abar" "${job[@]}" --no-out --lr 0.01 >stdout 2>stderr </dev/null
    rc=$?
    check "$kind: other settings are named" test $rc != 0 -a "$(grep -c '^abar: rank 1 on .*: --lr is 0.01, on rank 0 it is' stderr)" = 1
done

# --- processes that are started one by one, with what torchrun sets ---
# together NAME_OF_VARIABLE VALUE FLAGS...: two ranks, the second with this variable. The output is rank 0's.
port=$((20000 + $$ * 37 % 12000)) # below those that the system gives to clients
together() {
    local variable=$1 value=$2
    shift 2
    while (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done # somebody listens there
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port++))
    ran="RANK=0 and RANK=1 abar $*"
    env RANK=1 LOCAL_RANK=1 "$variable=$value" "$abar" "$@" >other-stdout 2>other-stderr </dev/null &
    other=$!
    RANK=0 LOCAL_RANK=0 "$abar" "$@" >stdout 2>stderr </dev/null
    rc=$?
    wait $other
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
}
together NOTHING here "${job[@]}" --out store
check "two processes" succeeded
check "two processes: the same weights" cmp one/model.safetensors store/model.safetensors
check "two processes: rank 1 is silent" test ! -s other-stdout -a ! -s other-stderr
if [[ ${ABAR_ISA-} == baseline || $("$root/tools/with-isa" --list) == '' ]]; then
    skip "another instruction set: this machine has one"
else
    together ABAR_ISA baseline "${job[@]}" --no-out
    check "another instruction set is named" failed_well 2 'rank 1 on .*: the device is cpu: baseline.*, on rank 0 it is'
    check "rank 1 is silent" test ! -s other-stdout -a ! -s other-stderr
fi

# --- other commands ---
succeeds "one rank evaluates" eval --checkpoint one --json --threads 1
one=$(grep -oE '"test_(acc|loss)": [0-9.e-]+' stdout)
for n in 2 3; do
    succeeds "$n ranks evaluate" eval --checkpoint one --json --threads 1 --ranks $n
    check "$n ranks evaluate: the same result, once" test "$(grep -oE '"test_(acc|loss)": [0-9.e-]+' stdout)" = "$one"
done
refuses "weights that are not there" 1 'nothing: no such file or folder' eval --checkpoint nothing --ranks 2
together NOTHING here eval --checkpoint one --threads 1
check "two processes evaluate" succeeded
check "two processes evaluate: rank 1 is silent" test ! -s other-stdout -a ! -s other-stderr
succeeds "the time of ranks" bench --model lenet5 --batch 24 --steps 3 --warmup-steps 1 --threads 1 --ranks 2 --json
check "the time of ranks: one object" one_json_object
for key in '"ranks": 2' '"ms_exchange": ' '"bytes_per_step": ' '"ms_alone": ' '"speedup": '; do
    check "the time of ranks: $key" grep -q "$key" stdout
done
succeeds "the time of ranks in words" bench --model lenet5 --optim kfac --tcov 3 --batch 24 --steps 3 --warmup-steps 1 --threads 1 --ranks 2
check "in words: exchange" says '^  exchange .*ms .*rank 0 sends'
check "in words: one rank" says '^  one rank .*2 ranks are .* times as fast'
refuses "ranks that do not divide a bench" 2 'batch 24: is not a multiple of the 5 ranks' bench --model lenet5 --batch 24 --ranks 5
# --- comparisons: every run on all ranks ---
runs=(--model lenet5 --data synthetic --limit-train 96 --batch 24 --threads 1)
succeeds "a comparison" compare "${runs[@]}" --limit-test 50 --micro 6 --epochs 2 --optim sgd,kfac --out compare1 --quiet
succeeds "a comparison on 2 ranks" compare "${runs[@]}" --limit-test 50 --micro 6 --epochs 2 --optim sgd,kfac --out compare2 --ranks 2
check "a comparison on 2 ranks: one table" test "$(grep -c '^optimizer ' stdout)" = 1
for run in sgd-s0 kfac-s0; do
    check "a comparison on 2 ranks: the weights of $run" cmp compare1/$run/model.safetensors compare2/$run/model.safetensors
done
succeeds "more seeds on 4 ranks" compare --resume compare2 --seeds 2 --ranks 4 --quiet
check "more seeds on 4 ranks: they are there" test -e compare2/kfac-s1/model.safetensors
succeeds "a sweep over batches" sweep "${runs[@]}" --epochs 1 --optim sgd --over batch=48,24 --out sweep --quiet --ranks 2
check "a sweep over batches: one micro-batch for all" test "$(grep -ohE '"micro": [0-9]+' sweep/*/config.json | sort -u)" = '"micro": 12'
succeeds "a tuning" tune "${runs[@]}" --epochs 3 --optim sgd --over lr=0.01:1:log --trials 3 --out tune --quiet --ranks 2
check "a tuning: chosen" test -s tune/tune.md
together NOTHING here compare "${runs[@]}" --limit-test 50 --micro 6 --epochs 2 --optim sgd --out compare3
check "two processes compare" succeeded
check "two processes compare: the same weights" cmp compare1/sgd-s0/model.safetensors compare3/sgd-s0/model.safetensors
check "two processes compare: rank 1 is silent" test ! -s other-stdout -a ! -s other-stderr
refuses "a method of the whole batch in a comparison" 2 'optim ngd: needs the gradients' compare "${runs[@]}" --optim sgd,ngd --ranks 2
refuses "ranks and jobs" 2 'jobs 2: several ranks train one run at a time' compare "${runs[@]}" --ranks 2 --jobs 2
succeeds "a comparison without ranks" compare "${runs[@]}" --limit-test 50 --epochs 1 --optim sgd --out plain --quiet
refuses "a comparison that was begun without ranks" 2 'plain: was begun on one rank' compare --resume plain --seeds 2 --ranks 2
ran="abar compare --ranks 3, whose rank is killed"
"$abar" compare "${runs[@]}" --limit-train 60000 --limit-test 50 --micro 4 --epochs 9 --optim sgd --ranks 3 --out lost >stdout 2>stderr &
pid=$!
appears lost/sgd-s0/log.jsonl
kill -KILL "$(pgrep -P $pid | tail -n 1)"
wait $pid
rc=$?
check "a rank that is killed ends the comparison" \
    failed_with_line 1 '^abar: rank [12] on .*: ended by signal 9 \(killed\); go on .* with: .*compare --resume lost$'

ran="abar sample as one of two processes"
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 "$abar" sample --checkpoint one >stdout 2>stderr
rc=$?
check "sample runs in one process" failed_well 2 'sample: runs in one process, start it without mpirun'
finish
