#!/usr/bin/env bash
# abar data on folders of images: what it reports, what it keeps, and the smaller copies it makes.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
# shellcheck source=images.sh
source "$tests/cli/images.sh"

# ---- the report ----
image_set good
jpeg 90 gray >good/train/cat/gray.JPEG
jpeg 91 progressive >good/train/cat/progressive.jpeg
jpeg 92 cmyk >good/train/dog/cmyk.jpg
png >good/train/dog/small.PNG
echo notes >good/train/dog/notes.txt
succeeds "a good set" data --data imagefolder:good
check "layout and classes" says 'class folders, 2 classes'
check "training images" says 'training +10 images, .*, 5 per class'
check "test images" says 'test +4 images, .*, 2 per class'
check "formats" says '13 JPEG \(1 progressive, 1 gray, 1 CMYK\), 1 PNG'
check "sizes" says '4 x 4 smallest, 20 x 16 median, 20 x 16 largest'
check "names that are no images" says 'ignored +1 name'
check "no damage is reported" test "$(grep -cE 'damaged|repeated|leaked|stopped' "$work/stdout")" = 0
succeeds "the same as JSON" data --data imagefolder:good --json
check "one object" one_json_object
check "counts" says '"train": \{"images": 10, .*"test": \{"images": 4, .*"gray": 1, .*"png": 1'
check "largest and complete" says '"largest": \[20, 16\].*"complete": true'
succeeds "headers alone" data --data imagefolder:good --fast
check "headers alone is said" says 'headers alone'
succeeds "one worker" data --data imagefolder:good --workers 1
succeeds "a part of a known set" data --data tiny-imagenet:good
check "is compared with what was published" says 'tiny-imagenet has 100000 \+ 10000 images'
mkdir classes && printf 'dog\tHund\ncat\n' >classes/order.txt
succeeds "another order of classes" data --data imagefolder:good --classes classes/order.txt

# ---- copies ----
image_set twins
cp twins/train/cat/0.jpg twins/train/dog/again.jpg
cp twins/train/cat/1.jpg twins/val/dog/seen.jpg
succeeds "a set with copies" data --data imagefolder:twins
check "a copy in training" says 'repeated +1 '
check "and which" says 'train/dog/again.jpg = .*train/cat/0.jpg'
check "a training image in the test part" says 'leaked +1 '
check "and which it is" says 'val/dog/seen.jpg = .*train/cat/1.jpg'

check "one of each" bash -c "grep -q 'training image has' '$work/stdout' && grep -q 'test image has' '$work/stdout'"

# ---- not the folder of a set ----
refuses "a path alone" 2 '--data good: a path alone .* as in imagefolder:DIR' data --data good
refuses "a file" 1 '0.jpg: is a file, give the folder that holds train/ and val/' data --data imagefolder:good/train/cat/0.jpg
refuses "a part of a set" 1 'good/train: has no layout .*; found cat/, dog/; give the folder above it' data --data imagefolder:good/train
refuses "one class" 1 'train/cat: has no layout .*progressive.jpeg$' data --data imagefolder:good/train/cat
mkdir -p above && ln -s ../good above/good
refuses "the folder above a set" 1 'above: has no layout .*; found good/; did you mean good in it' data --data imagefolder:above

# ---- what was checked is kept ----
age good
run data --data imagefolder:good
succeeds "a second check" data --data imagefolder:good
check "nothing is decoded twice" says 'checked +nothing; 14 were checked before'
jpeg 99 >good/train/cat/new.jpg
succeeds "a file more" data --data imagefolder:good
check "is found" says 'training +11 images'
age good
run data --data imagefolder:good
jpeg 98 | head -c 200 >good/train/cat/new.jpg # in place: the folder's time stays
run data --data imagefolder:good
check "a file that was replaced is found" test "$rc" = 1 -a "$(grep -c 'new.jpg: ' "$work/stdout")" = 1
check "and counted" grep -qE '^abar: good: 1 of 15 images is damaged' "$work/stderr"

# ---- training and copying find it, too: the next command reads the files as they are ----
small=(--model mlp --widths 192-4-2 --data imagefolder:swap --size 8 --test-size 8 --test-resize 8 --batch 2 --epochs 1 --no-out)
image_set swap
age swap
succeeds "a run on a set" train "${small[@]}" --quiet
cat good/train/dog/cmyk.jpg >swap/train/cat/1.jpg
refuses "a run after a file was replaced in place" 1 'cat/1.jpg: changed since it was indexed, begin again' train "${small[@]}" --quiet
succeeds "it is begun again" train "${small[@]}" --quiet
cat good/train/cat/gray.JPEG >swap/train/cat/1.jpg
refuses "a copy after a file was replaced in place" 1 'cat/1.jpg: changed since it was indexed, remove swapped.partial' \
    data --data imagefolder:swap --shrink 8 --to swapped
refuses "the copy that was begun" 2 'swapped.partial: .*, remove it if the set has changed, or' data --data imagefolder:swap \
    --shrink 8 --to swapped
rm -r swapped.partial
succeeds "it is begun again, too" data --data imagefolder:swap --shrink 8 --to swapped

