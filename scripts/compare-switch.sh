# shellcheck shell=bash disable=SC2154 # variables of scripts/compare
# The bed "switch" of scripts/compare: allreduces through the switch exchange, with its aggregator in a process and in the kernel, beside push
# over TCP and Gloo. Sourced, never run.
#
# A rack: every rank is a host on a link of --rate. The aggregator is in the place of the switch, so its link has no limit of its own, and the
# bound of a dense allreduce is a rank's link: bytes / rate. Packets are lost where a host receives them.
#
# tc shapes what passes a queueing discipline. Frames that an XDP program sends back (XDP_TX) or redirects go to the driver past all of them,
# so results of the way "kernel" are not shaped on their way down. Each answers a contribution of the same size, which was shaped on its way up.

# lose PREFIX COUNT PERCENT: all hosts drop this share of what they receive. The segments of TCP, and the datagrams that a port hands over
# together, are then as small as those on a wire, because the kernel would otherwise pass on, and lose, dozens of them at once.
lose() {
  local i
  for ((i = 0; i < $2; i++)); do
    ip -n "$1-switch" link set dev "port$i" gso_max_segs 1
    ip -n "$1-$i" link set dev eth0 gso_max_segs 1
    ip netns exec "$1-$i" nft -f - <<<"table inet loss {
      chain input { type filter hook input priority 0; iifname eth0 numgen random mod 100000 < $(awk "BEGIN { print $3 * 1000 }") drop; }
    }"
  done
}

# make_rack PREFIX RANKS RATE PERCENT: host RANKS is the aggregator's. The switch has an address too, for the one in the kernel.
make_rack() {
  local i
  make_hosts "$1" "$(($2 + 1))" "$3"
  for ((i = 0; i <= $2; i++)); do
    ip -n "$1-switch" link set dev "port$i" mtu "$mtu"
    ip -n "$1-$i" link set dev eth0 mtu "$mtu"
  done
  ip -n "$1-switch" address add "$(host_address 199)/24" dev bridge
  tc -n "$1-switch" qdisc del dev "port$2" root
  tc -n "$1-$2" qdisc del dev eth0 root
  [[ $4 == 0 ]] || lose "$1" "$(($2 + 1))" "$4"
}

# ready_for_kernel PREFIX RANKS: prepares the ranks' ends for programs at the switch's
ready_for_kernel() {
  local i
  for ((i = 0; i < $2; i++)); do
    ((mtu > 3506)) || ip netns exec "$1-$i" "$programs/nzcl_switch" --pass eth0
  done
}
ready_for_others() {
  local i
  for ((i = 0; i < $2; i++)); do ip -n "$1-$i" link set dev eth0 xdp off; done
}

# timed FILE COMMAND...: runs it, and writes the seconds of CPU time that it took to the file
timed() {
  local TIMEFORMAT='%U %S' file=$1 status=0
  shift
  { time "$@" 2>"$file.error"; } 2>"$file.time" || status=$?
  cat "$file.error" >&2
  awk '{ print $1 + $2 }' "$file.time" >"$file"
  return $status
}
# busy_seconds: prints how long the processors of this machine have worked
busy_seconds() { awk -v hertz="$(getconf CLK_TCK)" '$1 == "cpu" { print ($2 + $3 + $4 + $7 + $8) / hertz; exit }' /proc/stat; }

# gloo_in_rack FILE RANKS: Gloo's dense ring, fp32
gloo_in_rack() {
  local i pids=() folder=$work/meet.$RANDOM
  mkdir "$folder"
  for ((i = 0; i < $2; i++)); do
    RANK=$i WORLD_SIZE=$2 in_host "$prefix" "$i" timeout 300 "$peers/gloo" allreduce "$bytes" "$iterations" 1 in_place "$folder" "$(host_address "$i")" >"$work/rank$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || return 1; done
  cp "$work/rank0" "$1"
}

