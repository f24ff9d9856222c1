#!/usr/bin/env bash
# Folders of images that are broken or hostile: abar data says in one line what is wrong and where, exits with 1, and writes
# nothing but its cache.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=images.sh
source "$tests/cli/images.sh"
ulimit -v 4000000 # KiB: sizes in headers are not believed

image_set good
# What lies outside the sets must not change.
mkdir outside && echo precious >outside/file
untouched() { [[ $(ls outside) == file && $(cat outside/file) == precious ]]; }
# broken NAME PATTERN [FLAGS...]: the set "bad" is refused in one line, by data and by a copy.
broken() {
    local name=$1 pattern=$2
    shift 2
    refuses "$name" 1 "$pattern" data --data imagefolder:bad "$@"
    refuses "$name: no copy" 1 "$pattern" data --data imagefolder:bad --shrink 8 --to small "$@"
    check "$name: nothing is written" test ! -e small -a ! -e small.partial
    check "$name: nothing outside" untouched
    chmod -R u+rwx bad 2>/dev/null
    rm -rf bad small.partial
}
# damaged NAME PATTERN: one image of "bad" is; the report names it, one line says how many.
damaged_well() { # PATTERN
    [[ $rc == 1 && $(wc -l <"$work/stderr") == 1 ]] && grep -qE '^abar: bad: 1 of [0-9]+ images is damaged' "$work/stderr" &&
        grep -qE -- "^    .*$1" "$work/stdout" && no_control_characters
}
damaged() {
    run data --data imagefolder:bad
    check "$1" damaged_well "$2"
    refuses "$1: no copy" 1 "$2" data --data imagefolder:bad --shrink 8 --to small
    check "$1: no copy appears" test ! -e small
    check "$1: nothing outside" untouched
    rm -rf bad small.partial
}
fresh() { rm -rf bad && cp -r good bad; }

# ---- mistakes ----
refuses "a path that does not exist" 1 'nowhere: no such file or folder' data --data imagefolder:nowhere
refuses "no path" 2 'imagefolder' data --data imagefolder
refuses "an empty path" 2 'imagefolder' data --data imagefolder:
refuses "a misspelt name" 2 'imagefolders: unknown' data --data imagefolders:good
: >bad && broken "a file instead of a folder" 'bad'
mkdir bad && broken "an empty folder" 'bad: .*(train|expected)'
mkdir -p bad/cat && jpeg 1 >bad/cat/1.jpg && broken "a folder without train/" 'train'
mkdir -p bad/train/cat && jpeg 1 >bad/train/cat/1.jpg && broken "a folder without val/" 'val'
mkdir -p bad/train bad/val && broken "parts without classes" 'train'
mkdir -p bad/train bad/val && jpeg 1 >bad/train/1.jpg && jpeg 2 >bad/val/2.jpg && broken "images without classes" 'train'
fresh && mkdir bad/train/owl && broken "a class without images" 'train/owl'
fresh && mkdir bad/val/owl && jpeg 1 >bad/val/owl/1.jpg && broken "a test class that training lacks" 'owl'
fresh && : >bad/train/cat/picture.gif && broken "a format that is not read" 'picture.gif'
fresh && printf 'cat\n' >order && broken "a list of classes that lacks one" 'dog|order' --classes order
fresh && broken "a list of classes that is missing" 'no-such-list' --classes no-such-list

# ---- damaged files ----
fresh && : >bad/train/cat/0.jpg && damaged "an empty file" 'train/cat/0.jpg: is empty'
fresh && jpeg 1 | head -c 200 >bad/train/cat/0.jpg && damaged "a truncated JPEG" 'train/cat/0.jpg: '
fresh && jpeg 1 | head -c -2 >bad/train/cat/0.jpg && damaged "a JPEG without its end" 'train/cat/0.jpg: '
fresh && png | head -c 70 >bad/train/cat/9.png && damaged "a truncated PNG" 'train/cat/9.png: '
fresh && printf 'GIF89a\1\0\1\0' >bad/train/cat/0.jpg && damaged "a GIF called .jpg" 'train/cat/0.jpg: .*GIF'
fresh && echo '<html>404 not found</html>' >bad/train/cat/0.jpg && damaged "a page called .jpg" 'train/cat/0.jpg: is not an image'
fresh && jpeg_size 65535 65535 >bad/train/cat/0.jpg && damaged "a header of 65,535 x 65,535" 'train/cat/0.jpg: '
fresh && jpeg_size 60000 60000 >bad/train/cat/0.jpg && damaged "a header of 60,000 x 60,000" 'train/cat/0.jpg: '
fresh && jpeg_size 0 16 >bad/train/cat/0.jpg && damaged "a header without width" 'train/cat/0.jpg: '
fresh && png >bad/train/cat/9.png && u32 60000 60000 | dd of=bad/train/cat/9.png bs=1 seek=16 conv=notrunc status=none &&
    damaged "a PNG of 60,000 x 60,000" 'train/cat/9.png: '
