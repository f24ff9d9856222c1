#!/usr/bin/env bash
# Where runs are kept: folders that cannot be written, are in use, are full, or hold something damaged.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

# --- folders that cannot be made ---
: >file
refuses "a file in place of the folder" 1 'file' train "${small[@]}" --out file
refuses "a folder below a file" 1 'file' train "${small[@]}" --out file/below
refuses "a folder the system refuses" 1 '/proc' train "${small[@]}" --out /proc/abar
check "the file is untouched" test ! -s file

full=$work/full
mkdir "$full"
if mount -t tmpfs -o size=256k none "$full" 2>/dev/null; then
    refuses "a full disk" 1 'space' train "${small[@]}" --quiet --out "$full/run"
    check "a full disk leaves no half checkpoint" test ! -e "$full/run/state.safetensors"
    umount "$full"
    mount -t tmpfs -o ro,size=256k none "$full"
    refuses "a read-only file system" 1 'full' train "${small[@]}" --out "$full/run"
    umount "$full"
else
    skip "full disk and read-only file system: tmpfs cannot be mounted here"
fi
limit=$(ulimit -S -f)
ulimit -S -f 100
refuses "a limit on the size of files" 1 'ulimit -f' train "${small[@]}" --quiet --out limited
ulimit -S -f "$limit"
check "such a limit leaves nothing half written" test -z "$(find limited -name '*tmp*')"
if [[ -e /dev/full ]]; then
    ran="train --json >/dev/full"
    "$abar" train "${small[@]}" --no-out --json >/dev/full 2>"$work/stderr"
    rc=$?
    : >"$work/stdout"
    check "standard output that cannot be written" failed_well 1 'standard output'
fi

# nobody ARGUMENTS...: abar as a user who may not write here.
nobody() {
    ran="abar $* as another user"
    setpriv --reuid=65534 --regid=65534 --clear-groups "$work/anyone" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
    rc=$?
}
cp "$abar" anyone && chmod 755 . anyone
if setpriv --reuid=65534 --regid=65534 --clear-groups ./anyone --version >/dev/null 2>&1; then
    run train "${small[@]}" --quiet --out locked
    cp locked/model.safetensors apart.safetensors
    chmod 600 apart.safetensors
    nobody train "${small[@]}"
    check "a default folder that may not be made" failed_well 1 'runs.*permission denied'
    nobody compare "${small[@]}" --out theirs
    check "a comparison's folder that may not be made" failed_well 1 'theirs: permission denied'
    nobody train --resume locked --epochs 3
    check "a run that may not be written" failed_well 1 'permission denied'
    nobody eval --checkpoint apart.safetensors
    check "weights that may not be read" failed_well 1 'apart.safetensors: permission denied'
    chmod 700 locked
    nobody eval --checkpoint locked/model.safetensors
    check "weights in a folder that may not be entered" failed_well 1 'locked/model.safetensors: Permission denied'
    nobody sample --checkpoint locked/model.safetensors
    check "a text model in a folder that may not be entered" failed_well 1 'Permission denied'
else
    skip "permissions: no other user can be had here"
fi

# --- the default folder ---
succeeds "first default folder" train "${small[@]}" --epochs 1
check "first default folder has the settings in its name" test -s runs/lenet5-synthetic-sgd-s0/state.safetensors
succeeds "second default folder" train "${small[@]}" --epochs 1
check "second default folder has a number" test -s runs/lenet5-synthetic-sgd-s0-2/state.safetensors

ran="two trainings at once"
"$abar" train "${small[@]}" --seed 1 >/dev/null 2>&1 &
"$abar" train "${small[@]}" --seed 1 >/dev/null 2>&1 && wait $!
check "two trainings at once get a folder each" test -s runs/lenet5-synthetic-sgd-s1/state.safetensors -a -s runs/lenet5-synthetic-sgd-s1-2/state.safetensors
refuses "a default folder for a run that cannot start" 1 'nowhere' train --data fashion-mnist:nowhere
check "a run that cannot start leaves no folder" test ! -e runs/lenet5-fashion-mnist-sgd-s0

# --- a folder that holds a run ---
succeeds "a run" train "${small[@]}" --out run
check "a run says where it is" says 'run/state\.safetensors'
for name in config.json log.jsonl state.safetensors model.safetensors; do
    check "a run has $name" test -s run/$name
