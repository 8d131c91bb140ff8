#!/usr/bin/env bash
# Checks the model of the switch exchange with Spin, and that the check finds mistakes that are put into it.
#   switch_model.sh MODEL
set -euo pipefail
model=$(realpath "$1")
command -v spin >/dev/null || { echo "skipped: spin is not installed" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# compile MODEL OPTIONS...: makes ./pan, which goes through all states of the model.
compile() {
  local file=$1
  shift
  spin -a "$file" >/dev/null
  gcc -O2 -w -DMEMLIM=3000 -DCOLLAPSE "$@" -o pan pan.c
}

# expect_right OUTPUT WHAT: fails unless pan has gone through all states and found no error.
expect_right() {
  if ! grep -q 'errors: 0' "$1" || grep -qE 'max search depth too small|out of memory|Search not completed' "$1"; then
    cat "$1"
    echo "FAILED: $2"
    exit 1
  fi
  grep 'states, stored' "$1"
}

compile "$model" -DSAFETY
./pan -m200000 >safety || true
expect_right safety "a wrong sum, or a deadlock"

# Livelocks: in fewer rounds, because the states are twice as many.
fewer='s/^#define ROUNDS 3/#define ROUNDS 2/'
sed -e "$fewer" "$model" >fewer.pml
compile fewer.pml -DNP
./pan -m200000 -l >progress || true
expect_right progress "it may go round for ever"

# expect_error NAME SED: the model with this mistake must not pass, neither as unsafe nor as going round for ever.
expect_error() {
  sed -e "$2" "$model" >mistake.pml
  if cmp -s "$model" mistake.pml; then echo "FAILED: the mistake \"$1\" changes nothing" && exit 1; fi
  compile mistake.pml -DSAFETY
  ./pan -m200000 >mistake || true
  if grep -q 'errors: 0' mistake; then
    sed -i -e "$fewer" mistake.pml
    compile mistake.pml -DNP
    ./pan -m200000 -l >mistake || true
  fi
  if ! grep -qE 'errors: [1-9]' mistake; then cat mistake && echo "FAILED: not found: $1" && exit 1; fi
  echo "found: $1"
}
expect_error "duplicates are added" 's/seen\[k\] & (1 << w)/false/'
expect_error "rounds are told apart by their set alone" 's/set_round\[k\] != r + 2/false/; s/set_round\[k\] == r + 2 && //'
expect_error "a late contribution to a complete round is not answered" 's/complete\[k\] -> answer(2 \* w + s, r, k)/complete[k] -> skip/'
echo "passed"
