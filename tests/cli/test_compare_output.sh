#!/usr/bin/env bash
# abar compare: output and files, Ctrl-C, kill -9 and --resume, flags for all optimizers and for one.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
tiny=(--model mlp --widths 784-16-10 --data synthetic --limit-train 256 --limit-test 64 --batch 32 --epochs 2 --threads 1)

# --- a pipe ---
succeeds "compare into a pipe" compare "${tiny[@]}" --optim sgd,adamw,mac --seeds 2 --out pipe
check "a pipe sees no control characters" no_control_characters
check "a pipe sees a line per run" test "$(grep -cE '^\[[1-6]/6\] (sgd|adamw|mac) +seed [01]  loss ' stdout)" = 6
check "runs go seed by seed" test "$(sed -nE 's/^\[.*\] ([a-z]+) +seed ([01]).*/\1\2/p' stdout | tr '\n' ' ')" = 'sgd0 adamw0 mac0 sgd1 adamw1 mac1 '
check "the table has a row per optimizer" test "$(grep -cE '^(sgd|adamw|mac) .* [0-9.]+ \+- [0-9.]+.* [0-9.]+x.*iB.* [0-9.]+x' stdout)" = 3
check "sgd is what the others are measured by" says '^sgd .* 1\.00x .* 1\.00x$'
check "the best accuracy is marked" says '^[a-z]+ .*[0-9]\*'
check "no line is too long" awk 'length > 80 { exit 1 }' stdout
check "no line ends in spaces" bash -c "! grep -q ' $' stdout"
check "the end says what to do next" says 'compare --resume pipe --seeds'
check "the curves are a file" grep -q "class='line'" pipe/compare.svg
check "there are four panels of three curves" test "$(grep -o "class='line'" pipe/compare.svg | wc -l)" = 12
check "the CSV has a row per run and epoch" test "$(wc -l <pipe/compare.csv)" = $((1 + 3 * 2 * 2))
if command -v xmllint >/dev/null; then
    check "the picture is XML" xmllint --noout pipe/compare.svg
else
    skip "xmllint is not installed"
fi
succeeds "a run of it is a run like any other" eval --checkpoint pipe/mac-s1
run compare --resume pipe --quiet
check "--quiet is quiet" test "$rc" = 0 -a ! -s stdout -a ! -s stderr
run compare --resume pipe --json
check "--json prints one object" one_json_object
check "--json prints nothing else" test "$rc" = 0 -a ! -s stderr
check "--json prints what the file holds" cmp -s stdout pipe/compare.json

# --- targets and pairs ---
succeeds "a target" compare --resume pipe --target acc=1.5
check "when it is reached is told" test "$(grep -cE '^  (sgd|adamw|mac) +1\.0 \+- 0\.0 +8 \+- 0 .* 0 of 2$' stdout)" = 3
check "pairs are told" test "$(grep -cE '^  (sgd|adamw) - (adamw|mac) .*told apart' stdout)" = 3
check "no line of them is too long" awk 'length > 80 { exit 1 }' stdout
check "the page has both" test "$(grep -cE '^\| (sgd|adamw|mac) \| 1\.0 ± 0\.0 \| 8 ± 0 \|' pipe/compare.md)" = 3 -a "$(grep -cE 'told apart \|' pipe/compare.md)" = 3
succeeds "a target that nobody reaches" compare --resume pipe --target loss=0
check "never is counted" test "$(grep -cE '^  (sgd|adamw|mac) .* 2 of 2$' stdout)" = 3
succeeds "the target is kept" compare --resume pipe
check "and told again" says '^to reach test loss=0:'
succeeds "no target" compare --resume pipe --target ''
check "is none" bash -c "! grep -q 'to reach' stdout"
succeeds "an optimizer twice under two names" compare "${tiny[@]}" --optim a=sgd,b=sgd --seeds 2 --out twins
check "is not told apart from itself" says '^  a - b +0\.00 .* not told apart'
# --- all ---
names=$("$abar" optimizers | sed -n 's/^\([a-z]*\): .*/\1/p' | tr '\n' ' ')
all=(--model lenet5 --data synthetic --limit-train 32 --limit-test 16 --batch 16 --epochs 1 --threads 1)
succeeds "--optim all runs every optimizer" compare "${all[@]}" --optim all --out all
check "in the order of abar optimizers" test "$(sed -nE 's/^\[.*\] ([a-z]+) +seed 0.*/\1/p' stdout | tr '\n' ' ')" = "$names"
check "and leaves none out" bash -c "! grep -q 'left out' stdout"
succeeds "it is listed" runs all
check "a list that is cut says so" says ' sgd,adamw,[^ ]*[.][.][.] '
succeeds "names beside all are not run twice" compare "${tiny[@]}" --optim mac,slow=mac,all:1 --slow.lr 0.01 --epochs 1 --out named
check "named ones come first" says '^\[ *1/[0-9]+\] mac +seed 0'
check "what the network has nothing for is left out, with the reason" says '^muon is left out: .*muon'
check "muon was not run" test ! -e named/muon-s0
succeeds "what the settings rule out is left out" compare "${all[@]}" --optim all --ema 0.9 --out averaged
check "with the reason" says '^sfadamw is left out: --ema'
refuses "what rules all of them out is refused" 2 "limit-train" compare "${all[@]}" --optim all --batch 64 --out none