run data --data imagefolder:good --json
check "damage as JSON" says '"damaged": 1, .*"damaged_images": \["[^"]*new.jpg: '
rm good/train/cat/new.jpg

# ---- smaller copies ----
succeeds "a copy" data --data imagefolder:good --shrink 8 --to copy --workers 2
check "is announced" says '14 images in 2 tar shards'
check "its files" test "$(cd copy && echo ./*)" = './README ./classes.txt ./train-000000000-000000010.tar ./val-000000000-000000004.tar'
check "its first line" grep -qE '^abar shrink: short side 8, 10 \+ 4 images' copy/README
check "its classes" test "$(tr '\n' ' ' <copy/classes.txt)" = 'cat dog '
check "its members" test "$(tar tf copy/val-000000000-000000004.tar | tr '\n' ' ')" = '000000000.cls 000000000.jpg 000000001.cls 000000001.jpg 000000002.cls 000000002.jpg 000000003.cls 000000003.jpg '
check "its labels" test "$(for shard in copy/*.tar; do tar xOf "$shard" --wildcards '*.cls'; done)" = 00000111110011
succeeds "a copy is a data set" data --data imagefolder:copy
check "which is called one" says 'tar shards, 2 classes; copies with a short side of 8'
check "with smaller images" says '10 x 8 largest'
check "and the same counts" says 'training +10 images, .*, 5 per class'
succeeds "the copy is there already" data --data imagefolder:good --shrink 8 --to copy
check "which is said" says 'nothing was written'
refuses "another size in the same place" 2 'copy: has other files' data --data imagefolder:good --shrink 9 --to copy
refuses "a copy over a set" 2 'twins: has other files' data --data imagefolder:good --shrink 8 --to twins
refuses "a copy over a file" 2 'classes/order.txt: is not a folder' data --data imagefolder:good --shrink 8 --to classes/order.txt
refuses "a copy inside the set" 2 'is inside the data set' data --data imagefolder:good --shrink 8 --to good/train/small
cd good
refuses "a copy inside the set, by a name alone" 2 'is inside the data set' data --data imagefolder:. --shrink 8 --to small
cd ..
check "nothing is made inside" test ! -e good/train/small -a ! -e good/train/small.partial
refuses "a copy of a copy of that size" 2 'already' data --data imagefolder:copy --shrink 8 --to twice
mkdir empty
succeeds "an empty folder is taken" data --data imagefolder:good --shrink 8 --to empty/
check "and filled with the same" cmp -s copy/train-000000000-000000010.tar empty/train-000000000-000000010.tar
chmod 500 . && [[ ! -w . ]] && refuses "a place that cannot be written" 1 'denied' data --data imagefolder:good --shrink 8 --to no
chmod 700 .
cp -r good harmed && jpeg 1 | head -c 250 >harmed/val/cat/0.jpg
refuses "a damaged image is not copied" 1 'harmed/val/cat/0.jpg: ' data --data imagefolder:harmed --shrink 8 --to harmed-small
check "what was done stays for the next time" test -d harmed-small.partial -a ! -e harmed-small
cp good/val/cat/0.jpg harmed/val/cat/0.jpg
rm -r harmed-small.partial
succeeds "after repair" data --data imagefolder:harmed --shrink 8 --to harmed-small
mkdir other.partial && echo mine >other.partial/letter
refuses "a folder that is somebody else's" 2 'other.partial: has other files' data --data imagefolder:good --shrink 8 --to other
check "which is left alone" test "$(ls other.partial)" = letter

# Killed at any moment, a copy goes on and ends with the same images.
members() { for shard in "$1"/"$2"-*.tar; do tar xOf "$shard"; done | cksum; }
mkdir many && for part in train val; do
    mkdir -p "many/$part/only"
    for ((i = 0; i < 150; i++)); do jpeg $i >"many/$part/only/$i.jpg"; done
done
succeeds "a larger set" data --data imagefolder:many --shrink 8 --to whole
for delay in 0.01 0.02 0.04 0.06 0.1; do
    "$abar" data --data imagefolder:many --shrink 8 --to parts >/dev/null 2>&1 &
    sleep $delay
    { kill -KILL $! && wait $!; } 2>/dev/null # until it is gone, and its lock with it
done
succeeds "a killed copy goes on" data --data imagefolder:many --shrink 8 --to parts
for part in train val; do check "with the same images: $part" test "$(members whole $part)" = "$(members parts $part)"; done
check "without remains" test "$(find . -name '*.tmp-*' -o -name '*.partial' | grep -vc other.partial)" = 0

# ---- flags that do not fit ----
refuses "--shrink without --to" 2 '--to' data --data imagefolder:good --shrink 8
refuses "--to without --shrink" 2 '--shrink' data --data imagefolder:good --to x
refuses "--shrink of another set" 2 '--shrink: is for folders of images' data --data synthetic --shrink 8 --to x
refuses "--fast without data" 2 '--fast: is for folders of images' data --fast
refuses "--shrink with --fast" 2 '--fast' data --data imagefolder:good --shrink 8 --to x --fast
refuses "a size that is none" 2 '--shrink' data --data imagefolder:good --shrink 100000 --to x
check "nothing was written for these" test ! -e x -a ! -e x.partial

finish
