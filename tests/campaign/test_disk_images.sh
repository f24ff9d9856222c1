#!/usr/bin/env bash
# Copies of images on a disk that is full, at several sizes, or killed at several moments: one line, no temporary file, nothing
# under the copy's name; with more space the same command ends with the same images as one that was not interrupted.
#
#     SIZES=N KILLS=N bash tests/campaign/test_disk_images.sh build/abar tests
if [[ ! ${IN_NAMESPACE-} ]]; then # mounting a file system of our own, for this process alone
    if ! unshare -rm true 2>/dev/null; then
        echo "skipped: no file system can be mounted here (unshare -rm)"
        exit 77
    fi
    IN_NAMESPACE=1 exec unshare -rm bash "$0" "$@"
fi
# shellcheck source=../cli/lib.sh
source "$(dirname "$0")/../cli/lib.sh"
# shellcheck source=../cli/images.sh
source "$tests/cli/images.sh"
SIZES=${SIZES:-5} KILLS=${KILLS:-10}
trap 'cd / && umount "$work/disk" 2>/dev/null; rm -rf "$work"' EXIT
mkdir disk
if ! mount -t tmpfs -o size=64m tmpfs disk 2>stderr; then
    echo "skipped: $(<stderr)"
    exit 77
fi

# 400 images, 200 in each part.
mkdir -p set/train/only set/val/only
for ((i = 0; i < 200; i++)); do jpeg $i >"set/train/only/$i.jpg" && jpeg $((i + 1000)) >"set/val/only/$i.jpg"; done
members() { for shard in "$1"/"$2"-*.tar; do tar xOf "$shard"; done | cksum; }
same() { [[ $(members whole train) == "$(members disk/copy train)" && $(members whole val) == "$(members disk/copy val)" ]]; }
disk() { mount -o "remount,size=$1k" disk; } # in KiB
copy=(data --data imagefolder:set --shrink 8 --to disk/copy)
succeeds "a copy" data --data imagefolder:set --shrink 8 --to whole
needed=$(du -sk whole | cut -f1)

for ((k = 0; k < SIZES; k++)); do
    size=$((8 + needed * k / (SIZES + 1)))
    rm -rf disk/*
    disk $size
    refuses "full at $size KiB" 1 'no space left on device' "${copy[@]}"
    check "full at $size KiB: no copy yet" test ! -e disk/copy
    check "full at $size KiB: no temporary files" test -z "$(find disk -name '*.tmp-*')"
    disk 65536
    succeeds "full at $size KiB: with more space" "${copy[@]}"
    check "full at $size KiB: the same images" same
done

for ((k = 1; k <= KILLS; k++)); do
    rm -rf disk/*
    "$abar" "${copy[@]}" >/dev/null 2>&1 &
    sleep "0.0$((k % 10))"
    { kill -KILL $! && wait $!; } 2>/dev/null
    succeeds "killed, $k" "${copy[@]}"
    check "killed, $k: the same images" same
    check "killed, $k: no remains" test -z "$(find disk -name '*.tmp-*' -o -name '*.partial')"
done

finish
