#!/usr/bin/env bash
# --json: exactly one object on stdout, of the result or, after a failure, of the error; the line on stderr stays.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { skip "python3 is not installed" && finish; }

# holds EXPRESSION: of the object on stdout, as o.
holds() { python3 -c 'import json, sys; o = json.load(sys.stdin); sys.exit(not eval(sys.argv[1]))' "$1" <"$work/stdout" 2>/dev/null; }
# tells NAME EXPRESSION ARGUMENTS...: a case that succeeds.
tells() {
    local name=$1 expression=$2
    shift 2
    run "$@" --json
    check "$name: one object" one_json_object
    check "$name: success and nothing on stderr" succeeded
    check "$name: $expression" holds "$expression"
}
# The line on stderr, the object on stdout, and the exit status agree.
failure_told() { # CODE PATTERN
    [[ $rc == "$1" && $(wc -l <stderr) == 1 ]] && one_json_object && grep -qE -- "$2" stderr &&
        holds "list(o) == ['error', 'status'] and o['status'] == $1 and open('stderr', errors='replace').read() == 'abar: ' + o['error'] + '\n'"
}
fails() { # NAME CODE PATTERN ARGUMENTS...
    local name=$1 code=$2 pattern=$3
    shift 3
    run "$@"
    check "$name" failure_told "$code" "$pattern"
}

# --- what there is ---
tells "models" "any(m['model'] == 'lenet5' and m['parameters'] == 61706 and m['input'] == [1, 28, 28] for m in o['models'])" models
tells "a model" "o['parameters'] == sum(n['parameters'] for n in o['operations']) == 269722 and 'method' not in o" models --model resnet20
tells "the rules of a model's parameters" "[p['rule'] for p in o['rule']['parameters'] if p['name'] in ('conv1.weight', 'fc1.weight')] == ['adamw', 'muon'] and 'rule' not in o['method']" \
    models --model lenet5 --optim mac+muon
tells "a model's memory" "2 * o['memory_bytes']['total'] == sum(o['memory_bytes'].values()) and o['memory_bytes']['activations'] > 0" models --model lenet5 --batch 16
tells "the blocks of a model's parameters" "[p['blocks'] for p in o['rule']['parameters'] if p['name'] in ('fc1.weight', 'fc1.bias')] == [8, 2]" \
    models --model lenet5 --optim shampoo --shampoo-block 100
tells "blocks that are not cut" "{p['blocks'] for p in o['rule']['parameters']} == {1} and {p['rule'] for p in o['rule']['parameters']} == {'soap'}" \
    models --model lenet5 --optim soap --max-dim 200
tells "a model's maps" "[m['columns'] for m in o['method']['maps']] == [26, 151, 401, 121, 85] and o['method']['name'] == 'mac'" \
    models --model lenet5 --optim mac
tells "data" "any(d['name'] == 'synthetic' and d['found'] for d in o['data']) and all(d['found'] or d['remedy'] for d in o['data'])" data
tells "a data set" "o['train'] == sum(o['train_per_class']) == 8192 and (o['channels'], o['height'], o['width']) == (1, 28, 28)" data --data synthetic
printf 'äöü\n%.0s' {1..50} >text
tells "a text" "(o['train'], o['test'], o['classes'], o['samples']) == (180, 20, 4, 'characters')" data --data text:text
tells "optimizers" "{'sgd', 'adamw', 'nadamw', 'sfadamw', 'muon', 'shampoo', 'soap', 'adahessian', 'sophia'} == {r['name'] for r in o['rules']} and 'mac' in [m['name'] for m in o['methods']]" optimizers
tells "options of optimizers" "any(x['name'] == 'momentum' and x['default'] == '0.9' and x['max'] == 1 for x in o['rules'][0]['options'])" optimizers
tells "one optimizer" "[r['name'] for r in o['rules']] == ['adamw'] and [m['name'] for m in o['methods']] == ['mac'] and o['method_options']" \
    optimizers --optim mac+adamw
tells "a rule alone" "o['methods'] == o['method_options'] == [] and len(o['rules']) == 1" optimizers --optim sgd
tells "--no-json after another word of it" "'models' in o" models --no-json
run models --json --no-json
check "the last of --json and --no-json counts" says '^model '
succeeds "a text of several bytes a character" data --data text:text
check "is complete" bash -c "! grep -q 'not complete' stdout"

# --- failures ---
fails "no such flag" 2 '--modle: no such flag' models --modle x --json
fails "no such model" 2 'lenet6' train --json --model lenet6
fails "a value that is none" 2 '--lr x' train --lr x --json
fails "a missing value" 2 '--out: needs a value' train --out --json
fails "a lone word" 2 'lone word' bench word --json
fails "--json with a value that is none" 2 '--json maybe' optimizers --json=maybe
fails "no checkpoint" 2 'checkpoint: needed' eval --json
fails "a checkpoint that is not there" 1 'nowhere' eval --json --checkpoint nowhere
fails "data that are not there" 1 'nowhere' data --data fashion-mnist:nowhere --json
fails "a run that is not there" 1 'nowhere' train --resume nowhere --json
fails "a comparison that is not there" 1 'nowhere' compare --resume nowhere --json
fails "an optimizer twice" 2 'twice' compare --optim sgd,sgd --json
fails "a benchmark of nothing" 2 '--steps 0' bench --json --steps 0
fails "an unknown device" 2 'cpo' bench --json --device cpo
fails "a run that diverges" 1 'not finite' train "${small[@]}" --no-out "${explode[@]}" --json
: >file
fails "a folder below a file" 1 'file' train "${small[@]}" --out file/below --json
run train --json --resume $'no\xffwhere "quoted"\\'
check "a path that is no UTF-8" holds 'o["error"].startswith("no\ufffdwhere \"quoted\"\\: ")'
run train --json --resume $'line\nbreak'
check "a path with a line break" one_json_object
run compare "${small[@]}" --optim sgd "${explode[@]}" --json --out diverged
check "a comparison that failed prints its results" holds "o['complete'] and o['runs'][0]['failure']"
check "and says so on stderr" grep -q '^abar: compare: ' stderr
refuses "a command without --json" 2 'no such flag' sample --json
finish
