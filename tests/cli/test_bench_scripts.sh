#!/usr/bin/env bash
# The scripts of bench/ can be read by their interpreters. Most of them need hours or a GPU to run.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
python=$(command -v "${ABAR_PYTHON:-python3}") || skip "python3 is not installed"
for file in "$root"/bench/*; do
    [[ -f $file ]] || continue # what Python leaves behind
    ran="reading ${file##*/}"
    case $file:$(head -n 1 "$file") in
    *:'#!'*bash) check "${file##*/} is bash" bash -n "$file" ;;
    *.py:* | *:'#!'*python3)
        check "${file##*/} is Python" "$python" -c \
            'import sys; compile(open(sys.argv[1], encoding="utf-8").read(), sys.argv[1], "exec")' "$file" ;;
    *.c:* | *.cu:* | *.h:*) ;; # test_objects.sh
    *) fail "${file##*/} is of no known kind" ;;
    esac
done
finish