done
check "a run has TensorBoard events" bash -c 'ls run/events.out.tfevents.* >/dev/null'
sum=$(cksum run/*)
refuses "the same command again" 2 '--resume run' train "${small[@]}" --out run
check "the same command again harms nothing" test "$sum" = "$(cksum run/*)"
succeeds "a finished run, resumed" train --resume run
check "a finished run has nothing left to do" says 'Nothing left'

"$abar" train "${small[@]}" --epochs 1000 --out busy >/dev/null 2>&1 &
owner=$!
appears busy/state.safetensors
refuses "a folder in use" 1 'busy.*(in use|another)' train --resume busy
kill -9 $owner && wait $owner 2>/dev/null
succeeds "a folder no longer in use" train --resume busy --epochs 1000 --stop-after 1 --quiet

# --- commands that are suggested can be pasted, whatever the folders are called ---
mkdir 'bin of mine' && cp "$abar" 'bin of mine/abar'
tiny=(--model mlp --widths 784-8-10 --data synthetic --limit-train 64 --limit-test 32 --batch 16 --epochs 1 --threads 1)
for folder in 'two words' "it's" '-dash' '--out' 'a$HOME`id`"\' 'ünï' $'line\nbreak' $'\xff\x1b' '~' '*'; do
    ran="train --out $folder"
    'bin of mine/abar' train "${tiny[@]}" --out="$folder" >stdout 2>stderr
    sed -n '/^Next:/,$p' stdout >next
    bash -c "$(grep -a 'eval --checkpoint' next)" >stdout 2>stderr
    rc=$?
    check "the suggested eval of $(printf %q "$folder")" test $rc = 0
    bash -c "$(grep -a 'train --resume' next)" >stdout 2>stderr
    rc=$?
    check "the suggested train of $(printf %q "$folder")" test $rc = 0
    'bin of mine/abar' compare "${tiny[@]}" --out="$folder compared" >stdout 2>stderr
    bash -c "$(grep -a 'compare --resume' stdout)" >stdout 2>stderr
    rc=$?
    check "the suggested compare of $(printf %q "$folder")" test $rc = 0
done

# --- resuming ---
refuses "resume of nothing" 1 'nowhere' train --resume nowhere
mkdir empty
refuses "resume of an empty folder" 1 'empty' train --resume empty
refuses "resume with another model" 2 'lenet5' train --resume run --model mlp
refuses "resume with another data set" 2 'synthetic' train --resume run --data fashion-mnist
refuses "resume with another optimizer" 2 'sgd' train --resume run --optim adamw
refuses "resume with another batch" 2 'batch' train --resume run --batch 64 --epochs 3 --quiet
refuses "resume into another folder" 2 'out' train --resume run --out other
refuses "resume with other weights" 2 '--init.*has its weights already' train --resume run --init run/model.safetensors
refuses "a new run that accepts changed data" 2 '--accept-data.*--resume' train "${small[@]}" --out fresh --accept-data
refuses "resume without keeping anything" 2 '--no-out: a resumed run continues in its folder' train --resume run --no-out --epochs 3
check "refused resumes harm nothing" test "$sum" = "$(cksum run/*)"
seq 1000 2000 >numbers
succeeds "a text" train --model gpt-char --layers 1 --width 8 --heads 1 --context 8 --batch 4 --epoch-steps 2 --epochs 2 --stop-after 1 --data text:numbers --out numbered
seq 2000 3000 >numbers
refuses "resume with a changed text" 2 'abar train --resume numbered --accept-data' train --resume numbered
succeeds "the suggested resume with a changed text" train --resume numbered --accept-data --quiet
succeeds "resume with more epochs" train --resume run --epochs 3 --model lenet5
check "resume goes on where it was" bash -c "grep -q '^epoch 3/3' stdout && ! grep -q '^epoch 2/3' stdout"
succeeds "stop-after" train "${small[@]}" --epochs 3 --stop-after 1 --out stop
check "stop-after stops" bash -c "! grep -q '^epoch 2/3' stdout"
succeeds "resume after stop-after" train --resume stop
check "resume after stop-after goes to the end" says '^epoch 3/3'
succeeds "uninterrupted" train "${small[@]}" --epochs 3 --out whole
check "stopped and resumed is the same as uninterrupted" cmp stop/model.safetensors whole/model.safetensors
cp -r stop lost && rm lost/state.safetensors
before=$(cksum lost/*)
refuses "resume of a checkpoint that is gone" 1 'lost/state.safetensors: .*gone.*move lost away.*--init' train --resume lost
check "what is left of it stays" test "$before" = "$(cksum lost/*)"
{ bytes 64 '\0' && cat stop/log.jsonl; } >lost/log.jsonl # as a machine that crashed may leave it
refuses "the same with zero bytes in the log" 1 'lost/state.safetensors: .*gone' train --resume lost
refuses "resume of a file" 2 'give the folder' train --resume stop/state.safetensors
refuses "a comparison in the folder of a run" 2 'stop: already holds a run' compare "${small[@]}" --out stop
mkdir compared && echo '{}' >compared/compare.json
refuses "a run in the folder of a comparison" 2 'compared: already holds a comparison' train "${small[@]}" --out compared
cp -r stop nothing && rm nothing/*.safetensors && : >nothing/log.jsonl
run train --resume nothing
check "resume without a checkpoint says so and starts over" bash -c "[[ $rc == 0 ]] && grep -q 'starting over' stdout"
check "resume without a checkpoint comes to the same" cmp nothing/model.safetensors whole/model.safetensors

# --- runs of a newer version ---
newer() { # FILE: a setting that this version does not know, and the version that wrote it
    sed -i 's/"abar": "[0-9.]*"/"abar": "99.1.0"/g; s/"epochs": [0-9]*,/&"sharpness": 1,/g' "$1"
}
tiny=(--model mlp --widths 784-8-10 --data synthetic --limit-train 64 --batch 16 --epochs 1 --threads 1 --quiet)
what='--sharpness: no such option .it was written by abar 99[.]1[.]0, this is [0-9.]+: use that version.$'
succeeds "a run" train "${tiny[@]}" --out newrun
newer newrun/config.json
refuses "a run of a newer version" 1 "^abar: newrun/config.json: $what" train --resume newrun
succeeds "a comparison" compare "${tiny[@]}" --optim sgd --out newcompare
newer newcompare/compare.json
refuses "a comparison of a newer version" 1 "^abar: newcompare/compare.json: $what" compare --resume newcompare
sed -i 's/99.1.0/0.0.1/' newrun/config.json
refuses "a setting that nobody knows" 1 'sharpness: no such option$' train --resume newrun

# --- damaged checkpoints ---
damaged() { # NAME: run "hurt" must be refused by train and eval, and stay as it is
    local before
    before=$(cksum hurt/*)
    refuses "$1: resume" 1 'hurt' train --resume hurt --epochs 5 --quiet
    refuses "$1: eval" 1 'hurt' eval --checkpoint hurt/state.safetensors
    check "$1: nothing harmed" test "$before" = "$(cksum hurt/*)"
    rm -rf hurt
}
state=hurt/state.safetensors
cp -r whole hurt && truncate -s -1 $state && damaged "truncated by a byte"
cp -r whole hurt && truncate -s 100 $state && damaged "truncated in the header"
cp -r whole hurt && truncate -s 4 $state && damaged "truncated in the length"
cp -r whole hurt && : >$state && damaged "emptied"
cp -r whole hurt && printf '\377\377\377\377\377\377' | dd of=$state bs=1 conv=notrunc status=none && damaged "absurd header length"
cp -r whole hurt && printf '\377\377\377' | dd of=$state bs=1 seek=9 conv=notrunc status=none && damaged "flipped bytes in the header"
cp -r whole hurt && LC_ALL=C sed -i 's/"conv1.weight"/"conv9.weight"/' $state && damaged "another name in the header"
cp -r whole hurt && cp "$tests/golden/train_resnet8.safetensors" $state && damaged "foreign safetensors"
cp -r whole hurt && printf '{"train": ' >hurt/config.json
refuses "damaged config" 1 'config.json' train --resume hurt --epochs 5 --quiet
rm -rf hurt
refuses "eval of nothing" 1 'nowhere' eval --checkpoint nowhere --model lenet5
refuses "eval of an empty folder" 1 'empty' eval --checkpoint empty
refuses "eval of a foreign file" 1 'ops\.safetensors' eval --checkpoint "$tests/golden/ops.safetensors" --model lenet5 --data synthetic
cp whole/state.safetensors apart.safetensors
succeeds "eval of a checkpoint that lies elsewhere" eval --checkpoint apart.safetensors
cp whole/model.safetensors apart.safetensors
refuses "eval of an export that lies elsewhere" 2 '--model: needed' eval --checkpoint apart.safetensors
refuses "eval with another model" 1 'whole' eval --checkpoint whole/model.safetensors --model mlp --data synthetic

# --- Schedule-Free AdamW: the checkpoint has the weights that are trained, the export those that are tested ---
succeeds "a training with Schedule-Free AdamW" train --model resnet50 --blocks 1-1 --width 4 --classes 10 --image-size 28 --data synthetic --limit-train 256 \
    --limit-test 128 --batch 32 --epochs 2 --threads 1 --optim sfadamw --quiet --out free
succeeds "eval of its folder" eval --checkpoint free --json
check "the export is taken" says 'free/model\.safetensors'
refuses "eval of its checkpoint" 1 'take model\.safetensors' eval --checkpoint free/state.safetensors
refuses "a schedule in place of the average" 2 '--schedule constant' train "${small[@]}" --optim sfadamw --schedule cosine
refuses "weights that keep their norm and decay" 2 '--weight-decay 0' train "${small[@]}" --optim muon --hyperball
finish
