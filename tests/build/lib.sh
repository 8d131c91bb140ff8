# shellcheck shell=bash
# What the tests in this folder share. Sourced, never run.

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# between NAME FILE: the lines between "<!-- NAME begin -->" and "<!-- NAME end -->", which must both be there.
between() {
  local marker
  for marker in begin end; do
    grep -qxF "<!-- $1 $marker -->" "$2" || fail "$2 has no line <!-- $1 $marker -->"
  done
  sed -n "/^<!-- $1 begin -->\$/,/^<!-- $1 end -->\$/p" "$2" | sed '1d;$d'
}

# code_between NAME FILE: the same without the code fence.
code_between() { between "$1" "$2" | grep -v '^```' || fail "$2: nothing between the markers of: $1"; }
