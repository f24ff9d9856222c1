#!/usr/bin/env bash
# The last line of `make test` counts what happened, crashes and time-outs included.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

# suite LINE...: runs tools/test-summary over programs that print and exit as given. Those that sleep are stopped after a second.
suite() {
    local n=0 line seconds
    rm -rf suite && mkdir suite
    for line in "$@"; do
        n=$((n + 1))
        if [[ $line == *sleep* ]]; then seconds=1; else seconds=60; fi
        printf '%s\n' "$line" >suite/program$n
        printf 'add_test(program%d "/bin/sh" "%s/suite/program%d")\nset_tests_properties(program%d PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT %d)\n' \
            $n "$work" $n $n "$seconds" >>suite/CTestTestfile.cmake
    done
    ran="test-summary"
    "$root/tools/test-summary" suite >stdout 2>stderr
    rc=$?
}
ends_in() { [[ $(tail -n 1 stdout) == "$1" ]]; }

suite 'echo "[==========] 5 test(s) run."; echo "[  PASSED  ] 5 test(s)."' 'true'
check "programs and functions are counted" ends_in '6 passed, 0 failed'
check "success is success" test $rc = 0
suite 'echo "[==========] 6 test(s) run."; echo "[  PASSED  ] 2 test(s)."; echo "[  SKIPPED ] 1 test(s), listed below:"; echo "[  FAILED  ] 3 test(s), listed below:"; exit 3' \
    'echo "3 passed, 1 failed, 2 skipped"; exit 1'
check "failures and skips inside programs are counted" ends_in '5 passed, 4 failed, 3 skipped'
check "failure is failure" test $rc != 0
suite 'echo "4 passed, 0 failed"; kill -SEGV $$' 'kill -SEGV $$' 'exit 77' 'exec sleep 60' 'false'
check "crashes, time-outs and skipped programs are counted" ends_in '4 passed, 4 failed, 1 skipped'
suite "head -c 200000 /dev/zero | tr '\\0' 'x'; echo; echo '7 passed, 0 failed'"
check "long output is counted" ends_in '7 passed, 0 failed'

# With ABAR_ISA tests run once, with that set; without it NAME@SET are counted beside NAME.
instruction_sets() {
    rm -rf suite && mkdir suite
    cat >suite/CTestTestfile.cmake <<'END'
add_test(one "/bin/sh" "-c" "test -z \"$ABAR_ISA\" -o \"$ABAR_ISA\" = baseline && echo '2 passed, 0 failed'")
add_test(one@other "/bin/sh" "-c" "echo '3 passed, 0 failed'")
END
    ran="ABAR_ISA=${1-} test-summary"
    ABAR_ISA=${1-} "$root/tools/test-summary" suite >stdout 2>stderr
    rc=$?
}
instruction_sets
check "a test's repetitions are counted" ends_in '5 passed, 0 failed'
instruction_sets baseline
check "one instruction set is tested once" ends_in '2 passed, 0 failed'
instruction_sets avx9
check "an instruction set that does not exist is refused" test $rc != 0
finish
