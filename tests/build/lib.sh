# shellcheck shell=bash
# shellcheck disable=SC2154 # the sourcing test sets them
# Functions that the tests in this folder share. This file is sourced and never run. The sourcing test sets: source, the repository; here,
# this folder; work, a temporary folder; libdir, where nzcl's library is.

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# between NAME FILE: prints the lines between "<!-- NAME begin -->" and "<!-- NAME end -->", which must both be there.
between() {
  local marker
  for marker in begin end; do
    grep -qxF "<!-- $1 $marker -->" "$2" || fail "$2 has no line <!-- $1 $marker -->"
  done
  sed -n "/^<!-- $1 begin -->\$/,/^<!-- $1 end -->\$/p" "$2" | sed '1d;$d'
}

# code_between NAME FILE: the same, without the lines that begin and end the code block
code_between() { between "$1" "$2" | grep -v '^```' || fail "$2: nothing between the markers of: $1"; }

# two_ranks PROGRAM RESULT [FOLDER]: both must end well, and the last line of each must end with RESULT. FOLDER: where programs
# look for libraries, by default nzcl's.
two_ranks() {
  local rank pids=() meeting=$work/meeting.${1##*/}
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 NZCL_BOOTSTRAP=file NZCL_RENDEZVOUS_FILE=$meeting \
      LD_LIBRARY_PATH=${3-$libdir} timeout 100 "$1" >"$work/out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do
    if ! wait "${pids[rank]}" || [[ $(tail -n 1 "$work/out.$rank") != "rank $rank"*"$2" ]]; then
      fail "${1##*/}, rank $rank of 2, should end with '$2': $(tail -n +1 "$work"/out.*)"
    fi
  done
}

# build_consumer PREFIX: the README's C++ example, as a project of its own that finds nzcl below PREFIX, is $work/build/example.
build_consumer() {
  cp -r "$here/consumer" "$work/consumer"
  code_between 'c++ example' "$source/README.md" >"$work/consumer/example.cc"
  (cmake -S "$work/consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$1" -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$work/build") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
}