fresh && head -c 100000 /dev/urandom >bad/train/cat/0.jpg && damaged "random bytes" 'train/cat/0.jpg: is not an image'
fresh && { printf '\xff\xd8\xff\xe0' && head -c 100000 /dev/zero; } >bad/train/cat/0.jpg && damaged "a JPEG of zeros" 'train/cat/0.jpg: '
fresh && jpeg 1 >bad/val/dog/wrong.png && run data --data imagefolder:bad
check "a JPEG called .png is read" test "$rc" = 0
fresh && for ((i = 0; i < 60; i++)); do : >"bad/train/cat/empty$i.jpg"; done && run data --data imagefolder:bad
check "many damaged files: the first 50, then a count" test "$rc" = 1 -a "$(grep -c ': is empty' "$work/stdout")" = 50 -a "$(grep -c 'and 10 more' "$work/stdout")" = 1

# ---- names ----
fresh && jpeg 1 | head -c 100 >$'bad/train/cat/\xff\xfe\n.jpg' && damaged "a name that is no UTF-8, damaged" 'train/cat/.*: '
fresh && jpeg 77 >$'bad/train/cat/\xff\xfe\n\033[31m.jpg' && succeeds "a name that is no UTF-8" data --data imagefolder:bad
check "it is counted" says 'training +7 images'
fresh && mv bad/train/cat $'bad/train/c\nat' && mv bad/val/cat $'bad/val/c\nat' && succeeds "a class name with a line break" data --data imagefolder:bad
refuses "cannot be listed in a copy" 1 'line break' data --data imagefolder:bad --shrink 8 --to small
rm -rf bad small.partial

# ---- links and permissions ----
fresh && ln -s ../../train bad/train/cat/again && broken "a folder that contains itself" 'again|contains itself'
fresh && ln -s nowhere.jpg bad/train/cat/dangling.jpg && broken "a link that leads nowhere" 'dangling.jpg'
fresh && ln -s "$work/good/train/dog/0.jpg" bad/train/cat/linked.jpg && succeeds "a link to a file" data --data imagefolder:bad
check "is followed" says 'training +7 images'
fresh && mkfifo bad/train/cat/pipe.jpg && broken "a pipe" 'pipe.jpg'
# Root may read everything: abar is then run as nobody, where it can be.
may_all=$abar
if [[ $EUID == 0 ]]; then
    # shellcheck disable=SC2016 # "$@" is the script's
    printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$abar" >nobody
    chmod 755 nobody "$work" && abar=$work/nobody
fi
if "$abar" --version >/dev/null 2>&1; then
    fresh && chmod 000 bad/train/cat && broken "a folder that may not be read" 'train/cat.*denied'
    fresh && chmod 644 bad/train/cat && broken "a folder that may not be entered" 'train/cat.*denied'
    fresh && chmod 000 bad/train/cat/0.jpg && broken "a file that may not be read" 'train/cat/0.jpg: .*denied'
else
    skip "folders that may not be read: root may, and nobody cannot run abar"
fi
abar=$may_all

# ---- archives ----
# shards DIR: one shard per part.
shards() {
    mkdir -p "$1/train" "$1/val" sample && jpeg 5 >sample/a.jpg && printf 0 >sample/a.cls
    tar cf "$1/train/0.tar" -C sample a.jpg a.cls && tar cf "$1/val/0.tar" -C sample a.jpg a.cls
}
shards sharded && succeeds "shards" data --data imagefolder:sharded
check "are counted" says 'tar shards, 1 class$'
shards bad && printf x >sample/a.cls && tar cf bad/train/0.tar -C sample a.jpg a.cls && broken "a label that is no number" '0.tar'
shards bad && tar cf bad/train/0.tar -C sample a.jpg && broken "an image without a label" '0.tar'
shards bad && truncate -s 700 bad/train/0.tar && broken "an archive that ends early" '0.tar'
shards bad && printf 'not an archive at all' >bad/train/0.tar && broken "a text called .tar" '0.tar'
shards bad && tar czf bad/train/0.tar -C sample a.jpg a.cls && broken "a compressed archive" '0.tar'
shards bad && printf '77777777777' | dd of=bad/train/0.tar bs=1 seek=124 conv=notrunc status=none && broken "a huge size and a wrong checksum" '0.tar'
# with_size FILE: member 0 claims 8 GiB - 1, with the right checksum.
with_size() {
    local sum
    printf '77777777777' | dd of="$1" bs=1 seek=124 conv=notrunc status=none
    printf '        ' | dd of="$1" bs=1 seek=148 conv=notrunc status=none
    sum=$(head -c 512 "$1" | od -An -v -tu1 | awk '{ for (i = 1; i <= NF; i++) s += $i } END { print s }')
    printf '%06o\0 ' "$sum" | dd of="$1" bs=1 seek=148 conv=notrunc status=none
}
shards bad && with_size bad/train/0.tar && broken "a member that is larger than its archive" '0.tar'
shards bad && mkdir -p deep/down && tar cPf bad/train/0.tar -C deep/down --transform 's,^,../../outside/,' -C "$work/sample" a.jpg a.cls 2>/dev/null
run data --data imagefolder:bad
check "members that climb out of the folder are not unpacked" untouched
refuses "a copy of them stays inside" 1 'nothing' data --data imagefolder:nothing --shrink 8 --to small
rm -rf bad small small.partial
run data --data imagefolder:sharded --shrink 8 --to small
check "the copy of a set is where it was asked for" test "$rc" = 0 -a -e small/README
check "and nowhere else" untouched

finish
