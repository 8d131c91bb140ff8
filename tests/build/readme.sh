#!/usr/bin/env bash
# Does README.md tell the truth about options, programs and scripts?
#   readme.sh BUILD_DIR SOURCE_DIR [--fix]     --fix writes the table of options into README.md
set -euo pipefail
build=$1 source=$2
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readme=$source/README.md

table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$build/bin/nzcl_info" --options-markdown >"$table"
if [[ ${3:-} == --fix ]]; then
  sed -i -e "/^<!-- options begin -->\$/r $table" -e '/^<!-- options begin -->$/,/^<!-- options end -->$/{//!d}' "$readme"
fi
between options "$readme" | diff -u --label "README.md" --label "nzcl_info --options-markdown" - "$table" ||
  fail "the table of options in README.md is not the code's; readme.sh --fix corrects it"

# Every program and script that the README names is there, and knows the options that it is shown with.
commands() {
  sed -nE 's/^\$ (.*)/\1/p' "$readme"
  grep -oE "\`[^\`]+\`" "$readme" | tr -d "\`"
}
while read -r command; do
  name=${command%% *}
  program=$build/bin/$name
  if [[ $name == ./scripts/* ]]; then program=$source/$name; fi
  [[ -x $program ]] || fail "README.md names $name, and $program is not there"
  for option in $(grep -oE -- ' --[a-z-]+' <<<"$command" || true); do
    "$program" --help | grep -qE -- "(^|[^a-z-])$option([^a-z-]|\$)" ||
      fail "README.md shows $name $option, which its --help does not know"
  done
done < <(commands | grep -E '^(\./scripts/|nzcl_)')

# Links within the repository lead somewhere.
while read -r target; do
  [[ -e $source/$target ]] || fail "README.md links to $target, which is not there"
done < <(grep -oE '\]\([^)]*\)' "$readme" | sed -E 's/^\]\(|\)$//g' | grep -vE '^(https?:|#)')
