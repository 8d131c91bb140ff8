#!/usr/bin/env bash
# Loading and using nzcl must not change the process: its signals and their handlers, its environment, locale and umask, and after use its
# descriptors and threads. Nor may nzcl's threads take the process's signals, or programs that it starts inherit nzcl's descriptors.
# usage: process_state.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
build=$1
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

! ldd "$build/runtime/libnzcl.so" | grep -qE "lib(a|t|ub)san" || exit 0 # nothing to test, as a sanitizer catches signals itself
! ldd "$build/runtime/libnzcl.so" | grep -E 'libfabric|libpsm|infinipath' || fail "a program that links nzcl loads libfabric"

# unchanged NAME COMMAND...: two ranks, over each transport in turn
unchanged() {
  local name=$1 transport
  shift
  for transport in cma shm libfabric-shm tcp; do
    NZCL_TRANSPORT=$transport timeout 60 "$@" >"$work/out" 2>&1 || fail "$name, $transport: $(cat "$work/out")"
  done
}

program=$build/tests/build/process_state
"$program" linked >"$work/out" || fail "a program that links nzcl: $(cat "$work/out")"
unchanged "C program" "$program"

status=0
(ulimit -c 0 && exec env NZCL_TRANSPORT=tcp timeout --foreground 60 "$program" abort >"$work/out" 2>&1) || status=$?
[[ $status == 134 ]] || fail "abort() ends with status $status, not 134: $(cat "$work/out")"

! command -v python3 >/dev/null || unchanged "Python" python3 "$here/process_state.py" "$build/runtime/libnzcl.so"
