#!/usr/bin/env bash
# Tests of ranks that share less than it seems, and of ranks that may have only few descriptors, threads, or memory in /dev/shm.
#   limits_test.sh CASE RANK_PROGRAM INFO_PROGRAM
set -euo pipefail
# shellcheck source=tests/process/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case_name=$1 rank=$2 info=$3
export NZCL_LOG_LEVEL=info NZCL_SECRET=secret-of-the-tests MASTER_ADDR=127.0.0.1

# new_job N: the next ranks belong to a job of this size
new_job() {
  export WORLD_SIZE=$1 MASTER_PORT
  MASTER_PORT=$(free_port)
  pids=()
}
# start R COMMAND...: starts a rank by this command, with its output in rankR.out
start() {
  local r=$1
  shift
  env "RANK=$r" "LOCAL_RANK=$r" "$@" >"$work/rank$r.out" 2>&1 &
  pids+=($!)
}
# expect STATUS [TEXT]: every rank ends with this status and says this
expect() {
  local r status
  for ((r = 0; r < WORLD_SIZE; r++)); do
    status=0
    wait "${pids[r]}" || status=$?
    [[ $status == "$1" ]] || fail "rank $r ended with status $status, not $1"
    [[ $# -lt 2 ]] || says "$r" "$2"
  done
  pids=()
}
says() { grep -qE -- "$2" "$work/rank$1.out" || fail "rank $1 did not say: $2"; } # R TEXT

# Before the command of a rank that nobody may write, so that cma is out of the question. Processes of root may write all the same,
# unless they lack the capability for it.
without=()
((EUID != 0)) || without=(setpriv --bounding-set=-all --inh-caps=-all)
need_root() {
  if ((EUID != 0)) || ! unshare --mount true 2>/dev/null; then skip "not allowed to make mount namespaces"; fi
}
# in_shm SIZE COMMAND...: runs it in a mount namespace of its own, where /dev/shm has this size
in_shm=$work/in_shm
cat >"$in_shm" <<'END'
#!/usr/bin/env bash
size=$1
shift
exec unshare --mount bash -c 'mount -t tmpfs -o "size=$0,mode=1777" none /dev/shm && exec "$@"' "$size" "$@"
END
chmod +x "$in_shm"
cma=yes
grep -qE '^ +cma +yes' <<<"$("$info" 2>/dev/null)" || cma=no # some containers forbid it

case $case_name in
  small_dev_shm)
    # Docker gives 64 MiB. The ranks must not end by SIGBUS when they use memory that is not there.
    need_root
    # shellcheck disable=SC2016 # the inner shell expands it
    all_in_one='for r in 0 1 2 3; do RANK=$r "$@" >"$0/rank$r.out" 2>&1 & pids+=($!); done
      for r in 0 1 2 3; do status=0; wait "${pids[r]}" || status=$?; echo "$status" >"$0/status$r"; done'
    # job SIZE STATUS TEXT [VARIABLE=VALUE...] -- COMMAND...: four ranks in one such namespace
    job() {
      local size=$1 status=$2 text=$3 variables=() r
      shift 3
      while [[ $1 != -- ]]; do variables+=("$1") && shift; done
      shift
      new_job 4
      "$in_shm" "$size" env "${variables[@]}" bash -c "$all_in_one" "$work" "$@"
      for r in 0 1 2 3; do
        [[ $(cat "$work/status$r") == "$status" ]] || fail "rank $r ended with status $(cat "$work/status$r"), not $status"
        says "$r" "$text"
      done
    }
    job 40M 3 'rank [0-3] \(pid .*/dev/shm has 40 MiB, of which [0-9]+ MiB are free' NZCL_TRANSPORT=libfabric-shm NZCL_LANES=4 -- "$rank"
    # nzcl's own shm has no data there, only the names of sockets.
    job 40M 0 '\(colocated\), shm, ' NZCL_LANES=4 -- "${without[@]}" "$rank" --not-dumpable
    job 64K 0 '\(colocated\), shm, ' NZCL_TRANSPORT=shm NZCL_LANES=4 -- bash -c 'dd if=/dev/zero of=/dev/shm/full bs=4k status=none 2>/dev/null; exec "$@"' -- "$rank"
    job 40M,nr_inodes=1 3 'no socket can be made in /dev/shm.*: No space left on device \(it is full, or has no inodes left\); use NZCL_TRANSPORT=tcp' \
      NZCL_TRANSPORT=shm -- "$rank"
    job 40M,nr_inodes=1 0 '\(colocated\), (net|tcp)' -- "${without[@]}" "$rank" --not-dumpable
    says 0 'the transport shm cannot be used within this host: .*no socket can be made in /dev/shm'
    ;;
  nothing_in_dev_shm)
    # Ranks that have connected have no name there any more, so one that is killed leaves nothing.
    need_root
    new_job 2
    # shellcheck disable=SC2016 # the inner shell expands it
    "$in_shm" 1M env NZCL_TRANSPORT=shm NZCL_LANES=4 bash -c 'for r in 0 1; do RANK=$r "$@" >"$0/rank$r.out" 2>&1 & done
      wait; ls -A /dev/shm >"$0/left.out"' "$work" "$rank" --rounds 100000 --die-rank 1 --die-at 5
    says 0 'rank 1 \(pid .*\) died'
    [[ -e $work/left.out && ! -s $work/left.out ]] || fail "something was left in /dev/shm"
    ;;
  other_dev_shm)
    # Both are in one IPC namespace.
    need_root
    for transport in shm libfabric-shm; do
      new_job 2
      start 0 "NZCL_TRANSPORT=$transport" "$rank"
      start 1 "NZCL_TRANSPORT=$transport" "$in_shm" 50% "$rank"
      expect 3 'the peer sees another /dev/shm'
    done
    new_job 2
    start 0 "${without[@]}" "$rank" --not-dumpable
    start 1 "$in_shm" 50% "${without[@]}" "$rank" --not-dumpable
    expect 0 '\(colocated\), (net|tcp)'
    [[ $cma == yes ]] || exit 0
    new_job 2 # cma does without /dev/shm
    start 0 "$rank"
    start 1 "$in_shm" 50% "$rank"
    expect 0 '\(colocated\), cma'
    ;;
  other_pid_namespace)
    unshare --pid --fork --mount-proc true 2>/dev/null || skip "not allowed to make pid namespaces"
    new_job 2
    start 0 "$rank"
    start 1 unshare --pid --fork --mount-proc "$rank"
    expect 0 '\(colocated\), shm, '
    for transport in libfabric-shm cma; do
      [[ $transport != cma || $cma == yes ]] || continue
      new_job 2
      start 0 "NZCL_TRANSPORT=$transport" "$rank"
      start 1 "NZCL_TRANSPORT=$transport" unshare --pid --fork --mount-proc "$rank"
      expect 3 'pid namespace'
    done
    ;;
  two_users)
    ((EUID == 0)) || skip "only root may start a process of another user"
    nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${nobody[@]}" test -x "$rank" || skip "another user may not read this build"
    new_job 2
    start 0 "$rank"
    start 1 "${nobody[@]}" "$rank"
    expect 0 '\(colocated\), (net|tcp)'
    for transport in shm cma; do
      [[ $transport == shm || $cma == yes ]] || continue
      new_job 2
      start 0 "NZCL_TRANSPORT=$transport" "$rank"
      start 1 "NZCL_TRANSPORT=$transport" "${nobody[@]}" "$rank"
      expect 3 '(another user|no access to process)'
    done
    ;;
  few_descriptors)
    hard=$(ulimit -Hn)
    [[ $hard == unlimited ]] || ((hard >= 1024)) || skip "the hard limit is $hard"
    for transport in "$([[ $cma == yes ]] && echo cma || echo shm)" tcp; do
      new_job 4
      for r in 0 1 2 3; do # the soft limit is raised
        # shellcheck disable=SC2016 # the inner shell expands it
        start "$r" "NZCL_TRANSPORT=$transport" NZCL_LANES=6 bash -c 'ulimit -Sn 32 && exec "$@"' -- "$rank"
      done
      expect 0
    done
    new_job 4
    for r in 0 1 2 3; do # the hard limit of one of them is too low
      # shellcheck disable=SC2016 # the inner shell expands it
      start "$r" NZCL_TRANSPORT=tcp NZCL_LANES=6 bash -c 'ulimit -n "$0" && exec "$@"' "$((r == 2 ? 48 : 512))" "$rank"
    done
    expect 3 '4 members and 6 lane\(s\) need about [0-9]+ descriptors in this process, which has [0-9]+ open; its hard limit is 48 \(RLIMIT_NOFILE\)'
    for r in 0 1 3; do says "$r" '^rank 2 \(pid'; done
    ;;
  few_descriptors_for_peers)
    # Descriptors of all 15 peers do not fit below the hard limit. Those of cma take turns then.
    hard=$(ulimit -Hn)
    [[ $hard == unlimited ]] || ((hard >= 1024)) || skip "the hard limit is $hard"
    [[ $cma == yes ]] || skip "cma is forbidden here"
    new_job 16
    for r in {0..15}; do
      # shellcheck disable=SC2016 # the inner shell expands it
      start "$r" NZCL_TRANSPORT=cma NZCL_LANES=1 bash -c 'ulimit -n 48 && exec "$@"' -- "$rank"
    done
    expect 0 '16 members and 1 lane\(s\): [0-9]+ of 30 descriptors of peers are kept at a time'
    # One that dies is named all the same.
    new_job 16
    for r in {0..15}; do
      # shellcheck disable=SC2016 # the inner shell expands it
      start "$r" NZCL_TRANSPORT=cma NZCL_LANES=1 bash -c 'ulimit -n 48 && exec "$@"' -- "$rank" --rounds 100000 --die-rank 7 --die-at 5
    done
    for r in {0..15}; do wait "${pids[r]}" || true; done
    for r in {0..6} {8..15}; do says "$r" 'rank 7 \(pid .*\) died'; done
    ;;
  few_descriptors_over_tcp)
    # One rank may have connections to some of the others, but not to all of them. It says so when it joins. Small operations
    # go among few, and a large one fails on all ranks with the limit of that one.
    hard=$(ulimit -Hn)
    [[ $hard == unlimited ]] || ((hard >= 1024)) || skip "the hard limit is $hard"
    # job COUNT: 48 ranks sum so many elements, and rank 3 may have 66 descriptors
    job() {
      local r
      new_job 48
      for ((r = 0; r < 48; r++)); do
        # shellcheck disable=SC2016 # the inner shell expands it
        start "$r" NZCL_TRANSPORT=tcp NZCL_LANES=1 bash -c 'ulimit -n "$0" && exec "$@"' "$((r == 3 ? 66 : 512))" "$rank" --rounds 1 --count "$1"
      done
    }
    job 1000
    expect 0
    says 3 '48 members and 1 lane\(s\): connections to all of them would take about [0-9]+ descriptors in this process, but its hard limit is 66'
    job 1000000
    expect 3 'rank 3 lost rank [0-9]+: .*Too many open files \(this process may have 66 descriptors open'
    ;;
  few_descriptors_to_meet)
    # Member 0 has a connection to each of the others. It says so at once, and does not wait for them.
    hard=$(ulimit -Hn)
    [[ $hard == unlimited ]] || ((hard >= 1024)) || skip "the hard limit is $hard"
    new_job 200
    # shellcheck disable=SC2016 # the inner shell expands it
    start 0 NZCL_BOOTSTRAP_TIMEOUT_S=600 timeout 60 bash -c 'ulimit -n 100 && exec "$@"' -- "$rank"
    WORLD_SIZE=1 expect 3 '200 members that meet here need about 2[0-9]+ descriptors in this process, which has [0-9]+ open; its hard limit is 100 \(RLIMIT_NOFILE\). Raise it to 2[0-9]+ at least'
    new_job 2 # one of a few members needs few
    # shellcheck disable=SC2016 # the inner shell expands it
    start 0 bash -c 'ulimit -n 100 && exec "$@"' -- "$rank"
    start 1 "$rank"
    expect 0
    ;;
  few_threads)
    # The limit counts the processes of a user, so this one gets a user that has no others. Two threads are the program's own
    # and the control plane's.
    ((EUID == 0)) || skip "only root may start a process of another user"
    user=$((100000 + $$))
    limited=(setpriv "--reuid=$user" "--regid=$user" --clear-groups)
    "${limited[@]}" test -x "$rank" || skip "another user may not read this build"
    new_job 3
    for r in 0 2; do start "$r" NZCL_TRANSPORT=tcp NZCL_LANES=2 "$rank"; done
    pids=("${pids[0]}" 0 "${pids[1]}")
    # shellcheck disable=SC2016 # the inner shell expands it
    RANK=1 LOCAL_RANK=1 NZCL_TRANSPORT=tcp NZCL_LANES=2 "${limited[@]}" bash -c 'ulimit -u 3 && exec "$@"' -- "$rank" >"$work/rank1.out" 2>&1 &
    pids[1]=$!
    expect 3 'the thread nzcl-lane-1 cannot be started: .* 3 of this user \(RLIMIT_NPROC, ulimit -u\)'
    for r in 0 2; do says "$r" '^rank 1 \(pid'; done
    ;;
  *) fail "no such case" ;;
esac
