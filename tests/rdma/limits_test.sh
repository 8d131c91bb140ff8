#!/usr/bin/env bash
# What a rank says when the system refuses: limits_test.sh CASE RANK_PROGRAM. Needs an RDMA device and root.
set -euo pipefail
case_name=$1 rank=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[[ -d /sys/class/infiniband && -n $(ls /sys/class/infiniband) ]] || { echo "no RDMA device here" && exit 77; }
export RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29600 NZCL_SECRET=secret NZCL_TRANSPORT=ibverbs NZCL_BOOTSTRAP_TIMEOUT_S=30
other=''

fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" >&2
  exit 1
}
# refused TEXT COMMAND...: fails within its time, and says TEXT
refused() {
  local text=$1 status=0
  shift
  timeout 60 "$@" >"$work/out" 2>&1 || status=$?
  [[ $status == 3 ]] || fail "status $status instead of 3: $*"
  grep -qE "$text" "$work/out" || fail "not said: $text"
}

case $case_name in
  locked_memory)
    # Root may lock what it likes, by this capability.
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
    # Too few for each kind of object in turn, until there are enough.
    said=()
    for ((objects = 0; objects < 40; objects++)); do
      for device in /sys/class/infiniband/*; do echo "${device##*/} hca_handle=max hca_object=$objects" >"$work/cgroup/job/rdma.max"; done
      status=0
      export WORLD_SIZE=2 MASTER_PORT=$((29600 + objects))
      RANK=1 "$rank" >"$work/other" 2>&1 & # not limited; there are no queue pairs with oneself
      other=$!
      # shellcheck disable=SC2016 # for the inner shell
      timeout 60 bash -c 'echo $$ >"$0" && exec "$1"' "$work/cgroup/job/cgroup.procs" "$rank" >"$work/out" 2>&1 || status=$?
      ((status == 0)) || kill "$other" 2>/dev/null || true # it may have heard of the end
      wait "$other" || ((status != 0)) || fail "$(cat "$work/other")"
      other=''
      ((status != 0)) || break
      [[ $status == 3 ]] || fail "status $status with $objects objects"
      grep -q "control group is reached (rdma.max)" "$work/out" || fail "the limit is not named with $objects objects"
      said+=("$(grep -oE 'creating a [a-z ]+|allocating a [a-z ]+|registering [0-9]+ MiB' "$work/out" | head -n 1)")
    done
    ((status == 0)) || fail "40 objects are not enough"
    for object in "allocating a protection domain" "creating a shared receive queue" "creating a queue pair"; do
      printf '%s\n' "${said[@]}" | grep -q "$object" || fail "never refused: $object, only: ${said[*]}"
    done
    ;;
  *) echo "no such case: $case_name" >&2 && exit 2 ;;
esac
