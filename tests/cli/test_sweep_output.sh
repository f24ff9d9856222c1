#!/usr/bin/env bash
# abar sweep, tune and runs: output and files, a sweep of one value beside the plain run, kill -9 and --resume, parts that join,
# and the mistakes people make.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
tiny=(--model mlp --widths 784-16-10 --data synthetic --limit-train 256 --batch 32 --epochs 2 --threads 1)
times='seconds|seconds_std|ms_per_step|ms_per_step_std|time_ratio|epoch_seconds|epoch_seconds_std|ms_alone|wall_seconds|jobs|side_by_side'
numbers() { sed -E "s/\"($times)\": ([0-9.e+-]+|null)//g" "$1"; }
well_formed() { if command -v xmllint >/dev/null; then xmllint --noout "$@"; fi; }

# --- one value is the plain run ---
for validation in 0 0.1; do
    succeeds "a plain run" train "${tiny[@]}" --optim mac --lr 0.07 --validation $validation --out plain$validation --quiet
    succeeds "a sweep of one value" sweep "${tiny[@]}" --optim mac --over lr=0.07 --validation $validation --out one$validation --quiet
    one=one$validation/mac-lr=0.07-s0
    check "its weights are those of the plain run, byte for byte" cmp plain$validation/model.safetensors $one/model.safetensors
    check "its log is that of the plain run" cmp <(numbers plain$validation/log.jsonl) <(numbers $one/log.jsonl)
    check "its settings are those of the plain run" cmp <(sed 's/"out": "[^"]*"//' plain$validation/config.json) <(sed 's/"out": "[^"]*"//' $one/config.json)
done
test_of() { sed -E 's/.*"test_acc": ([0-9.e+-]+).*/\1/' "$1"; }
run eval --checkpoint plain0.1 --json
eval_acc=$(sed -E 's/.*"accuracy": ([0-9.e+-]+).*|.*"test_acc": ([0-9.e+-]+).*/\1\2/' stdout)
check "the winner is measured on the test set as abar eval does" awk -v a="$(test_of one0.1/mac-lr=0.07-s0/test.json)" -v b="$eval_acc" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }'
check "without a validation part there is no test file" test ! -e one0/mac-lr=0.07-s0/test.json

# --- output and files ---
succeeds "a sweep" sweep "${tiny[@]}" --optim sgd,mac --over lr=0.01:1:3log --over damping=0.1,1 --out grid
check "a pipe sees no control characters" no_control_characters
check "a line per run" test "$(grep -cE '^\[ ?[0-9]+/9\]' stdout)" = 9
check "what varies is told" says '^  lr 0.01, 0.1, 1$'
check "what is chosen on is told" says 'the fraction 0.1 of the training set'
check "the best of each is told" test "$(grep -cE '^(sgd +lr|mac +lr .*damping)' stdout)" = 2
check "no line is too long" awk 'length > 80 { exit 1 }' stdout
check "the CSV has a row per run" test "$(wc -l <grid/sweep.csv)" = 10
check "the CSV names the values" grep -q '^lr,damping,optimizer,seed,validation_acc,validation_loss,' grid/sweep.csv
check "an optimizer without the setting has no value" grep -q '^0.01,,sgd,0,' grid/sweep.csv
check "two settings make a heat map per optimizer" test "$(grep -c "shape-rendering='crispEdges'" grid/sweep.svg)" = 2
check "the picture is XML" well_formed grid/sweep.svg
run sweep --resume grid --json
check "--json prints one object" one_json_object
check "--json prints what the file holds" cmp -s stdout grid/sweep.json
check "only the winners were tested" test "$(find grid -name test.json | wc -l)" = 2
succeeds "a sweep of one setting with seeds" sweep "${tiny[@]}" --optim sgd,mac --over tinv=1,10 --seeds 2 --out line
check "what lacks the setting is trained once" test "$(grep -c '^,sgd' line/sweep.csv)" = 2
check "four panels" test "$(grep -c '<clipPath' line/sweep.svg)" = 4
check "the time of a step is relative to sgd" grep -q 'relative to sgd' line/sweep.svg
check "this picture is XML, too" well_formed line/sweep.svg
succeeds "one at a time" sweep "${tiny[@]}" --optim mac --over lr=0.01,0.1 --over damping=0.1,1 --over first-layer=running,dataset-mean --one-at-a-time --out each
check "settings are not combined" test "$(wc -l <each/sweep.csv)" = 7
check "a panel per setting" test "$(grep -c '<clipPath' each/sweep.svg)" = 3
check "values that are no numbers are named" grep -q '>running<' each/sweep.svg
succeeds "values that fail are results" sweep "${small[@]}" --limit-test 0 --optim sgd --over lr=0.01,1e6 --weight-decay 1 --schedule constant --epochs 4 --out crosses
check "they are crosses" test "$(grep -c ': failed</title>' crosses/sweep.svg)" = 1
run sweep "${small[@]}" --limit-test 0 --optim sgd --over lr=1e5,1e6 --weight-decay 1 --schedule constant --epochs 4 --out hopeless
check "if all fail it has failed" bash -c "[[ $rc == 1 ]] && grep -q '^abar: sweep: every run failed' stderr"

