#!/usr/bin/env bash
# Checks the model of a lane's lock and doorbell, and that it needs each of their orders.
#   lane_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
# shellcheck source=tests/models/spin.sh
. "$(dirname "${BASH_SOURCE[0]}")/spin.sh"

expect_right SAFETY "a lane, a caller and a scan thread" -DWAY=0
expect_right SAFETY "a lane, a caller and a message" -DWAY=1
for order in LOCK=RELAXED UNLOCK=RELAXED PUSH=ORDERED EMPTY=ORDERED RUNG_STORE=ORDERED RUNG_LOOK=ORDERED RUNG_TAKE=RELAXED \
  SLEEPING_STORE=ORDERED SLEEPING_LOAD=ORDERED; do
  expect_error SAFETY "the lane with $order" "$model" -DWAY=0 "-D$order"
done
expect_error SAFETY "a caller that does not hand back" "$model" -DWAY=1 -DHAND_BACK=0
echo "passed"
