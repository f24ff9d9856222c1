#!/usr/bin/env bash
# Output of train, eval and bench for terminals, pipes and programs; signals; threads; checkpoint-every.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

# --- a pipe ---
succeeds "train into a pipe" train "${small[@]}" --out pipe
check "a pipe sees a line per epoch" test "$(grep -c '^epoch [0-9]*/2 ' stdout)" = 2
check "a pipe sees no control characters" no_control_characters
check "the end names the accuracy" says '^Test accuracy [0-9.]+ %'
check "the end says what to do next" says 'train --resume pipe'
run train "${small[@]}" --no-out --quiet
check "--quiet is quiet" test "$rc" = 0 -a ! -s stdout -a ! -s stderr

# --- programs ---
run train "${small[@]}" --json --out json
check "--json prints one object" one_json_object
check "--json prints nothing else" test "$rc" = 0 -a ! -s stderr
for key in test_acc best_acc best_acc_epoch test_loss best_loss best_loss_epoch train_loss seconds ms_per_step peak_bytes optimizer_bytes skipped_steps; do
    check "--json has $key" says "\"$key\": ?[0-9]"
done
succeeds "a training with muon" train --model mlp --widths 784-8-8-10 --data synthetic --optim muon --limit-train 64 --limit-test 32 --batch 16 --epochs 1 --muon-eps 1 --no-out
check "it says both learning rates" says 'lr 0\.02,.*'
check "it says AdamW's" test "$(tr '\n' ' ' <stdout | grep -c 'aux-lr 0\.001')" = 1
check "it says that blocks were too small" says '^Muon met [0-9]+ blocks whose norm was below'
# gradients of at most 1e-14, divided by their squares twice: more than float32 holds
succeeds "a training that drops updates" train --model mlp --widths 784-10 --data synthetic --optim shampoo --graft none --shampoo-freq 1 --shampoo-block 1 --shampoo-exponent 1 --shampoo-eps 1e-30 \
    --clip 1e-14 --lr 1e-12 --limit-train 64 --limit-test 16 --batch 32 --epochs 1 --device cpu --no-out
check "it names the rule that dropped them" says '^shampoo dropped [0-9]+ updates'
run eval --checkpoint json --json
check "eval --json prints one object" one_json_object
run bench --model lenet5 --batch 8 --steps 3 --threads 1 --json
check "bench --json prints one object" one_json_object
succeeds "bench with a profile" bench --model lenet5 --batch 8 --steps 3 --threads 1 --profile
check "bench names operations" says 'conv1'
check "bench sums up kinds and phases" says '^  (conv2d|together) +[0-9]'
run bench --model lenet5 --batch 8 --steps 3 --threads 1 --profile --json
check "bench --profile --json prints one object" one_json_object
check "bench --profile --json has the operations" says '"operations": \[.*\{"name": "conv1"'

# --- eval ---
accuracy=$(sed -nE 's/.*"test_acc": ?([0-9.]+).*/\1/p' <(run eval --checkpoint json --json && cat stdout))
succeeds "eval of a run" eval --checkpoint json
check "eval of a run agrees with training" test "$(grep -o '"test_acc": *[0-9.]*' json/log.jsonl | tail -1 | grep -o '[0-9.]*$')" = "$accuracy"
cp stdout first
succeeds "eval of the export, with flags" eval --checkpoint json/model.safetensors --threads 1
# a line that is too long is broken behind its time, which varies
check "eval of the export agrees" cmp -s <(head -n 1 first | cut -d, -f1) <(head -n 1 stdout | cut -d, -f1)
succeeds "eval writes logits" eval --checkpoint json --logits 10:logits.safetensors
check "eval wrote logits" test -s logits.safetensors
before=$(cksum json/config.json json/log.jsonl)
for name in config.json log.jsonl; do
    refuses "logits in place of $name" 2 "json/$name belongs to a run" eval --checkpoint json --logits 5:json/$name
done
check "nothing was replaced" test "$before" = "$(cksum json/config.json json/log.jsonl)"
mkfifo pipe.safetensors
refuses "logits in place of a pipe" 2 'not a plain file' eval --checkpoint json --logits 5:pipe.safetensors
check "the pipe is still one" test -p pipe.safetensors

