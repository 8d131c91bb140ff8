#!/usr/bin/env bash
# scripts/train in its short form: runs that are interrupted end with the same weights as others, dense gradients give the same weights over
# Gloo and nzcl, complete runs are not repeated, and the report has all of them.
#   train_short.sh SOURCE_DIR PLUGIN_FOLDER
set -euo pipefail
source=$1 plugin=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "$*" >&2 && exit 1; }
train() { "$source/scripts/train" "$@" --short --ranks 2 --no-install --plugin "$plugin"; }
digest_of() { sed -nE 's/.*"digest": "([^"]+)".*/\1/p' "$1"; }
same_weights() { # FILE FILE
  local one other
  one=$(digest_of "$1") other=$(digest_of "$2")
  [[ -n $one && $one == "$other" ]] || fail "${1##*/} ends with the weights $one, ${2##*/} with $other"
}

# A sparse gradient has a row several times. Gloo's way adds the rows of all ranks in one go, and nzcl's those of each rank first, so sums differ in
# their last bits.
nearly_the_same_weights() { # FILE FILE
  local one other
  one=$(digest_of "$1") other=$(digest_of "$2")
  python3 -c 'import sys; a, b = map(float.fromhex, sys.argv[1:]); sys.exit(not abs(a - b) <= 1e-6 * abs(a))' "$one" "$other" ||
    fail "${1##*/} ends with the weights $one, ${2##*/} with $other"
}

echo "A method that means nothing is refused"
refused() { # METHOD MESSAGE
  local said
  if said=$(train converge --methods "dense,$1" --out "$folder/refused" 2>&1); then fail "$1 is taken for a method"; fi
  [[ $said == "error: $2" ]] || fail "the refusal of $1 says: $said"
}
refused nonsense "no method is called nonsense"
refused rated-nonsense "no method is called nonsense"
refused rated-gloo "the method gloo has no compressor"
refused momentum-dense "the method dense has no compressor"
[[ ! -e $folder/refused ]] || fail "a refused call has begun"

echo "Interrupted runs go on bit by bit" # with one method: Torch.hook_checkpoint does so with each
methods=(adacomp)
selection=(--tasks "fashion,char" --methods "$(IFS=, && echo "${methods[*]}")" --seeds 1)
train converge "${selection[@]}" --out "$folder/whole" >"$folder/log"
train converge "${selection[@]}" --out "$folder/interrupted" --interrupt 10 >/dev/null
for task in fashion.sgd char.adam; do
  for method in "${methods[@]}"; do
    name=converge/$task.$method.1.jsonl
    same_weights "$folder/whole/$name" "$folder/interrupted/$name"
    [[ $(grep -c '"step"' "$folder/interrupted/$name") == 4 ]] || fail "$name has not all evaluations: $(<"$folder/interrupted/$name")"
    grep -q "^| $method | 1 |" "$folder/log" || fail "the report has no row for $method: $(<"$folder/log")"
  done
done
! compgen -G "$folder/*/converge/*.checkpoint.*" || fail "complete runs leave no checkpoints"

echo "A call that is ended takes its ranks along"
count_ranks() { # FOLDER: sets `ranks` to the number of processes that train there
  local process words
  ranks=0
  for process in /proc/[0-9]*; do
    mapfile -d '' -t words 2>/dev/null <"$process/cmdline" || continue
    if [[ "${words[*]}" == *train.py*"$1"* ]]; then ((++ranks)); fi
  done
}
"$source/scripts/train" converge --short --steps 1000000 --tasks fashion --methods qsgd-4 --seeds 1 --ranks 2 --no-install --plugin "$plugin" \
  --out "$folder/ended" >"$folder/log" 2>&1 &
call=$!
deadline=$((SECONDS + 60))
until [[ -s $folder/ended/converge/fashion.sgd.qsgd-4.1.jsonl ]] || ((SECONDS > deadline)); do sleep 0.1; done
count_ranks "$folder/ended"
((ranks)) || fail "no ranks are training: $(<"$folder/log")"
kill "$call"
wait "$call" || true
deadline=$((SECONDS + 60))
until count_ranks "$folder/ended" && ((ranks == 0 || SECONDS > deadline)); do sleep 0.1; done
((ranks == 0)) || fail "$ranks processes go on training"

echo "Complete runs are not repeated"
again=$(train converge "${selection[@]}" --out "$folder/whole")
! grep '^==>' <<<"$again" || fail "it trained again"

echo "Two ranks learn the same over Gloo and over nzcl"
train compare --tasks fashion,embedding --methods gloo,dense --where host --out "$folder/compare" >"$folder/log"
same_weights "$folder/compare/compare/host.fashion."{gloo,dense}.1.jsonl
nearly_the_same_weights "$folder/compare/compare/host.embedding."{gloo,dense}.1.jsonl
[[ $(grep -c '^| nzcl |' "$folder/log") == 2 ]] || fail "the report does not compare: $(<"$folder/log")"

echo "The report takes the curves of more steps from folders within"
# run FILE STEPS SECONDS STEP:ACCURACY...: writes a complete run with these evaluations, as train.py does
run() {
  local file=$folder/kept/$1 steps=$2 seconds=$3 point
  shift 3
  mkdir -p "${file%/*}"
  {
    echo '{"settings": {"ranks": 2}}'
    for point; do
      printf '{"step": %d, "up_bytes": %d, "loss": 1, "accuracy": %s}\n' "${point%:*}" "${point%:*}" "${point#*:}"
    done
    printf '{"done": %d, "seconds": %s, "up_bytes": 1000, "all_bytes": 2000, "nic_bytes": 2000, "hook": {"buckets": []}}\n' "$steps" "$seconds"
  } >"$file"
}
run converge/fashion.sgd.dense.1.jsonl 3000 300 0:0.1 1000:0.8 2000:0.9 3000:0.9
run 4500/converge/fashion.sgd.topk-0.01.1.jsonl 4500 90 0:0.1 1500:0.7 3000:0.9 4500:0.91
run 4500/converge/fashion.sgd.topk-0.01.2.jsonl 4500 90 0:0.1 1500:0.7 3000:0.89 4500:0.9
run time/100mbit.fashion.gloo.1.jsonl 10 1
run time/100mbit.fashion.topk-0.01.1.jsonl 10 0.2
"$source/scripts/train" report --out "$folder/kept" --no-install >"$folder/log"
# Gloo learns what dense gradients do: 2,000 steps of 0.1 s. The compressor's seeds take 3,000 and 4,500 steps of 0.02 s.
for row in "| gloo | 2000 | 200.0 | 1.00 |" "| topk-0.01, 4,500 steps | 3000, 4500 | 75.0 | 2.67 |"; do
  grep -qxF "$row" "$folder/log" || fail "no row '$row': $(<"$folder/log")"
done
