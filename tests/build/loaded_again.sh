#!/usr/bin/env bash
# A program that unloads nzcl and loads it again, over each transport in turn, must go on as if it had never unloaded it.
# usage: loaded_again.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
build=$1
library=$build/runtime/libnzcl.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

! ldd "$library" | grep -qE "lib(a|t|ub)san" || exit 0 # a sanitizer must be loaded before the program

for transport in cma shm libfabric-shm tcp; do
  NZCL_TRANSPORT=$transport timeout 60 "$build/tests/build/loaded_again" "$library" >"$work/out" 2>&1 ||
    fail "loaded again over $transport, status $?: $(cat "$work/out")"
done