# --- resuming ---
times='seconds|seconds_std|ms_per_step|ms_per_step_std|time_ratio|epoch_seconds|epoch_seconds_std|ms_alone|wall_seconds|jobs|side_by_side'
numbers() { sed -E "s/\"($times)\": ([0-9.e+-]+|null)//g" "$1/compare.json"; }
going=("${tiny[@]}" --optim mac,sgd --seeds 2 --limit-train 8000 --epochs 3 --batch 16)
succeeds "left alone" compare "${going[@]}" --out alone --quiet
"$abar" compare "${going[@]}" --out stopped >stdout 2>stderr &
appears stopped/compare.json # its first run trains
kill -INT $!
wait $!
rc=$?
ran="compare, then SIGINT"
check "SIGINT gives 130" test $rc = 130
check "SIGINT says how to go on" says 'compare --resume stopped$'
check "SIGINT is no error" test ! -s stderr
check "what is there can be read" grep -q '"complete": false' stopped/compare.json
succeeds "after SIGINT it goes on" compare --resume stopped
check "and ends in the same numbers" cmp <(numbers alone) <(numbers stopped)
mkdir killed
"$abar" compare "${going[@]}" --out killed/all --quiet &
appears killed/all/compare.json
killed compare killed/all 0.05 0.3 0.2
succeeds "after kill -9 it goes on" compare --resume killed/all --quiet
check "and ends in the same numbers after kill -9" cmp <(numbers alone) <(numbers killed/all)
succeeds "more seeds" compare --resume pipe --seeds 3
check "more seeds run only what is new" test "$(grep -cE '^\[[0-9]/9\]' stdout)" = 3
echo '{' >pipe/mac-s1/report.json
refuses "a damaged report" 1 'mac-s1/report.json.*remove the file' compare --resume pipe
rm pipe/mac-s1/report.json
succeeds "without it the run is ended anew" compare --resume pipe --quiet
check "and all are there" grep -q '"complete": true' pipe/compare.json
refuses "fewer seeds" 2 'has 3 already' compare --resume pipe --seeds 2
refuses "other settings" 2 'epochs.*only --seeds may grow' compare --resume pipe --epochs 3
refuses "changed data" 2 'accept-data: not a flag of abar compare' compare --accept-data
refuses "nothing to go on with" 1 'holds no comparison' compare --resume alone/mac-s0
refuses "a folder in use" 2 'already holds a comparison' compare "${tiny[@]}" --out pipe
succeeds "a run where one of a comparison would be" train "${tiny[@]}" --quiet --out foreign/mac-s1
refuses "a run that is none of ours" 2 'foreign/mac-s1: holds a run already' compare "${tiny[@]}" --seeds 2 --out foreign
check "that run is left alone" test "$(ls foreign)" = mac-s1
refuses "not a run to train on" 1 'holds no run' train --resume pipe

