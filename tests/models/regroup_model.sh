#!/usr/bin/env bash
# Checks the model of members that replace their communicator with Spin, and that the check finds mistakes that are put into it.
#   regroup_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
# shellcheck source=tests/models/spin.sh
. "$(dirname "${BASH_SOURCE[0]}")/spin.sh"

for grow in 0 1; do
  expect_right SAFETY "4 members of whom 2 die, growing: $grow" -DN=4 -DDEATHS=2 -DGROW=$grow
  expect_right "SAFETY NP" "3 members of whom 2 die, growing: $grow" -DN=3 -DDEATHS=2 -DGROW=$grow
done
few=(-DN=3 -DDEATHS=2)
expect_error SAFETY "a new hub does not wait until it knows all" "$model" "${few[@]}" -DMISTAKE=1
expect_error SAFETY "the hub commits before all have joined" "$model" "${few[@]}" -DMISTAKE=2
expect_error SAFETY "who was not told of the attempt is not told of its end" "$model" "${few[@]}" -DGROW=1 -DMISTAKE=3
expect_error SAFETY "what was sent before an attempt counts in it" "$model" "${few[@]}" -DMISTAKE=4
expect_error SAFETY "members return before they know of a commit" "$model" "${few[@]}" -DMISTAKE=5
expect_error SAFETY "what was sent before a commit revokes it" "$model" -DN=4 -DDEATHS=2 -DGROW=1 -DMISTAKE=6
echo "passed"
