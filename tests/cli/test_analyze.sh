#!/usr/bin/env bash
# abar analyze: every analysis on tiny networks, and what is said when one cannot be made.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1
look=(--samples 64 --batch 32 --fisher-samples 16 --threads 1)
vit=(--model deit-tiny --data synthetic --image-size 16 --classes 4 --patch 4 --width 24 --depth 2 --heads 3)

succeeds "a run to look at" train "${small[@]}" --snapshot 0,1,2 --out run --quiet

# valid FOLDER: every file in it is whole: JSON is read by a parser, SVG ends as it should, CSV in a whole line.
valid() {
    local file
    shopt -s nullglob
    for file in "$1"/*.json; do
        if command -v python3 >/dev/null; then python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$file" || return 1; fi
    done
    for file in "$1"/*.svg; do [[ $(tail -n 1 "$file") == '</svg>' ]] || return 1; done
    for file in "$1"/*.csv; do [[ -s $file && -z $(tail -c 1 "$file") ]] || return 1; done
    [[ -z $(find "$1" -name '*tmp*') ]]
}
columns() { awk -F, 'NR == 1 { n = NF } NF != n { exit 1 }' "$1"; } # as many in every row
lines() { wc -l <"$1"; }

# --- every analysis ---
for what in spectra alignment covariance convergence heatmap; do
    succeeds "$what" analyze $what --checkpoint run "${look[@]}" --out $what
    check "$what: its files" test -s $what/$what.svg -a -s $what/$what.csv -a -s $what/$what.json -a -s $what/summary.md
    check "$what: they are whole" valid $what
    check "$what: one width of table" columns $what/$what.csv
    check "$what: says where they are" says "^Figures .*: $what\$"
    check "$what: fits 80 columns" bash -c '! grep -qE ".{81}" stdout'
done
check "a row for each layer and snapshot" test "$(lines covariance/covariance.csv)" = 16
check "snapshots have their names" bash -c 'cut -d, -f2 covariance/covariance.csv | sort -u | xargs | grep -q "epoch 1 epoch 2 initial snapshot"'
check "the checkpoint of a finished run is not looked at twice" bash -c '! grep -q ",end," covariance/covariance.csv'
check "spectra: all five matrices" test "$(cut -d, -f3 spectra/spectra.csv | sort -u | xargs)" = "A AxP Fisher P P-reduce matrix"
succeeds "a run that stopped" train "${small[@]}" --snapshot 0,1 --stop-after 1 --out early --quiet
succeeds "its snapshots" analyze covariance --checkpoint early "${look[@]}" --out early-look
check "a stopped run's checkpoint is not looked at twice either" test "$(lines early-look/covariance.csv)" = 11
# sum of eigenvalues and trace: fc3 has 85 numbers a row, conv1 26, of which all are listed
trace=$(awk -F, '$1 == "conv1" && $2 == "epoch 2" { print $6 }' covariance/covariance.csv)
sum=$(awk -F, '$1 == "conv1" && $2 == "epoch 2" && $3 == "A" { sum += $5 } END { printf "%.12g", sum }' spectra/spectra.csv)
check "eigenvalues sum to the trace" awk "BEGIN { exit !(($trace - $sum) ^ 2 < (1e-9 * $trace) ^ 2) }"
succeeds "all" analyze all --checkpoint run "${look[@]}" --out all --dump
check "all: its files" test -s all/spectra.svg -a -s all/alignment.svg -a -s all/covariance.svg -a -s all/convergence.svg -a -s all/heatmap.svg
check "all: no attention, no figure of it" test ! -e all/attention.svg
check "all: they are whole" valid all
check "all: what they mean" says 'square of the mean activation'
check "all: one dump for each snapshot" test -s all/dump-1.safetensors -a -s all/dump-3.safetensors -a ! -e all/dump-4.safetensors
check "all: the same tables as one by one" cmp all/covariance.csv covariance/covariance.csv
succeeds "again, into the same folder" analyze all --checkpoint run "${look[@]}" --out all
succeeds "a file, and initial weights" analyze covariance --checkpoint initial,run/model.safetensors --model lenet5 --data synthetic "${look[@]}" --out file
check "a file: both are there" test "$(lines file/covariance.csv)" = 11
check "the initial weights are the first snapshot" cmp <(grep conv2,initial file/covariance.csv) <(grep conv2,initial covariance/covariance.csv)
succeeds "drawn labels, the test part, other scale" analyze spectra --checkpoint run "${look[@]}" --fisher exact --split test --pgrad batch-mean --mode train --no-homogeneous --layers 'fc*' --out options
check "only the layers that fit" test "$(cut -d, -f1 options/ranks.csv | sort -u | xargs)" = "fc1 fc2 fc3 layer"
# --- evaluation mode means nothing before batch norm has seen a batch ---
norm=(--samples 32 --batch 16 --layers 'layer1.0.*' --threads 1)
succeeds "a network with batch norm" train --model resnet20 --data synthetic --optim sgd --limit-train 64 --limit-test 16 --batch 16 --epochs 1 --snapshot 0 --threads 1 --out norm --quiet
succeeds "its inputs" analyze covariance --checkpoint norm "${norm[@]}" --out norm-auto
check "it says that the first snapshot is in training mode" says '^- initial: inputs are those of training mode'
check "and no other" bash -c '! grep -q "^- end: inputs" stdout'
check "the figure says so, too" grep -q 'evaluation mode (initial: training mode)' norm-auto/covariance.svg
succeeds "in training mode" analyze covariance --checkpoint norm "${norm[@]}" --mode train --out norm-train
check "nothing to explain then" bash -c '! grep -q "^- initial" stdout'
succeeds "in evaluation mode" analyze covariance --checkpoint norm "${norm[@]}" --mode eval --out norm-eval
check "the first snapshot is that of training mode" cmp <(grep ,initial, norm-auto/covariance.csv) <(grep ,initial, norm-train/covariance.csv)
check "the last is that of evaluation mode" cmp <(grep ,end, norm-auto/covariance.csv) <(grep ,end, norm-eval/covariance.csv)
check "the modes differ" bash -c '! cmp -s norm-train/covariance.csv norm-eval/covariance.csv'

succeeds "a transformer" analyze all --checkpoint initial "${vit[@]}" --samples 16 --batch 16 --fisher-samples 8 --threads 1 --out vit
check "a transformer: attention" test -s vit/attention.svg -a -s vit/attention.csv -a -s vit/attention-spectrum.csv
check "a transformer: they are whole" valid vit
check "a transformer: the largest eigenvalue of T is 1" awk -F, 'NR > 1 && $3 == 1 && ($4 - 1) ^ 2 > 1e-12 { exit 1 }' vit/attention-spectrum.csv
succeeds "attention alone" analyze attention --checkpoint initial "${vit[@]}" --samples 16 --batch 16 --threads 1 --out attention
check "attention alone: the same" cmp attention/attention.csv vit/attention.csv
succeeds "theory" analyze theory --points 8 --width 256 --steps 20 --out theory
check "theory: its files" test -s theory/theory.svg -a -s theory/bounds.csv -a -s theory/theory.txt
check "theory: they are whole" valid theory
succeeds "theory: the printed bound" analyze theory --data circle --points 21 --width 0 --one-point --steps 100 --out circle
check "theory: the printed bound fails at 57" says '^- I9 VIOLATED at k = 57'
succeeds "complexity" analyze complexity --largest 128 --repeat 1 --threads 1 --out complexity
check "complexity: they are whole" valid complexity
bytes_of() { awk -F, -v m="$1" -v d="$2" '$1 == m && $2 == d { print $6 }' complexity/complexity.csv; }
for method in mac smac eva; do
    check "complexity: the state of $method grows as d" test "$(bytes_of $method 128)" = $((2 * $(bytes_of $method 64)))
done
for method in foof kfac lngd; do
    small_one=$(bytes_of $method 64) large_one=$(bytes_of $method 128)
    check "complexity: the state of $method grows as d^2" test $((10 * large_one)) -gt $((39 * small_one)) -a "$large_one" -le $((4 * small_one))
done

for what in covariance theory complexity; do
    flags=(--checkpoint run "${look[@]}")
    [[ $what == theory ]] && flags=(--points 4 --width 16 --steps 2)
    [[ $what == complexity ]] && flags=(--largest 128 --repeat 1 --optim mac --threads 1)
    succeeds "$what --json" analyze $what "${flags[@]}" --json --out json
    check "$what --json: one object" one_json_object
done

# --- what cannot be ---
refuses "nothing" 2 'say what' analyze
refuses "a wrong name" 2 'did you mean spectra' analyze spectrum
refuses "no checkpoint" 2 '--checkpoint: needed' analyze covariance
refuses "a checkpoint that is not there" 1 'nowhere: no such file' analyze covariance --checkpoint nowhere --out bad
refuses "a checkpoint of another model" 1 'another model' analyze covariance --checkpoint run/model.safetensors --model mlp --data synthetic --out bad
refuses "a folder of another model" 1 'another model' analyze covariance --checkpoint run/snapshots/epoch-0001.safetensors --model mlp --data synthetic --out bad
refuses "a layer pattern that fits nothing" 2 "--layers fc4: .*did you mean fc" analyze covariance --checkpoint run --layers fc4 --out bad
refuses "more samples than there are" 2 '--samples 600: .*512' analyze covariance --checkpoint run --samples 600 --out bad
refuses "no attention" 2 'lenet5 has no attention' analyze attention --checkpoint run "${look[@]}" --out bad
refuses "initial weights in second place" 2 'initial' analyze covariance --checkpoint run/model.safetensors,initial --model lenet5 --data synthetic "${look[@]}" --out bad
refuses "a network too wide for the memory" 1 'GiB|46340' analyze covariance --checkpoint initial --model mlp --data synthetic --widths 784-60000-10 --batch 1 --samples 1 --layers fc2 --out bad
refuses "theory on a data set that is not there" 1 'nowhere' analyze theory --data fashion-mnist:nowhere --out bad
refuses "complexity of no method" 2 'did you mean mac' analyze complexity --optim mak --out bad
check "what was refused left no folder" test ! -e bad
: >taken
refuses "a file in place of the folder" 1 'taken' analyze covariance --checkpoint run "${look[@]}" --out taken
refuses "a folder the system refuses" 1 '/proc' analyze theory --points 4 --width 16 --steps 2 --out /proc/abar
full=$work/full
mkdir "$full"
if mount -t tmpfs -o size=16k none "$full" 2>/dev/null; then
    refuses "a full disk" 1 'space' analyze all --checkpoint run "${look[@]}" --out "$full/out"
    check "a full disk leaves whole files" valid "$full/out"
    umount "$full"
else
    skip "full disk: tmpfs cannot be mounted here"
fi
limit=$(ulimit -S -f)
ulimit -S -f 8
refuses "a limit on the size of files" 1 'ulimit -f' analyze all --checkpoint run "${look[@]}" --out limited
ulimit -S -f "$limit"
check "such a limit leaves nothing half written" test -z "$(find limited -name '*tmp*')"

# --- Ctrl-C ---
stops() { # NAME ARGUMENTS...
    local name=$1
    shift
    for delay in 0.7 0.4 0.2 0.1 0.05 0; do # a fast machine has ended after the longer ones
        "$abar" "$@" >stdout 2>stderr &
        handles_int $!
        sleep $delay
        kill -INT $! 2>/dev/null
        wait $!
        rc=$?
        ran="abar $*, SIGINT after $delay s"
        if [[ $rc != 0 ]]; then break; fi
        rm -rf stopped && mkdir stopped
    done
    check "$name: stops by the signal" test $rc = 130
}
mkdir stopped
stops "a network" analyze all --checkpoint run --samples 0 --batch 8 --threads 1 --dump --out stopped
check "a network: whole files" valid stopped
stops "theory" analyze theory --points 64 --width 16384 --steps 100000 --out stopped-theory
check "theory: no half of one" test ! -e stopped-theory/bounds.csv

run analyze --help
check "help lists the analyses" says 'theory'
check "help has the flags of a network's" says '--fisher-samples'
run help analyze theory
check "help of theory has its own" bash -c 'grep -q -e --one-point stdout && ! grep -q -e --checkpoint.PATH.*folder stdout'
run analyze covariance --help
check "help of one has its flags" says '--dump'
finish
