#!/usr/bin/env bash
# Checks the model of the switch exchange with Spin, and that the check finds mistakes that are put into it.
#   switch_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
# shellcheck source=tests/models/spin.sh
. "$(dirname "${BASH_SOURCE[0]}")/spin.sh"

few=(-DSLOTS=1 -DROUNDS=3 -DLOSSES=1 -DCOPIES=1)
one_slot=(-DSLOTS=1 -DROUNDS=5 -DLOSSES=3 -DCOPIES=3)
two_slots=(-DSLOTS=2 -DROUNDS=3 -DLOSSES=2 -DCOPIES=2)
expect_right "SAFETY NP" "one slot" "${one_slot[@]}"
expect_right "SAFETY NP" "two slots" "${two_slots[@]}"

# expect_change KIND NAME SED: the model with this mistake must not pass, even with the fewest losses and copies.
expect_change() {
  sed -e "$3" "$model" >mistake.pml
  if cmp -s "$model" mistake.pml; then echo "FAILED: the mistake \"$2\" changes nothing" && exit 1; fi
  expect_error "$1" "$2" mistake.pml "${few[@]}"
}
expect_change SAFETY "duplicates are added" 's/:: seen\[SET(s, r)\] & (1 << w) ->/:: false ->/'
expect_change SAFETY "rounds are told apart by their set alone" 's/:: set_round\[SET(s, r)\] != r + 2 -> skip/:: false -> skip/'
expect_change NP "a late contribution to a complete round is not answered" 's/complete\[SET(s, r)\] -> ANSWER(w, s, r)/complete[SET(s, r)] -> skip/'
echo "passed"