# --- side by side ---
run compare "${going[@]}" --out beside --jobs 2
check "two side by side" succeeded
check "says how many and how steps are timed" says '^2 trainings side by side; .*alone$'
check "the table says that steps were timed alone" says '^optimizer .* ms alone '
check "a run tells of its neighbours" says '  beside 1$'
check "ends in the numbers of one after the other" cmp <(numbers alone) <(numbers beside)
check "the picture says that the device was shared" grep -q '2 shared the device' beside/compare.svg
check "its time is what it would be alone" grep -q 'scaled to the speed alone' beside/compare.svg
check "the page says so, too" grep -q 'Up to 2 trainings shared the device' beside/compare.md
"$abar" compare "${going[@]}" --out halves --jobs 2 >stdout 2>stderr &
appears halves/compare.json
kill -INT $!
wait $!
rc=$?
ran="compare --jobs 2, then SIGINT"
check "SIGINT stops all" test $rc = 130
check "SIGINT says how to go on with all" says 'compare --resume halves --jobs 2$'
check "SIGINT to all is no error" test ! -s stderr
succeeds "all go on" compare --resume halves --jobs 3
check "all end in the same numbers" cmp <(numbers alone) <(numbers halves)
refuses "no number of jobs" 2 'jobs few.*or auto' compare "${tiny[@]}" --jobs few --out none
refuses "a label's value that fits no layer" 2 '--low.skip-layers x: fits no layer' compare "${tiny[@]}" --jobs 2 --quiet \
    --optim low=mac,high=mac --low.skip-layers x --out refused
refuses "no jobs at all" 2 'jobs 0' compare "${tiny[@]}" --jobs 0 --out none

# --- seeds and options of one ---
succeeds "seeds of its own" compare "${tiny[@]}" --epochs 1 --optim sgd:2,mac:3,low=mac --low.damping 0.1 --out uneven
check "seeds of its own are told" says '3 optimizers, 6 runs'
check "they are its rows" test "$(grep -cE '^\| (sgd \| 2|mac \| 3|low \| 1) \| [0-9.]+' uneven/compare.md)" = 3
check "the page has mean and deviation" grep -qE '^\| mac \| 3 \| [0-9.]+ ± [0-9.]+ ' uneven/compare.md
check "fewer seeds than the most are told" says 'means over up to 3 seeds'
succeeds "spaces after commas" compare "${tiny[@]}" --epochs 1 --optim 'sgd, mac' --quiet --out spaces
refuses "no number of seeds" 2 'number of seeds' compare "${tiny[@]}" --optim sgd:x
refuses "too many seeds" 2 'number of seeds' compare "${tiny[@]}" --optim sgd:5000

# --- flags for all, and for one ---
succeeds "a label of its own" compare "${tiny[@]}" --epochs 1 --optim low=mac,high=mac,sgd --high.damping 7 --damping 0.5 --out labels
check "--damping reaches those that have it" says '^  low .* damping 0\.5$'
check "--high.damping reaches one, whatever the order" says '^  high .* damping 7$'
some_failed "a run that fails" compare "${tiny[@]}" --optim sgd,bad=sgd --bad.lr 1e6 --bad.weight-decay 1 \
    --bad.schedule constant --epochs 4 --out failing
check "a failed run is told" says 'bad +seed 0  failed after [0-9] epochs?: training: loss .* not$'
check "a failed run is a row" says '^bad .* - .* 1 of 1$'
check "the others are there" says '^sgd .* 1\.00x'
some_failed "a run that failed by its numbers stays" compare --resume failing
check "done and failed are counted apart" says '^1 of 2 runs is done, 1 failed$'
check "its reason is told again" says '^bad, seed 0, failed: training: '
check "and nothing is trained" bash -c "! grep -q '^\[' stdout"
succeeds "without sgd" compare "${tiny[@]}" --epochs 1 --optim adamw,mac --out without
check "without sgd the first is the measure" says 'vs adamw'

