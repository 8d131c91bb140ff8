#!/usr/bin/env bash
# Runs a small table of a simulation, and compares what the program assumes with its page.
#   simulation_table.sh README ROWS COMMAND...: the command prints so many rows, of which each ends with the number of wrong elements
set -euo pipefail
readme=$1 rows=$2
shift 2
table=$("$@")
echo "$table"
right=$(awk '!/^#/ && $NF == 0' <<<"$table" | wc -l)
if [[ $(grep -vc '^#' <<<"$table") != "$rows" || $right != "$rows" ]]; then echo "FAILED: $right rows are right, and there should be $rows" && exit 1; fi

page=$(tr -s '\n ' '  ' <"$readme")
assumed=$("$@" --help | sed -n '/^What is assumed:/,$p' | grep '^- ')
[[ -n $assumed ]] || { echo "FAILED: --help names no assumption" && exit 1; }
while IFS= read -r sentence; do
  if [[ $page != *"$sentence"* ]]; then echo "FAILED: not in $readme: $sentence" && exit 1; fi
done <<<"$assumed"
