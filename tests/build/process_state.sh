#!/usr/bin/env bash
# Loading and using nzcl must not change the state of the process: which signals it catches, its locale and its environment.
# usage: process_state.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

! ldd "$build/runtime/libnzcl.so" | grep -qE "lib(a|t|ub)san" || exit 0 # nothing to test, as a sanitizer catches signals itself
! ldd "$build/runtime/libnzcl.so" | grep -E 'libfabric|libpsm|infinipath' || fail "a program that links nzcl loads libfabric"

# A program that prints the state of its process before nzcl is used and while a communicator lives.
cat >"$work/state.c" <<'END'
#include <locale.h>
#include <nzcl/nzcl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char** environ;

static void print_state(const char* when) {
  printf("%s:", when);
  for (int i = 1; i < 65; ++i) {
    struct sigaction a;
    if (sigaction(i, NULL, &a) == 0 && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN) printf(" signal %d", i);
  }
  int variables = 0;
  while (environ[variables]) ++variables;
  printf(" locale %s, %d variables\n", setlocale(LC_ALL, NULL), variables);
}

int main(int argc, char** argv) {
  print_state("linked");
  if (argc > 1) {
    nzclComm_t comm;
    nzclUniqueId id;
    if (nzclGetUniqueId(&id) || nzclCommInitRank(&comm, 1, id, 0)) return printf("%s\n", nzclGetLastError()), 1;
    print_state("used");
    nzclCommDestroy(comm);
  }
  if (argc > 2) abort();
  return nzclGetVersion() == NULL;
}
END
cc -std=gnu11 -I"$source/include" "$work/state.c" -o "$work/state" -L"$build/runtime" -lnzcl -Wl,-rpath,"$build/runtime"
"$work/state" >"$work/linked.out"
for transport in cma shm tcp; do
  NZCL_TRANSPORT=$transport "$work/state" use >"$work/$transport.out" || fail "$transport: $(cat "$work/$transport.out")"
  grep -q '^used:' "$work/$transport.out" || fail "$transport: no communicator"
done
for out in "$work"/*.out; do
  ! grep signal "$out" || fail "${out##*/}: signals are caught"
  [[ $(sed -E 's/^[a-z]+: //' "$out" | sort -u | wc -l) == 1 ]] || fail "${out##*/}: the process has changed: $(cat "$out")"
done
status=0
(ulimit -c 0 && exec env NZCL_TRANSPORT=tcp "$work/state" use abort >/dev/null 2>&1) || status=$?
[[ $status == 134 ]] || fail "abort() ends with status $status, not 134"

command -v python3 >/dev/null || exit 0
caught=$(python3 -c "
import ctypes
caught = lambda: [l for l in open('/proc/self/status') if l.startswith('SigCgt')]
bits = caught()
ctypes.CDLL('$build/runtime/libnzcl.so')
print(bits == caught())")
[[ $caught == True ]] || fail "loading nzcl into Python changes the signals that are caught"