# --- going on ---
going=("${tiny[@]}" --limit-train 8000 --batch 16 --epochs 3 --optim sgd,mac --over lr=0.01,0.1)
succeeds "left alone" sweep "${going[@]}" --out alone --quiet
"$abar" sweep "${going[@]}" --out killed --quiet &
appears killed/sweep.json
killed sweep killed 0.05 0.3 0.2
succeeds "after kill -9 a sweep goes on" sweep --resume killed --quiet
check "and ends in the same numbers" cmp <(numbers alone/sweep.json) <(numbers killed/sweep.json)
"$abar" sweep "${going[@]}" --out stopped >stdout 2>stderr &
appears stopped/sweep.json
kill -INT $!
wait $!
rc=$?
ran="sweep, then SIGINT"
check "SIGINT gives 130" test $rc = 130
check "SIGINT says how to go on" says 'sweep --resume stopped$'
succeeds "two side by side go on" sweep --resume stopped --jobs 2 --quiet
check "in the same numbers" cmp <(numbers alone/sweep.json) <(numbers stopped/sweep.json)
succeeds "more seeds" sweep --resume grid --seeds 2
check "more seeds run only what is new" test "$(grep -cE '^\[ ?[0-9]+/18\]' stdout)" = 9

# --- parts ---
for part in 1 2 3; do
    succeeds "part $part" sweep "${going[@]}" --part $part/3 --out part$part
    if ((part > 1)); then check "says how parts are joined" says 'sweep --resume part'; fi
