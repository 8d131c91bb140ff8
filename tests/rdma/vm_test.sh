#!/usr/bin/env bash
# Tests that boot VMs of their own. Usage: vm_test.sh CASE RANK_PROGRAM NUMA_TEST.
set -euo pipefail
case_name=$1 rank=$2 numa_test=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
softroce=$here/../../scripts/softroce

case $case_name in
  two_machines)
    # Each machine runs the case on_each_machine of this file, and the sums of its ranks cross the link
    # between the machines.
    "$softroce" --no-install --vms 2 --devices 2 --time 350 -- bash "$here/vm_test.sh" on_each_machine "$rank" "$numa_test" | tee /dev/stderr |
      grep -c ': ok$' | grep -qx 12 || { echo "not every rank was right" >&2 && exit 1; }
    ;;
  on_each_machine)
    export MASTER_ADDR=10.77.0.1 NZCL_SECRET=secret-of-the-tests NZCL_TRANSPORT=ibverbs NZCL_TIMEOUT_S=60 NZCL_PIN=off
    port=29500
    run() { # RANKS PER MACHINE, VARIABLE=VALUE...
      local per_machine=$1 pids=() i pid
      shift
      for ((i = 0; i < per_machine; i++)); do
        env "$@" RANK=$((SOFTROCE_VM * per_machine + i)) WORLD_SIZE=$((2 * per_machine)) MASTER_PORT=$port "$rank" --rounds 3 --count 50000 &
        pids+=($!)
      done
      for pid in "${pids[@]}"; do wait "$pid"; done
      port=$((port + 1))
    }
    run 1 NZCL_CONNECT=bootstrap
    run 1 NZCL_CONNECT=rdma_cm
    run 2 NZCL_CONNECT=bootstrap
    run 2 NZCL_CONNECT=rdma_cm
    ;;
  two_numa_nodes)
    # One processor per node, because a VM with more processors than this machine has takes very long to boot
    # (perf/results/tuning.md).
    "$softroce" --no-install --numa 2 --smp 2 --devices 1 --time 350 -- "$numa_test" | tee /dev/stderr | grep -q '^\[  PASSED  \] 7 tests\.$' ||
      { echo "not all seven tests ran and passed" >&2 && exit 1; }
    ;;
  *) echo "no such case: $case_name" >&2 && exit 2 ;;
esac