# --- runs that fail ---
# Decay multiplies every weight by -9 a step: after 16 steps a loss of 1e8 at least, and not infinite, whatever the seed.
succeeds "one that diverges" compare "${tiny[@]}" --widths 784-10 --optim sgd,adamw --sgd.lr 0.1 --sgd.weight-decay 100 \
    --sgd.momentum 0 --sgd.schedule constant --out diverged
check "its loss does not fill the line" awk 'length > 80 { exit 1 }' stdout
check "its loss is large, not infinite" grep -qE '^\| sgd .*[0-9]e\+[0-9]' diverged/compare.md
run compare "${small[@]}" --optim sgd "${explode[@]}" --out hopeless
check "the reason of a failure does not fill the line" awk 'length > 80 { exit 1 }' stdout
check "all that fail" bash -c "[[ $rc == 1 ]] && grep -q '^abar: compare: every run failed' stderr"

# --- runs that failed for lack of memory or disk space ---
succeeds "two runs" compare "${tiny[@]}" --optim sgd,adamw --quiet --out memory
before=$(numbers memory)
sed -i 's/"failure": null, "retry": false/"failure": "memory: 9 bytes are not to be had", "retry": true/' memory/sgd-s0/report.json
succeeds "a run that had no memory is tried again" compare --resume memory
check "that is said" says '^1 of 2 runs is done, 1 had no memory and is tried again$'
check "with the reason" says '^sgd, seed 0, failed before: memory: 9 bytes'
check "it is trained" says '^\[2/2\] sgd '
check "and all is as it was" test "$(numbers memory)" = "$before"
limit=$(ulimit -S -f)
ulimit -S -f 16
refuses "a disk that is full" 1 'ulimit -f' compare "${tiny[@]}" --optim sgd,adamw --quiet --out full
ulimit -S -f "$limit"
succeeds "space again" compare --resume full --quiet
check "ends in the same numbers" test "$(numbers full)" = "$before"

# --- texts: the result is the loss ---
for _ in {1..60}; do echo 'the quick brown fox jumps over the lazy dog'; done >fox.txt
succeeds "a comparison on a text" compare --model gpt-char --data text:fox.txt --layers 1 --width 16 --heads 2 --context 16 \
    --batch 4 --epochs 2 --epoch-steps 5 --threads 1 --optim adamw,mac --out text
check "a run tells its best loss" says '^\[1/2\] adamw .* test [0-9.]+  best [0-9.]+ '
check "no line of a text's comparison is too long" awk 'length > 80 { exit 1 }' stdout
loss=$(sed -nE 's/^adamw +([0-9.]+).*/\1/p' stdout)
check "the picture shows the table's loss" grep -q ">adamw</tspan><tspan[^>]*>$loss<" text/compare.svg
check "and its curve" grep -q '>Test loss' text/compare.svg
check "but no accuracy" bash -c "! grep -q 'accuracy' text/compare.svg"

# --- what is refused, and leaves nothing ---
mkdir empty && cd empty || exit 1
refuses "unknown optimizer" 2 'mca.*mac' compare --optim sgd,mca
refuses "a misspelt flag with a label" 2 '--mac.dampin: .*did you mean --mac.damping' compare --mac.dampin 1
refuses "a label's flag without a value" 2 '--mac.damping: needs a value, as in --mac.damping' compare --mac.damping
refuses "a label's flag with a bad value" 2 '--mac.lr x: not a number' compare --mac.lr x
refuses "a label's flag that does not fit the others" 2 '--mac.accumulate 5: does not divide' compare --mac.accumulate 5
refuses "a label's flag against one for all" 2 '--mac.warmup 9: longer than the run, --epochs 3' compare --epochs 3 --mac.warmup=9
refuses "a flag for all against a label's" 2 '^abar: --final-lr 0.01: above --mac.lr 0.001' compare --final-lr 0.01 --mac.lr 0.001
refuses "a label's flag for texts" 2 '--mac.epoch-steps 5: is for models of text' compare --mac.epoch-steps 5
two=("${tiny[@]}" --optim low=mac,high=mac)
refuses "a label's value that its method refuses" 2 '--low.damping x: mac takes' compare "${two[@]}" --low.damping x
refuses "a value of the second's" 2 '--high.damping x: mac takes' compare "${two[@]}" --high.damping x --out early
check "it is refused before the first begins" test ! -e early
refuses "one of two" 2 '^abar: --low.damping adaptive: --low.first-layer dataset-cov needs' compare "${two[@]}" \
    --low.damping adaptive --low.first-layer dataset-cov --high.damping 2