done
check "a part has its runs only" test "$(find part2 -name report.json | wc -l)" = 1
cp -r part2/*-s0 part3/*-s0 part1/
run sweep --resume part1
check "the parts join" succeeded
check "nothing is trained again" bash -c "! grep -q '^\[' stdout"
check "and they are the whole" cmp <(numbers alone/sweep.json) <(numbers part1/sweep.json)
succeeds "another sweep" sweep "${going[@]}" --weight-decay 0.01 --part 1/4 --out other --quiet
cp -r part1/mac-lr=0.1-s0 other/
refuses "a run made with other settings" 2 'mac-lr=0.1-s0: was trained with another --weight-decay' sweep --resume other
for part in 1 2; do succeeds "a comparison has parts, too" compare "${tiny[@]}" --part $part/2 --out cpart$part --quiet; done
cp -r cpart2/*-s0 cpart1/
succeeds "they join" compare --resume cpart1 --quiet
check "completely" grep -q '"complete": true' cpart1/compare.json

# --- tuning ---
tuning=("${tiny[@]}" --limit-train 2000 --epochs 6 --optim sgd,mac --over lr=0.003:3:log --trials 9 --seeds 2)
succeeds "a tuning" tune "${tuning[@]}" --out tuned
check "rounds are told" test "$(grep -cE '^round [12] of 2: [93] trials' stdout)" = 2
check "the choice is told" test "$(grep -cE '^(sgd|mac) +lr [0-9.]+ ' stdout)" = 2
check "the page states space, trials and seconds" grep -qE '^\| mac \| lr=0.003:3:log \| 9 \| [0-9]+ \| [0-9]+ \| [0-9.]+ \| lr ' tuned/tune.md
check "rounds are sweeps" test -e tuned/round1/sweep.svg -a -e tuned/round2/sweep.svg
check "the final runs have new seeds" test "$(find tuned/final -maxdepth 1 -name '*-s0' | wc -l)" = 0 -a -d tuned/final/mac-s1 -a -d tuned/final/mac-s2
check "the test set is used by the final runs only" bash -c "! grep -rq --include=*.json --include=*.csv test_acc tuned/round1 tuned/round2"
check "and they have no validation part" grep -q '"validation": 0,' tuned/final/mac-s1/config.json
check "pairs are told" says '^  sgd - mac '
run tune --resume tuned --json
check "tune --json prints one object" one_json_object
check "tune --json prints what the file holds" cmp -s stdout tuned/tune.json
"$abar" tune "${tuning[@]}" --out cut --quiet &
appears cut/tune.json
killed tune cut 0.2 0.4 0.6 0.3
succeeds "after kill -9 a tuning goes on" tune --resume cut --quiet
check "and ends in the same numbers" cmp <(numbers tuned/tune.json) <(numbers cut/tune.json)
"$abar" tune "${tuning[@]}" --out halted >stdout 2>stderr &
appears halted/tune.json
kill -INT $!
wait $!
rc=$?
ran="tune, then SIGINT"
check "SIGINT ends a tuning with 130" test $rc = 130
check "and says how to go on" says 'tune --resume halted$'

# --- runs ---
mkdir shelf && mv grid tuned halted shelf/
succeeds "a run on the shelf" train "${tiny[@]}" --out shelf/done --quiet
succeeds "one that stopped early" train "${tiny[@]}" --epochs 9 --stop-after 1 --out shelf/early --quiet
"$abar" train "${tiny[@]}" --limit-train 60000 --epochs 500 --quiet --out shelf/busy &
busy=$!
appears shelf/busy/config.json
run runs shelf
check "runs are listed" succeeded
check "one that runs" says '^shelf/busy .* running$'
check "one that has finished" says '^shelf/done +run .* 2/2 .*% +finished$'
check "a sweep" says '^shelf/grid +sweep .* 18/18 runs .* finished$'
check "a tuning that was stopped" says '^shelf/halted +tuning .* stopped$'
check "runs of a sweep are not listed" bash -c "! grep -q 'grid/' stdout"
kill -INT $busy
wait $busy 2>/dev/null
run runs shelf/busy
check "it was stopped" says ' stopped$'
run runs shelf --all
check "--all lists the runs of a sweep" test "$(grep -c 'shelf/grid/.* run .* finished' stdout)" = 18
truncate -s -100 shelf/done/state.safetensors
echo '{' >shelf/early/config.json
echo '{"config"' >shelf/grid/sweep.json
run runs shelf
check "damage is found" test "$(grep -c ' damaged$' stdout)" = 3
check "and told" test "$(grep -cE '^shelf/(done/state.safetensors: is not whole|early/config.json|grid/sweep.json)' stdout)" = 3
run runs shelf --json
check "runs --json prints one object" one_json_object
ln -s / shelf/root
run runs shelf
check "links are not followed" bash -c "! grep -q shelf/root stdout"
cp -r one0 "shelf/$(printf 'b\033[31m\nd')"
run runs shelf
check "names of folders cannot control the terminal" bash -c "grep -q '^shelf/b?.31m?d ' stdout && ! grep -q \$'\\033' stdout"
mkdir bare
run runs bare
check "an empty folder" says '^no runs in bare$'

# --- mistakes ---
mkdir nothing && cd nothing || exit 1
refuses "no --over" 2 '--over: says what varies' sweep "${tiny[@]}"
refuses "a setting without values" 2 'names no setting' sweep "${tiny[@]}" --over lr
refuses "an unknown setting" 2 'lrr: none of the optimizers has such an option, did you mean --lr' sweep "${tiny[@]}" --over lrr=1,2
refuses "a value that is none" 2 '--lr fast: not a number' sweep "${tiny[@]}" --over lr=0.1,fast
refuses "a range without a number" 2 'how many values' sweep "${tiny[@]}" --over lr=0.1:1
refuses "a range the wrong way round" 2 'below its high end' sweep "${tiny[@]}" --over lr=1:0.1:5log
refuses "logarithms of 0" 2 'no logarithms' sweep "${tiny[@]}" --over lr=0:1:5log
refuses "a label that is none" 2 'adam is none of the optimizers' sweep "${tiny[@]}" --over adam.lr=0.1
refuses "seeds as values" 2 'seed: cannot vary, --seeds' sweep "${tiny[@]}" --over seed=1,2
refuses "a value that does not fit the others" 2 'batch' sweep "${tiny[@]}" --over batch=32,100000 --optim sgd --out x
refuses "a part that is none" 2 '--part 4/3' sweep "${tiny[@]}" --over lr=0.1,0.2 --part 4/3 --out x
refuses "a sweep where a run is" 2 'already holds a run' sweep "${tiny[@]}" --over lr=0.1 --out ../plain0
refuses "a run where a sweep is" 2 'already holds a sweep' train "${tiny[@]}" --out ../line
refuses "a sweep where one is" 2 'already holds a sweep, continue it with --resume' sweep "${tiny[@]}" --over lr=0.1 --out ../line
refuses "a comparison where a sweep is" 2 'already holds a sweep' compare "${tiny[@]}" --out ../line
refuses "other settings of a resumed sweep" 2 'lr: a resumed sweep keeps its settings' sweep --resume ../line --lr 1
refuses "a comparison to go on with that is a sweep" 1 'holds no comparison' compare --resume ../line
refuses "a run to go on with that is a sweep" 1 'line: holds no run but a sweep, to continue it use abar sweep --resume$' train --resume ../line
refuses "no tuning" 1 'holds no tuning but a sweep' tune --resume ../line
refuses "a sweep that is a run" 1 'holds no sweep but a run, to continue it use abar train --resume$' sweep --resume ../plain0
refuses "a folder that is not there" 1 'nowhere: holds no sweep, there is no such folder' sweep --resume nowhere
refuses "weights of a sweep" 1 'line: holds several runs, .*abar runs .*line --all' eval --checkpoint ../line
refuses "nothing to tune" 2 '--over: says what is tuned' tune "${tiny[@]}"
refuses "an optimizer without a space" 2 'nothing varies for sgd' tune "${tiny[@]}" --over damping=0.1:1
refuses "more trials than values" 2 'only 2 different values' tune "${tiny[@]}" --optim sgd --over lr=0.1,0.2
refuses "tuning on the test set" 2 'validation 0: trials are chosen' tune "${tiny[@]}" --over lr=0.1:1 --validation 0
refuses "epochs as a setting" 2 'epochs are the budget' tune "${tiny[@]}" --over epochs=1:5
refuses "seeds of one optimizer" 2 '--optim mac:3: all have the same number of seeds' sweep "${tiny[@]}" --optim sgd,mac:3 --over lr=0.1
refuses "runs of a file" 2 'is a file' runs ../one0/sweep.csv
refuses "runs of nothing" 2 'no such folder' runs nowhere
succeeds "a folder after the flags" runs --all ../line
cp "$work/stdout" ../after
run runs ../line --all
check "is the same as before them" cmp -s "$work/stdout" ../after
refuses "two folders" 2 'plain0: one folder at a time, and ../line is given already' runs ../line --all ../plain0
refuses "no target" 2 '--target 93: not a target' compare "${tiny[@]}" --target 93
refuses "a misspelt setting of one of two" 2 'did you mean --damping' sweep "${tiny[@]}" --optim mac,sgd --over dampng=0.1,1
refuses "optimizers with other epochs, before any trial" 2 '--epochs: 2 for sgd but 4 for mac' tune "${tiny[@]}" --over lr=0.1:1 --mac.epochs 4
refuses "a fraction as a target" 2 'in percent' compare "${tiny[@]}" --target acc=0.93
refuses "a target above 100" 2 'in percent' compare "${tiny[@]}" --target acc=930
rmdir runs 2>/dev/null
check "mistakes leave nothing" test -z "$(ls -A)"
finish
