# shellcheck shell=bash disable=SC2154 # variables of scripts/compare
# The bed "blocks" of scripts/compare: the same tensor cut into blocks of 1 to 256 elements, whose share is not zero. Sourced, never run.

# run_blocks_bed: all rounds, blocks and densities. Sizes of blocks are the innermost loop, so that what is compared has run within seconds.
# Uses the variables of scripts/compare.
run_blocks_bed() {
  local round block end before=start
  cores start
  for ((round = 1; round <= rounds; round++)); do
    say "Round $round of $rounds"
    for block in ${blocks//,/ }; do
      end=$block.$round
      timeout 300 "$programs/nzcl_allreduce_perf" --ranks "$ranks" -b "$bytes" -n "$iterations" -w 2 --check 0 --block "$block" --density "$densities" \
        "${nzcl_options[@]}" --out_json_file "$work/blocks.$end" >/dev/null
      cores "$end"
      "${report[@]}" --kind-of "$work/cores.$before" "$work/cores.$end" >"$work/kind.$end"
      before=$end
    done
  done
  "$root/scripts/compare-blocks-report" --folder "$work" --out "$out" --form "$form" --title "$ranks ranks, $((bytes >> 20)) MiB fp32, $form, one host"
}
