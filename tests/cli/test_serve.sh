#!/usr/bin/env bash
# abar serve: what it answers, what it refuses, and its mistakes. Everything happens on this machine's loopback.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"

run train --model mlp --widths 784-16-10 --data synthetic --limit-train 256 --batch 32 --threads 1 --quiet --epochs 3 --optim mac --out run
mkdir served
cp -r run served/run
cp -r run 'served/a b%&'

# --- mistakes ---
refuses "no folder" 1 'abar serve DIR' serve
refuses "a port that is none" 2 'port' serve served --port 70000
run serve served --bind 0.0.0.0
if grep -q 'no libmicrohttpd' stderr; then
    check "a build without libmicrohttpd says so" failed_well 2 'install libmicrohttpd-dev'
    skip "this build has no libmicrohttpd: nothing is served"
    finish
fi
check "another address needs a token" failed_well 2 '0[.]0[.]0[.]0: .*token'
refuses "a folder that is not there" 2 'nowhere: ' serve nowhere
refuses "a file" 2 'give a folder' serve run/config.json
refuses "an address of another machine" 1 'choose another' serve served --bind 192.0.2.1 --token 0123456789abcdef
refuses "an address that is none" 2 'numbers' serve served --bind example.org
refuses "a short token" 2 'token' serve served --token short
refuses "a token of other characters" 2 'token' serve served --token '0123456789abcdef<>'

if ! command -v python3 >/dev/null; then
    skip "no python3: no requests are made"
    finish
fi
echo "precious-text-of-the-outside-$RANDOM" >secret
cp -r run beside
cp secret beside/log.jsonl
sed -i "s/\"train\": {/\"train\": {\"note\": \"$(cat secret)\", /" beside/config.json
ln -s ../beside served/link-folder
ln -s .. served/link-up
mkdir served/link-file served/pipe served/folder
ln -s ../../beside/log.jsonl served/link-file/log.jsonl
ln -s ../../beside/config.json served/link-file/config.json
mkfifo served/pipe/log.jsonl
mkdir served/folder/log.jsonl
python3 "$tests/cli/serve_checks.py" "$abar" "$work" >"$work/stdout" 2>"$work/stderr"
rc=$? ran=serve_checks.py
check "requests" test $rc = 0
cat "$work/stdout"
finish
