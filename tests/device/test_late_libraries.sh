#!/usr/bin/env bash
# A build with CUDA starts on machines without a GPU and without CUDA's libraries: these are loaded when a GPU is used.
# shellcheck source=../cli/lib.sh
source "$(dirname "$0")/../cli/lib.sh"

needs_no_cuda() { ! readelf -d "$abar" | grep -E 'NEEDED.*lib(cu|nv)'; }
if command -v readelf >/dev/null; then
    check "abar is not linked with CUDA's libraries" needs_no_cuda
else
    skip "no readelf"
fi
succeeds "abar starts" --version

run train "${small[@]}" --device cuda --no-out
if grep -q 'not in this build' "$work/stderr"; then
    skip "built without CUDA"
elif [[ $rc != 0 ]]; then
    check "a machine without a GPU is told in one line" failed_well "$rc" 'no CUDA device'
fi
finish
