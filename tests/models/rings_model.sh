#!/usr/bin/env bash
# Checks the model of what endpoints of a host share, and that it needs each of the orders that ORDERING.md calls necessary.
#   rings_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
# shellcheck source=tests/models/spin.sh
. "$(dirname "${BASH_SOURCE[0]}")/spin.sh"

full=(-DWAY=0 -DN=3 -DSLOTS=3)  # there are more slots than entries, so the ring becomes full
slots=(-DWAY=0 -DN=3 -DSLOTS=2) # credits alone give slots back
bounce=(-DWAY=1 -DN=3)
expect_right SAFETY "messages, and a ring that becomes full" "${full[@]}"
expect_right SAFETY "messages in slots that are used again" "${slots[@]}"
expect_right SAFETY "records in a bounce ring" "${bounce[@]}"
# The count that the reader stores guards nothing but entries, which are atomic.
expect_right SAFETY "messages, with relaxed counts" "${full[@]}" -DTAKEN_STORE=RELAXED -DTAKEN_LOAD=RELAXED

for order in PUSH POP CREDIT_PUSH CREDIT_POP WAKE_FENCE SLEEP_FENCE; do
  expect_error SAFETY "messages with a relaxed $order" "$model" "${slots[@]}" "-D$order=RELAXED"
done
for order in PUSH POP WRITTEN_STORE WRITTEN_LOAD BOUNCE_TAKEN_STORE BOUNCE_TAKEN_LOAD; do
  expect_error SAFETY "records with a relaxed $order" "$model" "${bounce[@]}" "-D$order=RELAXED"
done
echo "passed"
