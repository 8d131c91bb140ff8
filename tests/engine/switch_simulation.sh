#!/usr/bin/env bash
# Runs a small table of nzcl_switch_simulation, and compares what it assumes with its page.
#   switch_simulation.sh README COMMAND...: the command is the program, after what runs it if it is compiled for another machine
set -euo pipefail
readme=$1
shift
table=$("$@" --workers 2,8 --density 1,0.1 --loss 0,1 --bytes 1M)
echo "$table"
rows=$(grep -vc '^#' <<<"$table")
right=$(awk '!/^#/ && NF == 11 && $NF == 0' <<<"$table" | wc -l)
if [[ $rows != 8 || $right != 8 ]]; then echo "FAILED: $right of $rows rows are right, and there should be 8" && exit 1; fi

page=$(tr -s '\n ' '  ' <"$readme")
assumed=$("$@" --help | sed -n '/^What is assumed:/,$p' | grep '^- ')
[[ -n $assumed ]] || { echo "FAILED: --help names no assumption" && exit 1; }
while IFS= read -r sentence; do
  if [[ $page != *"$sentence"* ]]; then echo "FAILED: not in $readme: $sentence" && exit 1; fi
done <<<"$assumed"