# --- a terminal ---
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    ran="train in a terminal"
    TERM=xterm script -qec "stty cols 60; '$abar' train ${small[*]} --no-out" stdout >/dev/null </dev/null
    check "a terminal sees a line redrawn" grep -q $'\r.*\033\\[K' stdout
    # Redrawn lines end at the next carriage return; none may reach the 60th column.
    check "the redrawn line fits the window" awk 'BEGIN { RS = "\r" } /^epoch.*%/ && /\033\[K/ {
        sub(/\033\[K.*/, ""); gsub(/\033\[[0-9;]*m/, ""); gsub(/\342\224\201/, "="); if (length > 59) exit 1 }' stdout
    NO_COLOR=1 TERM=xterm script -qec "'$abar' train ${small[*]} --no-out" stdout >/dev/null </dev/null
    check "NO_COLOR has no colours" bash -c "! grep -q $'\033\\[[0-9;]*m' stdout"
    TERM=dumb script -qec "'$abar' train ${small[*]} --no-out" stdout >/dev/null </dev/null
    check "TERM=dumb has no escapes" bash -c "! grep -q $'\033' stdout"
else
    skip "terminal output: script(1) cannot make a terminal here"
fi

# --- being stopped ---
stop() { # SIGNAL CODE
    rm -rf stopped
    ran="train, then SIG$1"
    "$abar" train "${small[@]}" --limit-train 8192 --epochs 500 --out stopped >stdout 2>stderr &
    local pid=$!
    holds_something stopped/log.jsonl # it has made steps
    kill -"$1" $pid
    wait $pid
    rc=$?
    check "SIG$1 gives $2" test $rc = "$2"
    check "SIG$1 says how to go on" says 'train --resume stopped'
    check "SIG$1 is no error" test ! -s stderr
    check "SIG$1 saves" test -s stopped/state.safetensors
}
stop TERM 143
stop INT 130
succeeds "after SIGINT it goes on" train --resume stopped --stop-after 1 --quiet
"$abar" train "${small[@]}" --limit-train 8192 --epochs 500 --out twice >stdout 2>stderr &
pid=$!
holds_something twice/log.jsonl
kill -INT $pid && kill -INT $pid
wait $pid
check "two SIGINTs end at once" test $? -ge 128

# --- at any moment: no empty folder, and what there is can be resumed ---
for moment in 0 0.01 0.02 0.04 0.06 0.08 0.1 0.15 0.2 0.3; do
    rm -rf moments && mkdir moments
    ran="train, SIGTERM after $moment s"
    (cd moments && exec "$abar" train "${small[@]}" --limit-train 8192 --epochs 500 >stdout 2>stderr) &
    pid=$!
    sleep $moment
    kill -TERM $pid
    wait $pid
    rc=$?
    check "SIGTERM after $moment s gives 143" test $rc = 143
    check "SIGTERM after $moment s leaves no empty folder" test -z "$(find moments -mindepth 1 -type d -empty)"
    if [[ -e moments/runs/lenet5-synthetic-sgd-s0/config.json ]]; then
        succeeds "after $moment s it goes on" train --resume moments/runs/lenet5-synthetic-sgd-s0 --stop-after 1 --quiet
    fi
done

# --- the same numbers again ---
for name in a b; do run train "${small[@]}" --out $name --json; done
check "the same command gives the same weights" cmp a/model.safetensors b/model.safetensors
run train "${small[@]}" --out c --seed 1
check "another seed gives others" bash -c "! cmp -s a/model.safetensors c/model.safetensors"
run train "${small[@]}" --threads 2 --out d --json
check "the same command on two threads works" test $rc = 0
one=$(sed -nE 's/.*"train_loss": ?([0-9.]+).*/\1/p' <(tail -1 a/log.jsonl))
two=$(sed -nE 's/.*"train_loss": ?([0-9.]+).*/\1/p' <(tail -1 d/log.jsonl))
check "one and two threads agree ($one, $two)" awk "BEGIN { d = ($one) - ($two); exit !(d * d <= 1e-4 * ($one) * ($one)) }"
run train "${small[@]}" --threads 2 --out e --quiet
check "two threads give the same weights twice" cmp d/model.safetensors e/model.safetensors
run train "${small[@]}" --workers 0 --out f --quiet
check "without loader threads the weights are the same" cmp a/model.safetensors f/model.safetensors
run train "${small[@]}" --checkpoint-every 3 --out g --quiet
check "--checkpoint-every changes nothing in the result" cmp a/model.safetensors g/model.safetensors
finish
