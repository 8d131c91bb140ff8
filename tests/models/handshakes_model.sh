#!/usr/bin/env bash
# Checks the model of protocols in which two threads may not overlook each other, and that it needs each of their orders.
#   handshakes_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
# shellcheck source=tests/models/spin.sh
. "$(dirname "${BASH_SOURCE[0]}")/spin.sh"

expect_right SAFETY "a bell for those that listen" -DWAY=0
for order in FINISHED_STORE=ORDERED LISTENERS_LOAD=ORDERED LISTEN_FENCE=RELAXED FINISHED_LOAD=RELAXED; do
  expect_error SAFETY "the bell with $order" "$model" -DWAY=0 "-D$order"
done
expect_right SAFETY "a region that goes while it is written" -DWAY=1
for order in KEY_STORE=ORDERED WRITERS_LOAD=ORDERED WRITERS_ADD=ORDERED KEY_LOAD=ORDERED WRITERS_SUB=RELAXED; do
  expect_error SAFETY "the region with $order" "$model" -DWAY=1 "-D$order"
done
expect_right SAFETY "a slice that is asked for while it is made" -DWAY=2
for order in MADE_STORE=RELAXED MADE_FENCE=RELAXED ASK_FENCE=RELAXED READY_LOAD=RELAXED; do
  expect_error SAFETY "the slice with $order" "$model" -DWAY=2 "-D$order"
done
echo "passed"