# in_rack FILE RANKS WAY OPTIONS...: runs nzcl_allreduce_perf on all ranks, whose JSON goes to FILE, and an aggregator where the way has one,
# whose CPU time goes to FILE.aggregator. WAY: switch, or kernel, the same with its aggregator in the kernel; push, with one dedicated aggregator;
# or colocated, push with an aggregator in each rank
in_rack() {
  local file=$1 ranks=$2 way=$3 i pids=() aggregators=1 algorithm=push ports aggregator=("$programs/nzcl_aggregator" --index 0) place=$2
  shift 3
  case $way in
    switch) algorithm=switch ;;
    kernel)
      algorithm=switch place=switch ports=$(seq -f 'port%g' -s , 0 $((ranks - 1)))
      aggregator=("$programs/nzcl_switch" --times --index 0 --interface "$ports")
      ((mtu <= 3506)) || aggregator+=(--mode generic)
      # What comes to the program has not passed the place at which hosts lose packets.
      [[ $percent == 0 ]] || aggregator+=(--drop "$(awk "BEGIN { printf \"%d\", 100 / $percent }")")
      ;;
    colocated) aggregators=0 ;;
  esac
  local -x MASTER_ADDR MASTER_PORT=29500 NZCL_SECRET=secret-of-scripts-compare NZCL_TRANSPORT=tcp NZCL_TIMEOUT_S=60 WORLD_SIZE=$ranks
  local -x NZCL_AGGREGATORS=$aggregators NZCL_ALGORITHM=$algorithm RANK
  MASTER_ADDR=$(host_address 0)
  if ((aggregators)); then
    (unset RANK && timed "$file.aggregator" in_host "$prefix" "$place" timeout 300 "${aggregator[@]}" >"$work/aggregator") &
    pids+=($!)
  fi
  for ((i = 0; i < ranks; i++)); do
    RANK=$i in_host "$prefix" "$i" timeout 300 "$programs/nzcl_allreduce_perf" --link 1 "$@" --out_json_file "$file" >"$work/rank$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || return 1; done
  # What the program in the kernel took is no CPU time of a process.
  [[ $way != kernel ]] || sed -nE 's/.*the programs ran for ([0-9.]+) s.*/\1/p' "$work/aggregator" >"$file.aggregator"
}

# measure_way WAY RANKS PERCENT TYPE DENSITY ROUND
measure_way() {
  local way=$1 file=$work/switch_$2_$3_$4_$5_$1_$6 before
  before=$(busy_seconds)
  if [[ $way == gloo ]]; then
    [[ $4 == float32 && $5 =~ ^1(\.0*)?$ ]] || return 0
    attempt "$way" "$work/output" gloo_in_rack "$file" "$2"
  else
    [[ $way != kernel ]] || ready_for_kernel "$prefix" "$2"
    attempt "$way" "$work/output" in_rack "$file" "$2" "$way" -b "$bytes" -n "$iterations" -w 1 -d "$4" --density "$5" --hint "${nzcl_options[@]}"
    [[ $way != kernel ]] || ready_for_others "$prefix" "$2"
  fi
  awk -v before="$before" -v after="$(busy_seconds)" 'BEGIN { print after - before }' >"$file.machine"
}

# report_switch: the table of all that has been measured so far, also in PATH.txt of --out
report_switch() {
  mkdir -p "$(dirname "$out")"
  "${report[@]}" --switch "$work" --ways "$ways" --rate "$rate" --mtu "$mtu" --iterations "$iterations" \
    --title "$((bytes >> 20)) MiB, links of $rate, MTU $mtu" >"$out.txt"
}

# run_switch_bed: all numbers of ranks, losses, types, densities, ways and rounds. Uses the variables of scripts/compare.
run_switch_bed() {
  local round count percent type density way
  command -v nft >/dev/null || [[ $losses == 0 ]] || die "--losses needs nft: install the package nftables"
  say "The table so far is in $out.txt at any time"
  for count in ${ranks//,/ }; do
    for percent in ${losses//,/ }; do
      make_rack "$prefix" "$count" "$rate" "$percent"
      for ((round = 1; round <= rounds; round++)); do
        for type in ${types//,/ }; do
          for density in ${densities//,/ }; do
            say "$count ranks, $percent % lost, round $round of $rounds: $type, density $density"
            for way in ${ways//,/ }; do measure_way "$way" "$count" "$percent" "$type" "$density" "$round"; done
            report_switch
          done
        done
      done
      remove_hosts "$prefix"
    done
  done
  cat "$out.txt"
}
