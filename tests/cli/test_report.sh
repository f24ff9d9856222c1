#!/usr/bin/env bash
# abar report: the page and its mistakes; in headless Chromium, where there is one, what the page draws and does.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
tiny=(--model mlp --widths 784-16-10 --data synthetic --limit-train 256 --batch 32 --threads 1 --quiet)

run compare "${tiny[@]}" --epochs 3 --optim sgd,mac --seeds 2 --out cmp
run train "${tiny[@]}" --epochs 3 --optim mac --diagnose 2 --out one

# --- the page ---
succeeds "a page" report cmp one --out page.html
check "it tells what is in it" says '^page.html: 5 runs$'
succeeds "it is written again" report cmp one --out page.html
cp page.html before.html
succeeds "folders may follow flags" report cmp --out page.html one
check "and are the same" cmp -s page.html before.html
check "nothing is loaded from elsewhere" test "$(grep -cE '(src|href)="?(https?:)?//' page.html)" = 0
run report cmp --out other.html --json
check "--json prints one object" one_json_object
run report cmp --out again.html
check "the same runs make the same page" cmp -s other.html again.html

# --- how many steps an epoch has: before the first one ends config.json says it, older runs say nothing ---
check "config.json says it" grep -q ', "steps_per_epoch": 8}$' one/config.json
mkdir begun old
cp one/config.json begun/
printf '{"step": 4, "loss": 2.25, "lr": 0.1}\n' >begun/log.jsonl
sed 's/, "steps_per_epoch": 8//' begun/config.json >old/config.json
cp begun/log.jsonl old/
succeeds "a page of a run in its first epoch" report begun --out begun.html
check "it has the steps of an epoch" test "$(grep -o '"steps_per_epoch":[^,}]*' begun.html)" = '"steps_per_epoch":8'
succeeds "a page of an older run" report old --out old.html
check "it has none" test "$(grep -o '"steps_per_epoch":[^,}]*' old.html)" = '"steps_per_epoch":null'
run train --resume one --epochs 4
check "a run with that member resumes" test $rc = 0

# --- names and lines that would like to be more than text ---
mkdir hostile
names=('<script>window.harm=1<!--' $'line\xe2\x80\xa8separator\xff' '"><img src=x onerror=window.harm=3>')
for name in "${names[@]}"; do cp -r one "hostile/$name"; done
cp -r cmp hostile/cmp
sed -i 's|"label": "mac"|"label": "</script><script>window.harm=2</script>"|' hostile/cmp/mac-s0/report.json hostile/cmp/compare.json
printf 'not JSON\n{"epoch": 4, "test_acc": "</script><b>", "__proto__": 1, "constructor": 2}\n[1]\n{"epoch": "\\ud800"}\n{"epoch": 5, "te' >>hostile/cmp/sgd-s0/log.jsonl
mkdir hostile/figures
cat >hostile/figures/evil.svg <<'S'
<svg xmlns="http://www.w3.org/2000/svg" onload="parent.harm=4; window.harm=4"><script>window.harm = 5; parent.harm = 5; fetch("http://127.0.0.1:9/")</script><image href="http://127.0.0.1:9/x.png"/></svg>
S
succeeds "a page of hostile names" report hostile --out hostile.html
check "damaged lines are counted" says 'without 4 damaged lines of logs$'
check "names do not become markup" test "$(grep -acF 'window.harm=1<' hostile.html)$(grep -acF 'x onerror=window.harm=3>' hostile.html)" = 00
check "the page is valid UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null hostile.html

# --- links ---
mkdir -p links/run
cp one/config.json links/run/
echo '<svg xmlns="http://www.w3.org/2000/svg"><!-- precious --></svg>' >outside.svg
printf '{"epoch": 1, "test_acc": 31.337}\n' >outside.jsonl
ln -s ../../outside.svg links/run/leak.svg
ln -s ../../outside.jsonl links/run/log.jsonl
ln -s ../cmp links/away
succeeds "links in a folder" report links --out links.html
check "the files behind them are not read" test "$(grep -cE 'leak|31.337|sgd-s0' links.html)" = 0
check "nor the folders" says ': 1 run$'
mkfifo links/run/pipe.svg
succeeds "a pipe is passed over" report links --out links.html

# --- mistakes ---
refuses "a folder that is not there" 2 'nowhere: no such folder' report nowhere
refuses "no folder" 1 'abar report DIR' report
mkdir empty
refuses "a folder without runs" 2 'no runs' report empty
refuses "a file instead of a folder" 2 'give a folder' report page.html
echo precious >notes.html
refuses "a file that is no page" 2 'choose another' report cmp --out notes.html
check "it is left alone" grep -q precious notes.html
refuses "another ending" 2 '[.]html' report cmp --out page.txt
refuses "a folder as the page" 2 'is a folder' report cmp --out cmp
refuses "a page in no folder" 2 'none/page.html' report cmp --out none/page.html

# --- in a browser ---
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
    skip "no Chromium: the page is not looked at"
elif ! command -v python3 >/dev/null; then
    skip "no python3 to lead Chromium: the page is not looked at"
else
    run compare "${tiny[@]}" --epochs 2 --optim sgd,mac --seeds 2 --seed 5 --out cmp2
    run sweep "${tiny[@]}" --epochs 2 --over lr=0.01,0.1 --optim sgd,mac --out sweep
    run tune "${tiny[@]}" --epochs 3 --over lr=0.01:0.3:log --optim sgd --trials 3 --seeds 2 --out tune
    succeeds "a page of searches" report cmp cmp2 sweep tune --out search.html
    # 100 runs of 1,000 epochs
    for i in {1..100}; do
        mkdir -p "many/run$i"
        sed "s/\"lr\": [0-9.]*/\"lr\": 0.$((1000 + i))/" one/config.json >"many/run$i/config.json"
    done
    awk 'BEGIN { srand(1); for (r = 1; r <= 100; r++) { file = "many/run" r "/log.jsonl"; for (e = 1; e <= 1000; e++) printf "{\"epoch\": %d, \"train_loss\": %.16g, \"train_acc\": %.16g, \"test_loss\": %.16g, \"test_acc\": %.16g, \"lr\": 0.1, \"seconds\": 1.5, \"skipped_steps\": 0}\n", e, rand(), 90 * rand(), rand(), 90 * rand() >file; close(file) } }'
    succeeds "a page of many runs" report many --out many.html
    check "it has at most 20 MB" test "$(stat -c %s many.html)" -le 20000000
    python3 "$tests/cli/page_checks.py" "$work" >"$work/stdout" 2>"$work/stderr"
    rc=$? ran=page_checks.py
    check "the page in Chromium" test $rc = 0
    cat "$work/stdout"
fi
finish
