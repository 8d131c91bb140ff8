#!/usr/bin/env bash
# The kernels for GPUs are a valid program for every kind of GPU that is provided for, as NVIDIA's assembler says, and it has those that the
# library asks for. Usage: ptx.sh BUILD SOURCE
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/build/lib.sh
. "$here/lib.sh"

ptx=$build/runtime/gpu/kernels.ptx
if [[ ! -f $ptx ]]; then
  echo "SKIPPED: this build has no kernels for GPUs (package clang, and -DNZCL_CUDA)"
  exit 77
fi
for kernel in {pack,tiles,place,list}_{1,2,4,8,16} select_{0..6} sum_{0..6}; do
  grep -q "^.visible .entry nzcl_$kernel(" "$ptx" || fail "$ptx has no kernel nzcl_$kernel"
done
! grep -q '\.local' "$ptx" || fail "$ptx: a kernel keeps something in local memory, which is slow"

ptxas=$(command -v ptxas || true)
if [[ -z $ptxas ]]; then
  echo "SKIPPED: ptxas is not installed (NVIDIA's CUDA toolkit)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for arch in 75 80 90 100; do
  "$ptxas" -v -arch=sm_$arch "$ptx" -o "$work/kernels.o" >"$work/log" 2>&1 || fail "ptxas for sm_$arch: $(cat "$work/log")"
  ! grep -E '[1-9][0-9]* bytes spill' "$work/log" || fail "registers are spilled on sm_$arch"
done
