#!/usr/bin/env bash
# nzcl_train as its users run it: several processes, a real model, a verdict.   usage: train_test.sh PROGRAM CASE
set -euo pipefail
program=$1
case=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "FAILED: $*" >&2; cat "$folder/log" >&2; exit 1; }
text() { awk -v paragraphs=8000 "$@" -f "$here/make_text.awk"; }
run() { "$program" --quick --subsample 1e-3 "$@" > "$folder/log" 2>&1; }
says() { grep -qF -- "$1" "$folder/log" || fail "it did not print '$1'"; }

learns() {  # TRANSPORT RANKS
  text > "$folder/text"
  run --text "$folder/text" --transport "$1" --ranks "$2" --algorithm both || fail "status $?"
  says "$2 ranks"
  says "ranks agree"
  says "OK: both runs learned the same weights, to the last bit"
}

# Three ways to exchange gradients, and one of them twice, must all give the same hash of the weights.
same_weights() {
  text | gzip > "$folder/text.gz"
  for way in bitmap scan dense again; do
    case $way in
      bitmap | again) options=(--algorithm sparse) ;;
      scan) options=(--algorithm sparse --scan) ;;
      dense) options=(--algorithm dense) ;;
    esac
    run --text "$folder/text.gz" --ranks 3 --steps 40 --no-check --json "$folder/$way.json" "${options[@]}" || fail "$way: status $?"
  done
  hashes=$(grep -h weights_hash "$folder"/*.json | sort | uniq -c)
  [[ $(wc -l <<< "$hashes") -eq 1 && $hashes == *" 4 "* ]] || fail "different weights: $hashes"
}

# The switch exchange rounds: with N ranks a sum is off by at most N * 2^(h - 30) of the largest value of its piece, h = ceil(log2 N). The loss
# must differ from that of push by no more than if each step moved it by as much. Two runs through it must be equal to the last bit.
switch() {
  text > "$folder/text"
  for way in sparse switch again; do
    run --text "$folder/text" --ranks 3 --algorithm "${way/again/switch}" --json "$folder/$way.json" || fail "$way: status $?"
    says "OK"
  done
  grep -qF "1 aggregators (dedicated)" "$folder/log" || fail "there is no dedicated aggregator"
  /usr/bin/python3 - "$folder" << 'END' || fail "the switch exchange learned something else"
import json, sys
sparse, switch, again = (json.load(open(f"{sys.argv[1]}/{way}.json"))["runs"][0] for way in ("sparse", "switch", "again"))
bound = sparse["steps"] * 3 * 2.0 ** (2 - 30)
print("held-out loss", sparse["held_out_loss_after"], switch["held_out_loss_after"], "bound of the relative difference", bound)
assert abs(switch["held_out_loss_after"] / sparse["held_out_loss_after"] - 1) <= bound
assert switch["weights_hash"] == again["weights_hash"]
END
  local status=0
  run --algorithm switch --scan || status=$?
  [[ $status -eq 2 ]] || fail "--scan: status $status instead of 2"
}

nothing_to_learn_fails() {
  text -v shuffled=1 > "$folder/text"
  if run --text "$folder/text" --ranks 2 --algorithm sparse; then fail "it found sense in a shuffled text"; fi
  says "FAILED: the mean cosine of related words"
}

bad_usage() {
  local status=0
  run --algorithm unheard-of || status=$?
  [[ $status -eq 2 ]] || fail "status $status instead of 2"
  status=0
  run --text "$folder/missing" --ranks 2 || status=$?
  [[ $status -eq 1 ]] || fail "status $status instead of 1"
  says "cannot open the text '$folder/missing'"
}

# One rank is killed. The others must not wait for it, and no process may be left over.
killed_rank() {
  text > "$folder/text"
  run --text "$folder/text" --ranks 3 --algorithm sparse --steps 10000000 --reports 10000 &
  local waiter=$! launcher ranks status=0
  until grep -q "loss\|failed" "$folder/log" 2> /dev/null || ! kill -0 "$waiter" 2> /dev/null; do sleep 0.1; done
  launcher=$(pgrep -P "$waiter" || echo "$waiter")  # the shell may have replaced itself by the program
  ranks=$(pgrep -P "$launcher")
  [[ $(wc -w <<< "$ranks") -eq 3 ]] || fail "three ranks expected: $ranks"
  kill -KILL "$(head -1 <<< "$ranks")"
  wait "$waiter" || status=$?
  [[ $status -eq 1 ]] || fail "status $status instead of 1"
  says "was ended by signal 9"
  for rank in $ranks; do
    if kill -0 "$rank" 2> /dev/null; then fail "process $rank is left over"; fi
  done
}

# Trains on the real dictionary, where it is installed.
dictionary() {
  [[ -r /usr/share/dictd/gcide.dict.dz ]] || { echo "skipped: Debian's package dict-gcide is not installed"; exit 77; }
  "$program" --quick --ranks 4 > "$folder/log" 2>&1 || fail "status $?"
  says "OK: both runs"
}

case $case in
  shm) learns shm 4 ;;
  tcp) learns tcp 3 ;;
  one_rank) learns shm 1 ;;
  same_weights | switch | nothing_to_learn_fails | bad_usage | killed_rank | dictionary) "$case" ;;
  *) echo "unknown case $case" >&2; exit 2 ;;
esac
