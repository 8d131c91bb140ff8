#!/usr/bin/env bash
# Compiles the driver with which scripts/compare measures sparse streams over one library, and runs it with several numbers of ranks.
# Every result must be right, and in the form that SparCML's threshold asks for.
#   peers_test.sh openmpi|mpich|gloo SOURCE_DIR SANITIZE
set -euo pipefail
peer=$1 source=$2 sanitize=$3
case $peer in
  gloo) [[ -e /usr/include/gloo/allgatherv.h ]] || { echo "libgloo-dev is not installed" && exit 77; } ;;
  *) command -v "mpicxx.$peer" >/dev/null || { echo "mpicxx.$peer is not installed" && exit 77; } ;;
esac
[[ -z $sanitize ]] || { echo "$peer itself is not built for sanitizers" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $peer, $ranks ranks, $elements elements: $*" >&2
  exit 1
}
"$source/perf/peers/compile.sh" "${peer}_elements" "$work/driver"

# run ARGUMENTS...: prints what rank 0 prints
run() {
  local folder=$work/meet.$ranks.$elements i pids=()
  case $peer in
    openmpi) mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$work/driver" "$@" ;;
    mpich) mpirun.mpich -bind-to none -n "$ranks" "$work/driver" "$@" ;;
    gloo)
      mkdir "$folder"
      for ((i = 0; i < ranks; i++)); do
        RANK=$i WORLD_SIZE=$ranks "$work/driver" "$@" "$folder" 127.0.0.1 >"$work/rank$i" &
        pids+=($!)
      done
      for i in "${pids[@]}"; do wait "$i" || return 1; done
      cat "$work/rank0"
      ;;
  esac
}

counts='1 2 3 4 5 8'
[[ $peer == openmpi ]] || counts='1 3' # MPICH's ranks do not give way to each other; Gloo's ring is not what is tested here
algorithms=(allgatherv)
[[ $peer == gloo ]] || algorithms+=(ssar_recursive_double ssar_split_allgather dsar_split_allgather)
for ranks in $counts; do
  for elements in 7 20011; do # of 7 elements some ranks own none
    out=$(run "$elements" 2 0 0.6,0.35,0.27,0.04,0) || fail "status $?: $out"
    rows=$(grep -c '"name"' <<<"$out")
    ((rows == ${#algorithms[@]} * 10)) || fail "$rows rows: $out"
    ((rows == $(grep -c '"wrong": 0}' <<<"$out"))) || fail "wrong elements: $out"
    for algorithm in "${algorithms[@]}"; do grep -q "\"$algorithm\"" <<<"$out" || fail "no $algorithm"; done
  done
  # forms NAMES DENSITY true|false: what the packed results of these algorithms came as. NAMES and DENSITY are regular expressions.
  forms() {
    ! grep -E "\"name\": \"($1)\", \"density\": $2.*\"packed\"" <<<"$out" | grep -v "\"came_dense\": $3" || fail "came_dense should be $3"
  }
  # More than half of the elements are shorter as a dense vector. Two ranks with 0.27 each have 0.54 together, but only 0.47 in
  # their sum: an owner adds densely there, and sends pairs.
  forms '.*' '0\.[56]' true
  forms 'dsar.*' '.*' true
  forms 'ssar.*|allgatherv' '0\.0' false
  if ((ranks > 1)); then forms '.*' '0\.3' true; else forms 'ssar.*|allgatherv' '0\.3' false; fi
  if ((ranks == 2)); then
    forms 'ssar_split_allgather' '0\.2' false
    forms 'ssar_recursive_double|allgatherv' '0\.2' true
  fi
done

# A driver that is called wrongly says so.
ranks=1 elements=0
if out=$(run 0 1 1 0.1 2>&1); then fail "no elements were accepted"; fi
[[ $out == *"0 is not a whole number from 1 to 2147483647"* ]] || fail "$out"
