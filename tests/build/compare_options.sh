#!/usr/bin/env bash
# Given an option with a bad value, scripts/compare must name that option before it installs, builds or runs anything.
#   compare_options.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
source=$2
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# refuses MESSAGE ARGUMENTS...: scripts/compare must print this message and do nothing else
refuses() {
  local message=$1 out
  shift
  if out=$("$source/scripts/compare" "$@" --no-install 2>&1); then fail "compare $* was accepted"; fi
  [[ $(tail -n 1 <<<"$out") == "error: $message"* ]] || fail "compare $*: instead of \"$message\": $out"
  [[ $out != *"==>"* ]] || fail "compare $* began to work: $out"
}

for option in --rounds --iterations --bytes --ranks; do
  for value in 0 -1 x 1.5 2x 2,4; do refuses "$option $value: $option takes a whole number above 0" "$option" "$value"; done
done
refuses "--ranks 2,x: --ranks takes a list of whole numbers above 0" small --ranks 2,x
refuses "--ranks 2,: --ranks takes a list of whole numbers above 0" elements --ranks 2,
refuses "--densities 2: --densities takes a list of numbers from 0 to 1" elements --densities 2
for bed in elements collectives; do refuses "--bitmap is not for the bed $bed" "$bed" --bitmap; done
for value in gossip "broadcast," allreduce; do
  refuses "--collectives $value: --collectives takes a list of broadcast, reduce, reduce_scatter and allgather" collectives --collectives "$value"
done
for bed in elements collectives writes small; do refuses "--no-peers is for the beds host and shaped" "$bed" --no-peers; done
refuses "--block is for the beds host and shaped" elements --block 1
refuses "--block 0: --block takes a whole number above 0" --block 0
refuses "--blocks 1,: --blocks takes a list of whole numbers above 0" blocks --blocks 1,
refuses "--aggregators -1: --aggregators takes a whole number" shaped --aggregators -1
for value in x 1.5 -1 "0.1," "0.1,,1" . 0.1.1; do
  refuses "--densities $value: --densities takes a list of numbers from 0 to 1" --densities "$value"
done
refuses "unknown option --nonsense" --nonsense