refuses "a value for all that a label's is not" 2 '^abar: --damping x: mac takes' compare "${two[@]}" --damping x --high.damping 3
refuses "a label's flags that contradict each other" 2 '--low.nu1 9: above --nu2' compare "${tiny[@]}" --optim low=lngd --low.nu1 9
refuses "a label's flag that misses another" 2 '--s.nesterov: .*set --s.momentum above' compare "${tiny[@]}" --optim s=sgd \
    --s.nesterov --s.momentum 0
refuses "a model's flag with a label" 2 '--s.widths 5-10: the data need 784' compare "${tiny[@]}" --optim s=sgd --s.widths 5-10
refuses "a flag of the whole with a label" 2 '--mac.resume: is for the whole comparison' compare --mac.resume x
refuses "a bool of the whole with a label" 2 '--mac.no-json: is for the whole comparison' compare --mac.no-json
refuses "a flag with half a label" 2 '--.damping: no such flag' compare --.damping 1
refuses "an optimizer twice" 2 'twice' compare --optim sgd,sgd
refuses "a label twice" 2 'low: is compared twice.* a=mac,b=sgd' compare --optim low=mac,low=sgd
refuses "nothing between commas" 2 '"" names no optimizer' compare --optim sgd,,mac
refuses "a label for nothing" 2 '"low=" names no optimizer' compare --optim low=
refuses "no label" 2 '"=mac:2" names no optimizer' compare --optim sgd,=mac:2
refuses "unknown flag" 2 'did you mean --damping' compare --dampng 1
refuses "a flag that none of them has" 2 'an option of' compare --optim sgd,adamw --damping 1
refuses "another optimizer's flag" 2 'an option of' compare --sgd.damping 1
refuses "unknown label" 2 'none of the optimizers' compare --kfac.lr 1
refuses "unequal conditions" 2 'batch.*same for all' compare --mac.batch 64
refuses "unequal models" 2 'model.*cannot differ' compare --mac.model mlp
refuses "no seeds" 2 'seeds' compare --seeds 0
refuses "no data" 1 'cifar10' compare --model resnet20 --data cifar10:nowhere --optim sgd
check "no mistake left anything behind" test -z "$(ls -A)"
succeeds "a folder of our own choice" compare "${tiny[@]}" --epochs 1 --quiet
check "has a name" test -s runs/compare-mlp-synthetic/compare.svg
cd "$work" || exit 1

# --- a terminal ---
if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
    ran="compare in a terminal"
    TERM=xterm LC_ALL=C.UTF-8 script -qec "stty cols 70; '$abar' compare ${tiny[*]} --out terminal" stdout >/dev/null </dev/null
    check "the table fits the window, whole lines" awk '/^(optimizer|sgd|mac|\* best)/ { gsub(/\033\[[0-9;]*m/, ""); sub(/\r$/, "")
        if (length > 70) exit 1 }' stdout
    check "a column that is left has its name" grep -qE '^optimizer .* ms/step +vs sgd' stdout
    check "a terminal sees a line redrawn" grep -q $'\r\\[1/2\\] sgd seed 0  epoch 1/2.*\033\\[K' stdout
    check "the redrawn line fits the window" awk 'BEGIN { RS = "\r" } /^\[.*epoch/ && /\033\[K/ {
        sub(/\033\[K.*/, ""); gsub(/\033\[[0-9;]*m/, ""); gsub(/\342\224\201/, "="); if (length > 69) exit 1 }' stdout
else
    skip "terminal output: script(1) cannot make a terminal here"
fi
finish
