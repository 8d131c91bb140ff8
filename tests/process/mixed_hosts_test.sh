#!/usr/bin/env bash
# Tests of ranks on several hosts some of which share one. A host is a network namespace and an IPC namespace of its own; a bridge
# joins them.
#   mixed_hosts_test.sh CASE RANK_PROGRAM INFO_PROGRAM AGGREGATOR_PROGRAM
set -euo pipefail
# shellcheck source=tests/process/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case_name=$1 rank=$2 info=$3 aggregator=$4
export NZCL_LOG_LEVEL=info NZCL_SECRET=secret-of-the-tests

running() { ip -n "$1" -br link show up | grep -q '^eth0.* UP '; }
apart() { [[ $(readlink "/proc/$1/ns/ipc") != $(readlink /proc/self/ns/ipc) ]]; }
# make_hosts N: hosts 0 to N-1, with the addresses 10.97.0.1 and so on. A process keeps the IPC namespace of each.
make_hosts() {
  local n=$1 i host
  hosts=("nzclm-$$-b")
  ip netns add "${hosts[0]}" 2>/dev/null || { hosts=() && skip "not allowed to make network namespaces"; }
  ip -n "${hosts[0]}" link add bridge type bridge
  ip -n "${hosts[0]}" link set bridge up
  for ((i = 0; i < n; i++)); do
    host=nzclm-$$-$i
    ip netns add "$host"
    hosts+=("$host")
    ip -n "${hosts[0]}" link add "port$i" type veth peer name eth0 netns "$host"
    ip -n "${hosts[0]}" link set "port$i" master bridge up
    ip -n "$host" link set lo up
    ip -n "$host" address add "10.97.0.$((i + 1))/24" dev eth0
    ip -n "$host" link set eth0 up
    unshare -i sleep 1000 &
    keepers+=($!)
    until_true "host $i has an IPC namespace of its own" apart "$!"
  done
  for ((i = 0; i < n; i++)); do until_true "the interface of host $i runs" running "${hosts[i + 1]}"; done
}
# on HOST: sets `on` to the words that start a command there
on() { on=(ip netns exec "${hosts[$1 + 1]}" nsenter "--ipc=/proc/${keepers[$1]}/ns/ipc"); }
# new_job HOST...: the next ranks belong to a job in which rank R is on the R-th of these hosts
new_job() {
  places=("$@")
  export MASTER_ADDR=10.97.0.$(($1 + 1)) # rank 0 is there
  export WORLD_SIZE=$# MASTER_PORT=$((RANDOM % 12000 + 20000))
  pids=()
}
# start R COMMAND...: starts a rank by this command, with its output in rankR.out
start() {
  local r=$1
  shift
  on "${places[r]}"
  env "RANK=$r" "${on[@]}" "$@" >"$work/rank$r.out" 2>&1 &
  pids+=($!)
}
start_ranks() { # ARGUMENTS
  local r
  for ((r = 0; r < WORLD_SIZE; r++)); do start "$r" "$rank" "$@"; done
}
# expect R STATUS [TEXT]: the rank ends with this status and says this
expect() {
  local status=0
  wait "${pids[$1]}" || status=$?
  [[ $status == "$2" ]] || fail "rank $1 ended with status $status, not $2"
  [[ $# -lt 3 ]] || says "$1" "$3"
}
expect_all() { # STATUS [TEXT]
  local r
  for ((r = 0; r < WORLD_SIZE; r++)); do expect "$r" "$@"; done
  pids=()
}
says() { grep -qE -- "$2" "$work/rank$1.out" || fail "rank $1 did not say: $2"; } # R TEXT
# sent HOST INTERFACE: bytes that have left it so far
sent() { ip netns exec "${hosts[$1 + 1]}" cat "/sys/class/net/$2/statistics/tx_bytes"; }
joined() { grep -q joined "$work/rank$1.out" 2>/dev/null; } # R
grep -qE '^ +cma +yes' <<<"$("$info" 2>/dev/null)" || skip "cma is forbidden here"

case $case_name in
  shapes)
    # The sums are right whatever the ranks share, over every transport within a host, and for members who only sum.
    make_hosts 3
    for transport in auto cma,tcp shm,tcp 'cma,tcp;ofi_rxm'; do
      export NZCL_TRANSPORT=$transport
      new_job 0 0 1 1
      start_ranks --rounds 30
      expect_all 0 '^rank . of 4: ok$'
      for r in 0 1 2 3; do says "$r" '(cma|shm) between the 2 members of this host, .* to the 2 of others'; done
    done
    export NZCL_TRANSPORT=auto
    new_job 0 1 1 2 2 2
    start_ranks --rounds 30
    expect_all 0 '^rank . of 6: ok$'
    says 0 ' to the 5 members of other hosts'
    says 5 'cma between the 3 members of this host, .* to the 3 of others'
    new_job 2 0 1 0 # the ranks of a host do not follow each other
    start_ranks --rounds 30
    expect_all 0 '^rank . of 4: ok$'
    says 3 'cma between the 2 members of this host'
    for transport in auto cma,tcp; do
      export NZCL_TRANSPORT=$transport
      new_job 1 1 1 1 # one host alone has no network to use, and none of its devices
      start_ranks --rounds 30
      expect_all 0 '\(colocated\), cma, '
      new_job 0 1 2 # nobody shares a host
      start_ranks --rounds 30
      expect_all 0 '\(colocated\), (net|tcp) '
    done
    export NZCL_TRANSPORT=auto NZCL_AGGREGATORS=2
    new_job 0 0 1
    start_ranks --rounds 30
    for i in 0 1; do
      on $((i + 1))
      "${on[@]}" "$aggregator" --index "$i" >"$work/aggregator$i.out" 2>&1 &
      pids+=($!)
    done
    for r in 0 1 2; do expect "$r" 0 '^rank . of 3: ok$'; done
    for i in 3 4; do wait "${pids[i]}" || fail "aggregator $((i - 3)) ended with status $?"; done
    ;;
  splits)
    # What is split off shares the devices with its parent, and uses of them what its own members need.
    make_hosts 2
    new_job 0 0 1 1
    start_ranks --split
    expect_all 0 '^child after the parent: ok$'
    says 0 'rank . of 2 workers.*\(colocated\), (net|tcp) '
    new_job 0 1 0 1
    start_ranks --split
    expect_all 0 '^child after the parent: ok$'
    says 0 'rank . of 2 workers.*\(colocated\), cma, '
    ;;
  bytes)
    # What leaves a host is for the other one only, and ranks of a host do not talk through its network stack.
    make_hosts 2
    export NZCL_TIMEOUT_S=60
    rounds=8 count=4000000
    for transport in tcp cma,tcp; do
      export NZCL_TRANSPORT=$transport
      out_before=$(sent 0 eth0) lo_before=$(sent 0 lo)
      new_job 0 0 1 1
      start_ranks --rounds $rounds --count $count
      expect_all 0 '^rank . of 4: ok$'
      out=$(($(sent 0 eth0) - out_before)) lo=$(($(sent 0 lo) - lo_before))
      echo "$transport: $out bytes to the other host, $lo within the host"
      # All ranks hold the same third of the blocks. It goes to the owners and comes back from them. Of the four owners two are on
      # the other host, for each of two ranks. Headers and acknowledgements take less than a tenth.
      tensor=$((4 * count * rounds / 3))
      expected=$((2 * tensor / 2 + 2 * tensor / 2))
      ((out > expected * 9 / 10 && out < expected * 11 / 10)) || fail "$transport: $out bytes left the host, not about $expected"
      case $transport in
        tcp) ((lo > tensor / 2)) || fail "over tcp ranks of a host sent each other $lo bytes: this test tests nothing" ;;
        *) ((lo < tensor / 100)) || fail "ranks of a host sent each other $lo bytes over TCP" ;;
      esac
    done
    ;;
  hierarchy)
    # Sums in two levels: they are right whatever ranks the hosts have, what the ranks of a host have in common leaves it once, and
    # a rank that is killed is named.
    make_hosts 3
    export NZCL_ALGORITHM=hierarchy NZCL_TIMEOUT_S=60
    for places in '0 0 1 1' '0 1 1 2 2 2' '2 0 1 0'; do
      # shellcheck disable=SC2086
      new_job $places
      start_ranks --rounds 20
      expect_all 0 "^rank . of $WORLD_SIZE: ok\$"
      says 0 'hosts for sums in two levels with . column'
    done
    rounds=8 count=4000000
    out_before=$(sent 0 eth0)
    new_job 0 0 1 1
    start_ranks --rounds $rounds --count $count
    expect_all 0 '^rank . of 4: ok$'
    out=$(($(sent 0 eth0) - out_before)) tensor=$((4 * count * rounds / 3))
    echo "$out bytes to the other host"
    # Half of the blocks that all ranks hold goes to the other host once, and half of the result.
    ((out > tensor * 9 / 10 && out < tensor * 11 / 10)) || fail "$out bytes left the host, not about $tensor"
    for killed in 1 2; do
      new_job 0 0 1 1
      start_ranks --rounds 1000000 --count 1000000
      for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
      until_true "the levels are there" grep -q 'made communicators for sums in two levels' "$work/rank0.out"
      kill -KILL "${pids[killed]}"
      expect "$killed" 137
      for r in 0 1 2 3; do ((r == killed)) || expect "$r" 3 "rank $killed \\(pid .*\\) died"; done
    done
    ;;
  killed)
    # A rank that is killed is named by all others, by those of its host and by those of the other one.
    make_hosts 2
    for killed in 1 2; do
      new_job 0 0 1 1
      start_ranks --rounds 1000000
      for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
      kill -KILL "${pids[killed]}"
      expect "$killed" 137
      for r in 0 1 2 3; do
        ((r == killed)) || expect "$r" 3 "rank $killed \\(pid .*\\) died"
        ! grep -q 'not every member has ended its writes' "$work/rank$r.out" || fail "rank $r gave buffers back too early"
      done
    done
    ;;
  refused)
    # Pairs that cannot be.
    for pair in tcp,cma cma,shm 'cma,' ,tcp cma,tcp,tcp 'cma, tcp' cma,auto; do
      status=0
      NZCL_TRANSPORT=$pair "$info" >"$work/bad.out" 2>&1 || status=$?
      [[ $status == 1 ]] || fail "the pair '$pair' ended with status $status"
      grep -q "option transport (NZCL_TRANSPORT): \"$pair\".*NZCL_TRANSPORT=cma,tcp" "$work/bad.out" || fail "the pair '$pair' is not named"
    done
    # Other processes of the same user may not write into rank 3. Processes of root may write all the same, unless they lack the
    # capability for it.
    make_hosts 2
    without=()
    ((EUID != 0)) || without=(setpriv --bounding-set=-all --inh-caps=-all)
    with_closed() { # R...: starts all ranks; these are closed to others
      local r flag
      for ((r = 0; r < WORLD_SIZE; r++)); do
        flag=()
        [[ " $* " != *" $r "* ]] || flag=(--not-dumpable)
        start "$r" "${without[@]}" "$rank" "${flag[@]}"
      done
    }
    new_job 0 0 1 1
    with_closed 3
    expect_all 0 '\(colocated\), shm between the 2 members of this host'
    new_job 0 0 1 1
    NZCL_TRANSPORT=cma,tcp with_closed 3
    expect_all 3 'rank 3 .*cma'
    # Nobody may be written, so shm is left, and rank 3 has another folder for it. What one host finds out holds for all.
    new_job 0 0 1 1
    for r in 0 1 2 3; do
      other=()
      ((r < 3)) || other=(unshare -m bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' _)
      start "$r" "${other[@]}" "${without[@]}" "$rank" --not-dumpable
    done
    expect_all 0 '\(colocated\), (net|tcp) '
    says 0 'the transport shm cannot be used within each host: rank [23] '
    new_job 0 0 1 1
    with_closed 0 1 2 3
    expect_all 0 'shm.* between the 2 members of this host'
    ;;
  *) fail "no such case" ;;
esac
