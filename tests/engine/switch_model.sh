#!/usr/bin/env bash
# Checks the model of the switch exchange with Spin, and that the check finds mistakes that are put into it.
#   switch_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
for tool in spin gcc; do command -v $tool >/dev/null || { echo "skipped: $tool is not installed" && exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

few=(-DSLOTS=1 -DROUNDS=3 -DLOSSES=1 -DCOPIES=1)
one_slot=(-DSLOTS=1 -DROUNDS=5 -DLOSSES=3 -DCOPIES=3)
two_slots=(-DSLOTS=2 -DROUNDS=3 -DLOSSES=2 -DCOPIES=2)

# search KIND MODEL BOUNDS...: goes through all states, and writes what was found to ./found. KIND: SAFETY looks for wrong sums and deadlocks,
# NP for ways round for ever.
search() {
  spin "${@:3}" -a "$2" >found 2>&1 || { cat found && echo "FAILED: the model is not valid" && exit 1; }
  gcc -O2 -w -DMEMLIM=2500 -DCOLLAPSE "-D$1" -o pan pan.c
  local options=(-m200000)
  [[ $1 == SAFETY ]] || options+=(-l)
  ./pan "${options[@]}" >found || true
}

# expect_right NAME BOUNDS...: fails unless all states were gone through both ways and no error was found.
expect_right() {
  local kind
  for kind in SAFETY NP; do
    search "$kind" "$model" "${@:2}"
    if ! grep -q 'errors: 0' found || grep -qE 'max search depth too small|out of memory|Search not completed' found; then
      cat found
      echo "FAILED: $1: $([[ $kind == SAFETY ]] && echo "a wrong sum, or a deadlock" || echo "it may go round for ever")"
      exit 1
    fi
    echo "right: $1, $kind: $(grep 'states, stored' found)"
  done
}
expect_right "one slot" "${one_slot[@]}"
expect_right "two slots" "${two_slots[@]}"

# expect_error KIND NAME SED: the model with this mistake must not pass this search, even with the fewest losses and copies.
expect_error() {
  sed -e "$3" "$model" >mistake.pml
  if cmp -s "$model" mistake.pml; then echo "FAILED: the mistake \"$2\" changes nothing" && exit 1; fi
  search "$1" mistake.pml "${few[@]}"
  if ! grep -qE 'errors: [1-9]' found; then cat found && echo "FAILED: not found: $2" && exit 1; fi
  echo "found: $2"
}
expect_error SAFETY "duplicates are added" 's/:: seen\[SET(s, r)\] & (1 << w) ->/:: false ->/'
expect_error SAFETY "rounds are told apart by their set alone" 's/:: set_round\[SET(s, r)\] != r + 2 -> skip/:: false -> skip/'
expect_error NP "a late contribution to a complete round is not answered" 's/complete\[SET(s, r)\] -> ANSWER(w, s, r)/complete[SET(s, r)] -> skip/'
echo "passed"
