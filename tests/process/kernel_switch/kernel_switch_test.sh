#!/usr/bin/env bash
# Tests of nzcl_switch: a rack of network namespaces, with one namespace for the switch, which bridges one veth pair to each rank. In the
# cases that end with _process, nzcl_aggregator is in its place.
#   kernel_switch_test.sh CASE RANK_PROGRAM SWITCH_PROGRAM AGGREGATOR_PROGRAM INFO_PROGRAM FLOODER_PROGRAM
set -euo pipefail
# shellcheck source=tests/process/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
case_name=$1 rank=$2 switch=$3 aggregator=$4 info=$5 flooder=$6
export NZCL_SECRET=secret-of-the-tests NZCL_AGGREGATORS=1 NZCL_ALGORITHM=switch NZCL_TRANSPORT=tcp
export MASTER_ADDR=10.99.0.1 MASTER_PORT=29500

command -v ip >/dev/null || skip "iproute2 is not installed"
possible=$("$info" 2>/dev/null | grep -A1 '^Sums inside the kernel' | tail -n 1)
[[ $case_name == *_process || $possible != *'the kernel refuses the program'* ]] ||
  fail "the program is broken: $("$info" 2>/dev/null | grep -A30 '^Sums inside the kernel')"
[[ $case_name == *_process || $possible =~ ^\ *yes ]] || skip "nzcl_switch cannot work here: $possible"
ip netns add "nzclk-$$-s" 2>/dev/null || skip "not allowed to make network namespaces"
hosts=("nzclk-$$-s")

