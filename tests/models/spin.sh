# Searches of models by Spin, for the scripts beside the models. A script sets `model` to its file and sources this, which
# goes on in a folder of its own.
# shellcheck shell=bash
for tool in spin gcc; do command -v $tool >/dev/null || { echo "skipped: $tool is not installed" && exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# search KIND MODEL BOUNDS...: goes through all states, and writes what was found to ./found. KIND: SAFETY looks for wrong states and deadlocks,
# NP for ways round for ever.
search() {
  spin "${@:3}" -a "$2" >found 2>&1 || { cat found && echo "FAILED: the model is not valid" && exit 1; }
  gcc -O2 -w -DMEMLIM=2500 -DCOLLAPSE "-D$1" -o pan pan.c
  local options=(-m200000)
  [[ $1 == SAFETY ]] || options+=(-l)
  ./pan "${options[@]}" >found || true
}

# expect_right KINDS NAME BOUNDS...: fails unless all states were gone through, in each of these ways, and no error was found.
expect_right() {
  local kind kinds=$1
  shift
  for kind in $kinds; do
    # shellcheck disable=SC2154 # set by the script
    search "$kind" "$model" "${@:2}"
    if ! grep -q 'errors: 0' found || grep -qE 'max search depth too small|out of memory|Search not completed' found; then
      cat found
      echo "FAILED: $1: $([[ $kind == SAFETY ]] && echo "a wrong state, or a deadlock" || echo "it may go round for ever")"
      exit 1
    fi
    echo "right: $1, $kind: $(grep 'states, stored' found)"
  done
}

# expect_error KIND NAME MODEL BOUNDS...: a model with a mistake must not pass this search.
expect_error() {
  search "$1" "$3" "${@:4}"
  if ! grep -qE 'errors: [1-9]' found; then cat found && echo "FAILED: not found: $2" && exit 1; fi
  echo "found: $2"
}
