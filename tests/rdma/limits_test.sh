#!/usr/bin/env bash
# Tests what a rank reports when a limit of the system is reached. Usage: limits_test.sh CASE RANK_PROGRAM. Needs an RDMA device and root.
set -euo pipefail
case_name=$1 rank=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ -d /sys/class/infiniband && -n $(ls /sys/class/infiniband) ]] || { echo "no RDMA device here" && exit 77; }
export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29600 NZCL_SECRET=secret-of-the-tests NZCL_TRANSPORT=ibverbs NZCL_BOOTSTRAP_TIMEOUT_S=30
other=''

fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" >&2
  exit 1
}
# refused TEXT COMMAND...: the command must fail within its time and print TEXT.
refused() {
  local text=$1 status=0
  shift
  timeout 60 "$@" >"$work/out" 2>&1 || status=$?
  [[ $status == 3 ]] || fail "status $status instead of 3: $*"
  grep -qE "$text" "$work/out" || fail "not said: $text"
}

case $case_name in
  locked_memory)
    # Root may lock any amount of memory because of this capability, so it is dropped.
    unprivileged=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock)
    ulimit -l 64
    refused 'rxe[0-9:]+: registering .*: Cannot allocate memory; raise the limit on locked memory \(ulimit -l' "${unprivileged[@]}" "$rank"
    ulimit -l 65536
    timeout 60 "${unprivileged[@]}" "$rank" >"$work/out" 2>&1 || fail "64 MiB are not enough"
    ;;
  control_group)
    mkdir "$work/cgroup"
    mount -t cgroup2 none "$work/cgroup"
    trap '[[ -z $other ]] || kill "$other" 2>/dev/null || true; umount "$work/cgroup"; rm -rf "$work"' EXIT
    echo +rdma >"$work/cgroup/cgroup.subtree_control"
    mkdir "$work/cgroup/job"
    # The limit grows from 0 until there are enough objects, so that each kind of object is refused once.
    said=()
    for ((objects = 0; objects < 40; objects++)); do
      for device in /sys/class/infiniband/*; do echo "${device##*/} hca_handle=max hca_object=$objects" >"$work/cgroup/job/rdma.max"; done
      status=0
      export WORLD_SIZE=2 MASTER_PORT=$((29600 + objects))
      RANK=1 "$rank" >"$work/other" 2>&1 & # this rank is not limited; it exists because a single rank makes no queue pairs for peers
      other=$!
      # shellcheck disable=SC2016 # the inner shell expands it
      timeout 60 bash -c 'echo $$ >"$0" && exec "$1"' "$work/cgroup/job/cgroup.procs" "$rank" >"$work/out" 2>&1 || status=$?
      ((status == 0)) || kill "$other" 2>/dev/null || true # it may have ended by itself when its peer failed
      wait "$other" || ((status != 0)) || fail "$(cat "$work/other")"
      other=''
      ((status != 0)) || break
      [[ $status == 3 ]] || fail "status $status with $objects objects"
      grep -q "control group is reached (rdma.max)" "$work/out" || fail "the limit is not named with $objects objects"
      said+=("$(grep -oE 'creating a [a-z ]+|allocating a [a-z ]+|registering ([0-9]+ MiB|memory for calls)|finding the way to peer' "$work/out" | head -n 1)")
    done
    ((status == 0)) || fail "40 objects are not enough"
    for object in "allocating a protection domain" "creating a shared receive queue" "creating a queue pair$" "creating a queue pair for calls" "finding the way"; do
      printf '%s\n' "${said[@]}" | grep -q "$object" || fail "never refused: $object, only: ${said[*]}"
    done
    ;;
  *) echo "no such case: $case_name" >&2 && exit 2 ;;
esac