# rack HOSTS MTU: host i has 10.99.0.(i+1), the switch 10.99.0.100 and the interfaces port0, port1, ...
rack() {
  local i host
  ip -n "${hosts[0]}" link set lo up
  ip -n "${hosts[0]}" link add bridge mtu "$2" type bridge
  ip -n "${hosts[0]}" address add 10.99.0.100/24 dev bridge
  ip -n "${hosts[0]}" link set bridge up
  ports=
  for ((i = 0; i < $1; i++)); do
    host=nzclk-$$-$i
    ip netns add "$host"
    hosts+=("$host")
    ip -n "$host" link set lo up
    ip -n "${hosts[0]}" link add "port$i" mtu "$2" type veth peer name eth0 mtu "$2" netns "$host"
    ip -n "${hosts[0]}" link set "port$i" master bridge up
    ip -n "$host" address add "10.99.0.$((i + 1))/24" dev eth0
    ip -n "$host" link set eth0 up
    ports+=${ports:+,}port$i
  done
  for ((i = 0; i < $1; i++)); do until_true "the link of host $i runs" runs "port$i"; done
}
runs() { ip -n "${hosts[0]}" -br link show "$1" | grep -q ' UP '; }
on() { # HOST NAME COMMAND...: starts the command in the background, with its output in NAME.out
  local host=$1 name=$2
  shift 2
  ip netns exec "$host" "$@" >"$work/$name.out" 2>&1 &
  pids+=($!)
  eval "pid_$name=$!"
}
start_ranks() { # N ARGUMENTS
  local n=$1 r
  shift
  for ((r = 0; r < n; r++)); do RANK=$r LOCAL_RANK=0 WORLD_SIZE=$n on "nzclk-$$-$r" "rank$r" "$rank" "$@"; done
}
start_switch() { # RANKS ARGUMENTS
  local n=$1
  shift
  WORLD_SIZE=$n on "${hosts[0]}" switch "$switch" --index 0 "$@"
}
# start_aggregator N: nzcl_aggregator or nzcl_switch, as the case's name says
start_aggregator() {
  if [[ $case_name == *_process ]]; then
    WORLD_SIZE=$1 on "${hosts[0]}" switch "$aggregator" --switch --index 0
  else
    start_switch "$1" --interface "$ports" --mode generic
  fi
}
# lone_packets: lets no link carry several packets of a port together, so that each of them can be lost, or seen, by itself
lone_packets() {
  local i
  for ((i = 1; i < ${#hosts[@]}; i++)); do
    ip -n "${hosts[i]}" link set dev eth0 gso_max_segs 1
    ip -n "${hosts[0]}" link set dev "port$((i - 1))" gso_max_segs 1
  done
}
expect() { # NAME STATUS [TEXT]: waits for NAME, which must end with STATUS and have printed TEXT
  local pid_name=pid_$1 status=0
  wait "${!pid_name}" || status=$?
  [[ $status == "$2" ]] || fail "$1 ended with status $status, not $2"
  [[ $# -lt 3 ]] || grep -qE -- "$3" "$work/$1.out" || fail "$1 did not say: $3"
}
expect_all_ok() { # N
  local r
  for ((r = 0; r < $1; r++)); do expect "rank$r" 0 "^rank $r of $1: ok$"; done
  if [[ $case_name == *_process ]]; then
    expect switch 0
  else
    expect switch 0 '^nzcl_switch: [1-9][0-9]* contributions, [1-9][0-9]* sums;'
  fi
}
number_of() { grep -oE "[0-9]+ $1" "$work/switch.out" | cut -d' ' -f1; } # WHAT the switch has counted
no_program_left() { ! ip -n "${hosts[0]}" -d link show "$1" | grep -q ' prog/xdp'; }

# digests N MODE ARGUMENTS: prints the digest on which all ranks agree, of sums by nzcl_switch or (MODE is process) by nzcl_aggregator
digests() {
  local n=$1 mode=$2 r
  shift 2
  start_ranks "$n" "$@"
  if [[ $mode == process ]]; then
    WORLD_SIZE=$n on "${hosts[0]}" switch "$aggregator" --switch --index 0
    for ((r = 0; r < n; r++)); do expect "rank$r" 0; done
    expect switch 0
  else
    start_switch "$n" --interface "$ports" --mode "$mode"
    expect_all_ok "$n"
  fi
  cat "$work"/rank*.out | grep '^digest ' | sort -u >"$work/digests"
  [[ $(wc -l <"$work/digests") == 1 ]] || fail "not the same bits on all ranks"
  cat "$work/digests"
}
# same_bits N MODE: compares sums with a plain sum, and their bits with those of a process
same_bits() {
  local n=$1 mode=$2 type every here there
  start_ranks "$n" --rounds 5
  start_switch "$n" --interface "$ports" --mode "$mode"
  expect_all_ok "$n"
  grep -q "port0 ($mode" "$work/switch.out" || fail "not attached as $mode"
  for type in int32 float32; do
    for every in 1 7; do
      here=$(digests "$n" "$mode" --rounds 4 --count 100001 --digest $type --every $every)
      there=$(digests "$n" process --rounds 4 --count 100001 --digest $type --every $every)
      [[ -n $here && $here == "$there" ]] || fail "$type, one block of $every: $here is not the process's $there"
    done
  done
}

case $case_name in
  native)
    rack 4 3506
    for i in 0 1 2 3; do ip netns exec "nzclk-$$-$i" "$switch" --pass eth0; done
    same_bits 2 native
    same_bits 4 native
    no_program_left port0 || fail "a program is left at port0"
    ;;
  generic)
    rack 4 1500
    same_bits 2 generic
    same_bits 4 generic
    no_program_left port0 || fail "a program is left at port0"
    ;;
  jumbo)
    rack 3 9000
    same_bits 3 generic
    ;;
  loss)
    rack 4 1500
    start_ranks 4 --rounds 20
    start_switch 4 --interface "$ports" --mode generic --drop 20
    expect_all_ok 4
    (($(number_of 'answered again') + $(number_of 'answered to wait') > 0)) || fail "nothing was repeated"
    ;;
  split)
    rack 4 1500
    start_ranks 4 --split
    start_switch 4 --interface "$ports" --mode generic
    expect_all_ok 4
    for r in 1 2 3; do
      for what in parent child 'child after the parent' grandchild; do grep -qE "^$what: ok\$" "$work/rank$r.out" || fail "rank $r: $what"; done
    done
    ;;
  stranger)
    # A host of the same rack sends what looks like contributions to the switch's pools, as fast as it can.
    rack 4 1500
    start_ranks 3 --rounds 300
    start_switch 3 --interface "$ports" --mode generic
    until_true "rank 0 joined" grep -q joined "$work/rank0.out"
    # shellcheck disable=SC2016 # the inner shell expands it
    on "nzclk-$$-3" stranger bash -c 'for port in $1; do
        while printf "NZS1\1\1\0\0%01060d" 0; do :; done >"/dev/udp/10.99.0.100/$port" & done; wait' - \
      "$(ip netns exec "${hosts[0]}" ss -Hlun | grep -oE '10\.99\.0\.100:[0-9]+' | cut -d: -f2 | tr '\n' ' ')"
    expect_all_ok 3
    (($(number_of refused) > 100)) || fail "the stranger's packets did not reach the switch"
    # shellcheck disable=SC2154 # set by on
    ip netns pids "nzclk-$$-3" | xargs -r kill -KILL
    ;;
  flood_process | flood_kernel)
    # The fourth host sends copies of what rank 0 sends and gets, and forgeries of it, with the addresses of ranks and aggregator.
    rack 4 1500
    lone_packets
    start_ranks 3 --rounds 100
    start_aggregator 3
    until_true "rank 0 joined" grep -q joined "$work/rank0.out"
    "$flooder" "nzclk-$$-0" eth0 "nzclk-$$-3" >"$work/flooder.out" 2>&1 &
    pids+=($!) pid_flooder=$!
    expect_all_ok 3
    kill -TERM "$pid_flooder"
    many='[1-9][0-9]{2,}'
    expect flooder 0 "^copies $many, changed $many, signed with another key $many, of another rank $many, with options $many, padded $many, too large $many\$"
    (($(ip netns exec "${hosts[0]}" cat /sys/class/net/port3/statistics/rx_packets) > 1000)) || fail "the stranger's packets did not reach the switch"
    if [[ $case_name == *_process ]]; then
      grep -qE "aggregator 0: lane 0: packets that came to the switch exchange's port were dropped: $many that were forged" "$work/switch.out" ||
        fail "the aggregator does not say how many forgeries it dropped"
    else
      (($(number_of refused) > 100)) || fail "the switch refused none of the forgeries"
      (($(number_of 'not whole') > 100)) || fail "none of the padded copies reached the switch"
      grep -qE 'packets of rank . come in past the interfaces at which they are summed \(port0, port1' "$work/switch.out" ||
        fail "the copies with options did not reach the switch's socket"
    fi
    ;;
  nft_loss_process | nft_loss_kernel)
    command -v nft >/dev/null || skip "nft is not installed"
    rack 4 1500
    lone_packets
    for i in 0 1 2 3; do
      ip netns exec "nzclk-$$-$i" nft -f - <<<"table inet loss {
        chain input { type filter hook input priority 0; meta l4proto udp numgen random mod 100 < 5 counter drop; }
        chain output { type filter hook output priority 0; meta l4proto udp numgen random mod 100 < 5 counter drop; }
      }" || skip "this kernel has no nftables"
    done
    start_ranks 4 --rounds 20
    start_aggregator 4
    expect_all_ok 4
    for i in 0 1 2 3; do
      [[ $(ip netns exec "nzclk-$$-$i" nft list table inet loss | grep -cE 'counter packets [1-9]') == 2 ]] || fail "host $i lost nothing one way"
    done
    ;;
  late_rank_process | late_rank_kernel)
    rack 3 1500
    start_ranks 3 --rounds 6 --late-rank 1 --late-ms 700
    start_aggregator 3
    expect_all_ok 3
    [[ $case_name == *_process ]] || (($(number_of 'answered to wait') > 0)) || fail "nobody was told to wait"
    ;;
  killed_aggregator_process | killed_aggregator_kernel)
    rack 3 1500
    export NZCL_TIMEOUT_S=100
    start_ranks 3 --rounds 100000
    start_aggregator 3
    for r in 0 1 2; do until_true "rank $r joined" grep -q joined "$work/rank$r.out"; done
    sleep 0.3
    # shellcheck disable=SC2154 # set by on
    kill -KILL "$pid_switch"
    for r in 0 1 2; do expect rank$r 3 'aggregator 0 \(pid .*\) died'; done
    [[ $case_name == *_process ]] || until_true "the program has gone" no_program_left port0
    ;;
  killed_rank)
    rack 3 1500
    export NZCL_TIMEOUT_S=100
    start_ranks 3 --rounds 100000 --die-rank 1 --die-at 20
    start_switch 3 --interface "$ports" --mode generic
    expect rank1 137
    for r in 0 2; do expect rank$r 3 'rank 1 \(pid .*\) died'; done
    expect switch 1 'rank 1 \(pid .*\) died'
    no_program_left port0 || fail "a program is left at port0"
    ;;
  same_port)
    # Two ranks on one host would need two copies of a result at one interface.
    rack 1 1500
    for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 on "nzclk-$$-0" "rank$r" "$rank" --rounds 3; done
    start_switch 2 --interface "$ports" --mode generic
    # A stranger who repeats packets looks the same, so it is no failure.
    expect_all_ok 2
    grep -qE 'contributions of ranks . and . have come in at interface port0' "$work/switch.out" || fail "the switch does not say why it was slow"
    (($(number_of moves) > 0)) || fail "both ranks were not behind one interface"
    ;;
  stray_port)
    # A stranger who repeats packets by another way looks the same, so it is no failure before the ranks' patience is over.
    rack 2 1500
    export NZCL_TIMEOUT_S=5
    start_ranks 2
    start_switch 2 --interface port0 --mode generic
    for r in 0 1; do expect rank$r 3 'no progress for 5 s: .*rank\(s\) 1 did not join'; done
    expect switch 1 'packets of rank 1 come in past the interfaces at which they are summed \(port0\)'
    ;;
  native_mtu)
    rack 2 3600
    start_switch 2 --interface "$ports" --mode native
    expect switch 1 'cannot be attached to interface port0: .*on veth an MTU of at most 3506'
    start_switch 2 --interface port0,nowhere
    expect switch 1 'there is no network interface "nowhere"'
    start_switch 2 --interface "$ports" --slots 1025
    expect switch 105 'slots: .*not in range .?4 (to|-) 1024'
    ;;
  many_slots)
    rack 2 1500
    start_ranks 2 --rounds 3
    start_switch 2 --interface "$ports" --mode generic --slots 1024
    expect_all_ok 2
    ;;
  *)
    fail "there is no case $case_name"
    ;;
esac
