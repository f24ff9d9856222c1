#!/usr/bin/env bash
# A disk that is full at many sizes: train, resume and compare end in one line that says so, leave no temporary file, and the
# checkpoint before stays whole; with more space the run goes on to the same bytes as one that never met a full disk.
#
#     SIZES=N bash tests/campaign/test_disk.sh build/abar tests
#
# SIZES: how many, of each command [5].
if [[ ! ${IN_NAMESPACE-} ]]; then # mounting a file system of our own, for this process alone
    if ! unshare -rm true 2>/dev/null; then
        echo "skipped: no file system can be mounted here (unshare -rm)"
        exit 77
    fi
    IN_NAMESPACE=1 exec unshare -rm bash "$0" "$@"
fi
# shellcheck source=../cli/lib.sh
source "$(dirname "$0")/../cli/lib.sh"
SIZES=${SIZES:-5}
trap 'cd / && umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
mkdir disk
if ! mount -t tmpfs -o size=64m tmpfs disk 2>stderr; then
    echo "skipped: $(<stderr)"
    exit 77
fi
flags=(--model lenet5 --data synthetic --limit-train 256 --limit-test 64 --batch 32 --epochs 2 --threads 1 --quiet)
declare -A first=(
    [train]="train ${flags[*]} --optim mac --checkpoint-every 3 --out run"
    [resume]="train --resume run --epochs 4 --quiet"
    [compare]="compare ${flags[*]} --epochs 1 --optim sgd,mac --seeds 2 --out run"
)
declare -A again=([train]="train --resume run --quiet" [resume]="${first[resume]}" [compare]="compare --resume run --quiet")

disk() { mount -o "remount,size=$1k" disk; } # in KiB
prepare() { # NAME: what the command finds
    rm -rf disk/run
    if [[ $1 == resume ]]; then cp -r half disk/run; fi
}
here() { # WORDS: abar on the disk, one string of words
    ran="abar $1 with ${size-any} KiB"
    # shellcheck disable=SC2086
    (cd disk && exec "$abar" $1 >"$work/stdout" 2>"$work/stderr" </dev/null)
    rc=$?
}
one_clear_line() { failed_well 1 'no space left on device'; }
no_temporary_files() { ! find disk -name '*.tmp-*' | grep -q .; }
checkpoints_are_whole() {
    local file
    while read -r file; do
        "$abar" eval --checkpoint "$file" >"$work/stdout" 2>"$work/stderr" </dev/null || return 1
    done < <(find disk -name '*.safetensors')
}
same_weights() { # NAME
    local file
    while read -r file; do
        cmp "$file" "disk/run${file#whole-"$1"}" || return 1
    done < <(find "whole-$1" -name model.safetensors)
}

try() { # NAME, on a disk of size KiB
    prepare "$1"
    disk "$size"
    here "${first[$1]}"
    if ((rc == 0)); then
        fitted=$((fitted + 1))
        check "$1 with $size KiB: the weights are right" same_weights "$1"
        return
    fi
    check "$1 with $size KiB: one clear line" one_clear_line
    check "$1 with $size KiB: no temporary files" no_temporary_files
    check "$1 with $size KiB: checkpoints are whole" checkpoints_are_whole
    disk 65536
    if [[ -e disk/run/config.json || -e disk/run/compare.json ]]; then here "${again[$1]}"; else here "${first[$1]}"; fi
    check "$1 with $size KiB: goes on with more" test $rc = 0
    check "$1 with $size KiB: to the same weights" same_weights "$1"
}

prepare train
here "train ${flags[*]} --optim mac --out run"
check "a run to resume" test $rc = 0
mv disk/run half
for name in train resume compare; do
    unset size
    disk 65536
    prepare $name
    start=$(du -sk disk | cut -f1)
    here "${first[$name]}"
    check "$name with space enough" test $rc = 0
    most=$(($(du -sk disk | cut -f1) * 3 / 2)) # a file is written beside the one it replaces
    rm -rf "whole-$name" && cp -r disk/run "whole-$name"
    fitted=0
    for ((i = 0; i < SIZES; i++)); do
        size=$((start + 4 + (most - start) * i / SIZES))
        try $name
    done
    echo "$name: $SIZES sizes from $((start + 4)) to $size KiB, $fitted had space enough"
done
finish
