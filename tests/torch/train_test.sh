#!/usr/bin/env bash
# Runs the example for C++ with one, two and four ranks: all print the same losses.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 NZCL_TRANSPORT=shm NZCL_PIN=off

for size in 1 2 4; do
  pids=()
  for ((rank = 0; rank < size; ++rank)); do
    timeout 120 "$program" "$rank" "$size" "$folder/store-$size" 60 >"$folder/losses-$size-$rank" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  for ((rank = 0; rank < size; ++rank)); do
    # Sums are made in another order than with one rank, so the last digits may differ.
    paste "$folder/losses-1-0" "$folder/losses-$size-$rank" |
      awk -v what="$size ranks, rank $rank" '
        { difference = $2 - $4; if (difference < 0) difference = -difference }
        NF != 4 || difference > 0.002 { print what ": " $0; wrong = 1 }
        { last = $2; if (NR == 1) first = $2 }
        END { if (NR != 60 || wrong) exit 1; if (last > 0.9 * first) { print what ": it does not learn"; exit 1 } }'
  done
  echo "$size ranks: $(tail -1 "$folder/losses-$size-0")"
done
