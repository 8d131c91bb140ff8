#!/usr/bin/env bash
# What a machine's driver for GPUs comes to: nzcl_info says what it finds, or why nothing, and the driver is opened when somebody has memory
# of a GPU, and not before. A library in a folder that the loader looks into first stands for the machine's driver.
#   driver_test.sh CASE INFO ALLREDUCE_PERF FAKE_DRIVER SOURCE [PROGRAM...]
set -euo pipefail
case_name=$1 info=$2 allreduce=$3 fake=$4 source=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NZCL_LOG_LEVEL=warn

fail() {
  echo "FAILED: $*" >&2
  tail -n 40 "$work"/*.out >&2
  exit 1
}
# driver FILE: from now on it is the machine's.
driver() { ln -sf "$1" "$work/libcuda.so.1"; }
# with_driver COMMAND...
with_driver() { LD_LIBRARY_PATH=$work "$@"; }
# gpus: the lines of nzcl_info about GPUs.
gpus() {
  with_driver "$info" >"$work/info.out" 2>&1 || fail "nzcl_info"
  sed -n '/^GPUs/,/^$/p' "$work/info.out"
}
# openings COMMAND...: how many of its processes have opened the driver.
openings() {
  with_driver env LD_DEBUG=files LD_DEBUG_OUTPUT="$work/opened" "$@" >"$work/run.out" 2>&1 || fail "$*"
  (grep -l "calling init: $work/libcuda.so.1" "$work"/opened.* || true) | wc -l
  rm -f "$work"/opened.*
}

driver "$fake"
if [[ $case_name != info ]] && gpus | grep -q 'this build has no kernels'; then
  echo "SKIPPED: this build has no kernels for GPUs (package clang, and -DNZCL_CUDA)"
  exit 77
fi
case $case_name in
  info)
    driver "$(ldconfig -p | sed -n 's|.* => \(/.*/libm.so.6\)$|\1|p' | head -n 1)"
    gpus | grep -qF 'none: no CUDA driver: libcuda.so.1 has no cuInit, so it is older than CUDA 11.7; memory of a GPU needs NVIDIA' ||
      fail "it does not say that the driver is too old"
    echo 'no library' >"$work/text"
    driver "$work/text"
    gpus | grep -qE "none: no CUDA driver: .*libcuda.so.1: (file too short|invalid ELF header)" || fail "it does not say that the driver is broken"
    driver "$fake"
    gpus >"$work/gpus.out"
    grep -qE '^ +GPU 0: Fake GPU, compute capability 9.0' "$work/gpus.out" || fail "it does not say which GPU there is"
    grep -qE '^ +driver for CUDA 12.2' "$work/gpus.out" || fail "it does not say which driver there is"
    FAKE_CUDA_INIT=999 gpus | grep -qF 'none: no CUDA driver: cuInit: CUDA error 999' || fail "it does not say that the driver does not start"
    FAKE_CUDA_INIT=100 gpus | grep -qF 'none: no CUDA driver: cuInit: CUDA_ERROR_NO_DEVICE' || fail "it does not say that there is no GPU"
    rm "$work/libcuda.so.1"
    ! ldconfig -p | grep -q 'libcuda.so.1 ' || exit 0 # the machine has a driver of its own
    gpus | grep -qF 'none: no CUDA driver: libcuda.so.1: cannot open shared object file' || fail "it does not say that there is no driver"
    ;;
  opened)
    n=$(openings "$allreduce" --ranks 2 --transport shm -b 100000 -n 2 -w 0 --memory host)
    [[ $n == 0 ]] || fail "$n processes without memory of a GPU have opened the driver"
    n=$(openings "$allreduce" --ranks 2 --transport shm -b 100000 -n 2 -w 0 --memory cuda)
    ((n >= 2)) || fail "$n processes with memory of a GPU have opened the driver"
    ;;
  device_check)
    # All that the script runs on a machine with a GPU, but for most of the tests, which run by themselves.
    mkdir -p "$work/programs/lib"
    ln -s "$fake" "$work/programs/lib/libcuda.so.1"
    ln -s "${@:6}" "$info" "$allreduce" "$work/programs"
    export GTEST_FILTER='GpuKernels.Unit*:CudaMemory.IsKnown*:GpuErrors.Wrong*:GpuStreamErrors.What*'
    check() { "$source/scripts/device-check" --programs "$work/programs" --out "$work/page.md" "$@" >"$work/check.out" 2>&1; }
    check --mib 1 || fail "device-check"
    grep -q '^GPU 0: Fake GPU' "$work/page.md" || fail "the page does not say which GPU it is"
    [[ $(grep -cE '^\| [a-z].* \| passed \| [1-9][0-9]* \| 0 \| 0 \|' "$work/page.md") == 4 ]] || fail "not all tests have passed"
    for memory in 'cuda, auto' 'cuda, push' 'cuda-copied, auto' 'host, auto'; do
      [[ $(grep -cE "^\| $memory \| (1|0.1|0.01) \| [0-9.]+ \| [0-9.]+ \| 0 \| [0-9]+ \|" "$work/page.md") == 3 ]] || fail "no three right rows of $memory"
    done
    grep -q '^| AdaComp, bins of 500 | 0' "$work/page.md" || fail "no compressors"
    ! check --minutes 0 || fail "device-check has done all of it in no time"
    [[ $(grep -cF '**out of time**' "$work/page.md") == 9 ]] || fail "the page does not say that there was no time"
    ;;
  *) fail "no such case" ;;
esac
