#!/usr/bin/env bash
# Runs a small table of nzcl_switch_simulation, and compares what it assumes with its page.
#   switch_simulation.sh PROGRAM README
set -euo pipefail
table=$("$1" --workers 2,8 --density 1,0.1 --loss 0,1 --bytes 1M)
echo "$table"
rows=$(grep -vc '^#' <<<"$table")
right=$(awk '!/^#/ && NF == 11 && $NF == 0' <<<"$table" | wc -l)
if [[ $rows != 8 || $right != 8 ]]; then echo "FAILED: $right of $rows rows are right, and there should be 8" && exit 1; fi

page=$(tr -s '\n ' '  ' <"$2")
assumed=$("$1" --help | sed -n '/^What is assumed:/,$p' | grep '^- ')
[[ -n $assumed ]] || { echo "FAILED: --help names no assumption" && exit 1; }
while IFS= read -r sentence; do
  if [[ $page != *"$sentence"* ]]; then echo "FAILED: not in $2: $sentence" && exit 1; fi
done <<<"$assumed"
