# shellcheck shell=bash disable=SC2154 # variables of scripts/compare
# The bed "switch" of scripts/compare: allreduces through the switch exchange, beside push over TCP. Sourced, never run.
#
# A rack: every rank is a host on a link of --rate. The aggregator is in the place of the switch, so its link has no limit of its own, and the
# bound of a dense allreduce is a rank's link: bytes / rate. Packets are lost where a host receives them.

# lose PREFIX COUNT PERCENT: all hosts drop this share of what they receive. The segments of TCP are then as small as those on a wire, because
# the kernel would otherwise pass on, and lose, dozens of them at once.
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

# make_rack PREFIX RANKS RATE PERCENT
make_rack() {
  make_hosts "$1" "$(($2 + 1))" "$3"
  tc -n "$1-switch" qdisc del dev "port$2" root
  tc -n "$1-$2" qdisc del dev eth0 root
  [[ $4 == 0 ]] || lose "$1" "$(($2 + 1))" "$4"
}

# in_rack FILE RANKS WAY OPTIONS...: runs nzcl_allreduce_perf on all ranks, whose JSON goes to FILE, and an aggregator where the way has one.
# WAY: switch; push, with that one dedicated aggregator; or colocated, push with an aggregator in each rank
in_rack() {
  local file=$1 ranks=$2 way=$3 i pids=() aggregators=1 algorithm=push
  shift 3
  [[ $way != switch ]] || algorithm=switch
  [[ $way != colocated ]] || aggregators=0
  local -x MASTER_ADDR MASTER_PORT=29500 NZCL_SECRET=secret-of-scripts-compare NZCL_TRANSPORT=tcp NZCL_TIMEOUT_S=60 WORLD_SIZE=$ranks
  local -x NZCL_AGGREGATORS=$aggregators NZCL_ALGORITHM=$algorithm RANK
  MASTER_ADDR=$(host_address 0)
  if ((aggregators)); then
    (unset RANK && in_host "$prefix" "$ranks" timeout 300 "$programs/nzcl_aggregator" --index 0) &
    pids+=($!)
  fi
  for ((i = 0; i < ranks; i++)); do
    RANK=$i in_host "$prefix" "$i" timeout 300 "$programs/nzcl_allreduce_perf" --link 1 "$@" --out_json_file "$file" >"$work/rank$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || return 1; done
}

# run_switch_bed: all numbers of ranks, losses, types and rounds. Uses the variables of scripts/compare.
run_switch_bed() {
  local round count percent type way
  command -v nft >/dev/null || [[ $losses == 0 ]] || die "--losses needs nft: install the package nftables"
  for count in ${ranks//,/ }; do
    for percent in ${losses//,/ }; do
      make_rack "$prefix" "$count" "$rate" "$percent"
      for ((round = 1; round <= rounds; round++)); do
        say "$count ranks, $percent % lost, round $round of $rounds"
        for type in ${types//,/ }; do
          for way in switch push colocated; do
            attempt "$way" "$work/output" in_rack "$work/switch.$count.$percent.$type.$way.$round" "$count" "$way" -b "$bytes" -n "$iterations" -w 1 \
              -d "$type" --density "$densities" "${nzcl_options[@]}"
          done
        done
      done
      remove_hosts "$prefix"
    done
  done
  "${report[@]}" --switch "$work" --rate "$rate" --title "$((bytes >> 20)) MiB, links of $rate"
}
