# A tiny test library for the command. A script sources it with its own arguments: the abar to test, and tests/.
# Cases count themselves; `finish` prints the counts as the last line and sets the exit status.
# shellcheck shell=bash
set -u
abar=$(realpath "$1")
tests=$(realpath "$2")
root=$(dirname "$tests")
[[ -x $abar ]] || { echo "$abar: cannot be run"; exit 1; }
work=$(mktemp -d)
trap 'if [[ $BASHPID == $$ ]]; then rm -rf "$work"; fi' EXIT # not in a subshell that a signal hits before it has reset its traps
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
unset NO_COLOR COLUMNS
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "FAILED: $1"
    echo "  ran: ${ran-}"
    echo "  exit ${rc-}; stdout, stderr:"
    head -c 2000 "$work/stdout" 2>/dev/null | sed 's/^/  | /'
    head -c 2000 "$work/stderr" 2>/dev/null | sed 's/^/  ! /'
}
skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1"
}
# check NAME COMMAND...: a case that holds when the command succeeds.
check() {
    local name=$1
    shift
    if "$@"; then pass; else fail "$name"; fi
}

# run ARGUMENTS...: abar, with its exit status in rc and its output in $work/stdout and $work/stderr.
run() {
    ran="abar $*"
    "$abar" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
    rc=$?
}
# A failure as promised: one line on stderr, "abar: ...", nothing on stdout.
failed_well() { # CODE PATTERN
    [[ $rc == "$1" ]] && [[ ! -s $work/stdout ]] && [[ $(wc -l <"$work/stderr") == 1 ]] &&
        grep -qE '^abar: ' "$work/stderr" && grep -qE -- "$2" "$work/stderr"
}
# refuses NAME CODE PATTERN ARGUMENTS...: a case.
refuses() {
    local name=$1 code=$2 pattern=$3
    shift 3
    run "$@"
    check "$name" failed_well "$code" "$pattern"
}
# succeeds NAME ARGUMENTS...: a case; silent on stderr.
succeeds() {
    local name=$1
    shift
    run "$@"
    check "$name" succeeded
}
# some_failed NAME ARGUMENTS...: a case: a comparison with failed runs, exit status 3 and one line on stderr.
some_failed() {
    local name=$1
    shift
    run "$@"
    check "$name" test $rc = 3 -a "$(grep -cE '^abar: compare: [0-9]+ of [0-9]+ runs failed' "$work/stderr")" = 1
}
succeeded() { [[ $rc == 0 && ! -s $work/stderr ]]; }
says() { grep -qE -- "$1" "$work/stdout"; }
no_control_characters() { ! LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$work/stdout"; }
# Exactly one JSON object, on one line; checked by a parser if python3 is installed.
one_json_object() {
    [[ $(wc -l <"$work/stdout") == 1 ]] && grep -qE '^\{.*\}$' "$work/stdout" || return 1
    if command -v python3 >/dev/null; then python3 -c 'import json, sys; json.load(sys.stdin)' <"$work/stdout"; fi
}

# appears PATH: waits until there is such a file; a minute is a failure.
appears() {
    for _ in {1..3000}; do [[ -e $1 ]] && return 0 || sleep 0.02; done
    fail "$1 does not appear"
}

# holds_something PATH: waits until there is such a file and it is not empty, as long.
holds_something() {
    for _ in {1..3000}; do [[ -s $1 ]] && return 0 || sleep 0.02; done
    fail "$1 stays empty"
}

# handles_int PID: waits until the process handles SIGINT, which a script's background processes ignore until then; or has ended.
handles_int() {
    local mask
    for _ in {1..3000}; do
        mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
        if [[ -z $mask ]] || ((0x$mask & 2)); then return 0; fi
        sleep 0.02
    done
    fail "process $1 does not handle SIGINT"
}

# killed COMMAND FOLDER MOMENT...: kills abar COMMAND, which runs in the background, after every moment, and resumes it; at last it
# stays dead.
killed() {
    local command=$1 folder=$2 moment
    shift 2
    for moment in "$@"; do
        sleep "$moment"
        kill -9 $! 2>/dev/null
        wait $! 2>/dev/null
        "$abar" "$command" --resume "$folder" --quiet &
    done
    kill -9 $!
    wait $! 2>/dev/null
}

# small ...: flags of a training that takes a fraction of a second.
small=(--model lenet5 --data synthetic --limit-train 512 --limit-test 128 --batch 32 --epochs 2 --threads 1)
# explode ...: weight decay multiplies every weight by about -1e6 a step, so that they are infinite within ten steps, whatever
# the seed and the rounding.
explode=(--lr 1e6 --weight-decay 1 --schedule constant)

# Big-endian 32-bit numbers, as idx files have them.
u32() {
    local n
    for n in "$@"; do
        # shellcheck disable=SC2059
        printf "$(printf '\\x%02x' $((n >> 24 & 255)) $((n >> 16 & 255)) $((n >> 8 & 255)) $((n & 255)))"
    done
}
bytes() { head -c "$1" /dev/zero | tr '\0' "$2"; } # COUNT CHARACTER
# idx_set DIR [SIDE]: a Fashion-MNIST of 64 + 32 gray images, 28 (or SIDE) pixels a side, all of class 1.
idx_set() {
    local part count side=${2-28}
    mkdir -p "$1"
    for part in train:64 t10k:32; do
        count=${part#*:}
        { u32 2051 "$count" "$side" "$side" && bytes $((count * side * side)) '\200'; } | gzip -n >"$1/${part%:*}-images-idx3-ubyte.gz"
        { u32 2049 "$count" && bytes "$count" '\1'; } | gzip -n >"$1/${part%:*}-labels-idx1-ubyte.gz"
    done
}

finish() {
    printf '%d passed, %d failed' "$passed" "$failed"
    if ((skipped)); then printf ', %d skipped' "$skipped"; fi
    printf '\n'
    ((failed == 0))
    exit
}
