#!/usr/bin/env bash
# What code and documents cite exists; and the script that says so notices when it does not.
# shellcheck disable=SC2016 # backticks here are Markdown
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
ran=tools/check-citations rc=
"$root/tools/check-citations" >stdout 2>stderr
rc=$?
check "all citations of the tree resolve" test $rc = 0 -a ! -s stdout

# Documents speak of the command as it is.
{
    "$abar" optimizers
    for model in mlp lenet5 deit-tiny swin-tiny; do "$abar" train --model $model --help; done
    "$abar" train --model gpt2 --data text:FILE --help
    "$abar" train --model resnet50 --data imagefolder:DIR --help
    for command in compare eval sample bench data; do "$abar" $command --help; done
} >help 2>stderr
flags=$(grep -ohE -- '`--(\[no-\])?[a-z][a-z0-9-]+' "$root"/{README,docs/{methods,models,usage,images}}.md | sed 's/`--\(\[no-\]\)*//' | sort -u)
for flag in $flags; do
    ran="README.md, docs/methods.md, docs/models.md, docs/usage.md, docs/images.md: --$flag"
    check "--$flag is a flag" grep -qE -- "--(\[no-\])?$flag( |\$)" help
done
"$abar" models >stdout 2>stderr
counts=$(awk 'match($0, /[0-9]+(,[0-9]+)+ /) { print $1 ":" substr($0, RSTART, RLENGTH - 1) }' stdout)
for count in $counts; do
    ran="docs/models.md: $count"
    check "${count%:*} has ${count#*:} parameters" grep -qE "^\|.*[^0-9,]${count#*:}[^0-9,]" "$root/docs/models.md"
done
check "models were compared" test "$(wc -w <<<"$counts")" -ge 16

# A small tree in which everything resolves.
tree() {
    rm -rf planted
    mkdir -p planted/docs planted/src/curvature planted/tests
    printf '# Methods\n\n## 0. Conventions\n\n## 1. MAC, in short\n\n## 2. Attention\n\n```\n# 3. not a heading\n```\n' >planted/docs/methods.md
    printf '# The tree\n\nSee [methods](docs/methods.md#1-mac-in-short), `src/curvature/mac.c` and docs/methods.md section 2.\n' >planted/README.md
    echo '/* MAC (methods.md section 1). */' >planted/src/curvature/mac.c
}
outcome() { # NAME STATUS [PATTERN]: what the tree gives, and one line per violation
    "$root/tools/check-citations" planted >stdout 2>stderr
    rc=$?
    ran="check-citations: $1"
    check "$1" test $rc = "$2" -a "$(wc -l <stdout)" = "$2" -a ! -s stderr
    check "$1: says where and what" grep -qE -- "${3-^}" <(cat stdout; echo)
}
accepts() { # NAME FILE LINE...
    tree
    mkdir -p "planted/$(dirname "$2")"
    printf '%b\n' "$3" >>"planted/$2"
    outcome "$1" 0
}
refuses_citation() { # FILE LINE PATTERN
    tree
    mkdir -p "planted/$(dirname "$1")"
    printf '%b\n' "$2" >>"planted/$1"
    outcome "$1: $2" 1 "^$1:[0-9]+: .*$3"
}
tree
outcome "a tree that resolves" 0

accepts "several sections" src/curvature/mac.c '/* methods.md sections 0, 1 and 2; methods.md §2 */'
accepts "a range of sections" src/curvature/mac.c '/* (methods.md sections 0 to 2) */'
accepts "a citation that is broken" src/curvature/mac.c '/* see methods.md\n * section 2 */'
accepts "an address" README.md '[theirs](https://example.org/other.md#top)'
accepts "what compare writes" README.md 'compare.md and runs/compare.md'
accepts "what analyze writes" README.md 'summary.md'
accepts "a variable's folder" tests/new.sh 'grep x "$root/docs/methods.md" $root/README.md'
accepts "a placeholder" README.md '`src/curvature/NAME.c`, `tests/<area>/test_<unit>.c`'
accepts "a link in a code block" README.md '```\n[x](nowhere.md_)\n```'
accepts "an anchor of its own page" README.md '[up](#the-tree)'

refuses_citation src/curvature/mac.c '/* methods.md section 7 */' 'no section 7'
refuses_citation src/curvature/mac.c '/* methods.md section 3: within a code block */' 'no section 3'
refuses_citation src/curvature/mac.c '/* methods.md §12 */' 'no section 12'
refuses_citation src/curvature/mac.c '/* methods.md sections 0, 1 and 9 */' 'no section 9'
refuses_citation src/curvature/mac.c '/* methods.md sections 1 to 3 */' 'no section 3'
refuses_citation src/curvature/mac.c '/* methods.md\n * section 8 */' 'no section 8'
refuses_citation src/curvature/mac.c '/* option A of models.md */' 'models.md does not exist'
refuses_citation src/curvature/mac.c '/* docs/method.md section 1 */' 'docs/method.md does not exist'
refuses_citation src/curvature/new.cu '/* methods.md section 5 */' 'no section 5'
refuses_citation include/abar/new.h '/* methods.md section 5 */' 'no section 5'
refuses_citation tests/oracle/new.py '"""methods.md section 5"""' 'no section 5'
refuses_citation tests/new.sh 'grep x "$root/docs/method.md"' 'docs/method.md does not exist'
refuses_citation tools/new '# methods.md section 5' 'no section 5'
refuses_citation tools/new 'grep x "$root/docs/method.md"' 'docs/method.md does not exist'
refuses_citation docs/methods.md 'as optimizers.md says' 'optimizers.md does not exist'
refuses_citation README.md '[x](docs/nothing.svg)' 'docs/nothing.svg'
refuses_citation README.md '[x](docs/methods.md#4-kfac)' 'no such heading'
refuses_citation README.md '[x](#the-house)' 'no such heading'
refuses_citation README.md '[x](../outside)' 'leads nowhere'
refuses_citation README.md '[methods.md](docs/methods.md) section 6' 'no section 6'
refuses_citation README.md 'see `src/curvature/other.c`' 'src/curvature/other.c does not exist'
finish
