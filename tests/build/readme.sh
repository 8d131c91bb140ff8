#!/usr/bin/env bash
# Checks what the documents say about options, programs, scripts and files.
#   readme.sh BUILD_DIR SOURCE_DIR [--fix]     --fix writes the table of options into OPTIONS.md
set -euo pipefail
build=$1 source=$2
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
options=$source/runtime/options/OPTIONS.md
# What a user reads: the README, the manual's pages, and how to contribute and to measure.
guides=("$source"/{README,CONTRIBUTING,perf/README,runtime/bootstrap/STARTING,runtime/exchange/ALGORITHMS}.md
  "$source"/include/nzcl/*.md "$source"/runtime/options/*.md)

table=$(mktemp)
trap 'rm -f "$table"' EXIT
"$build/bin/nzcl_info" --options-markdown >"$table"
if [[ ${3:-} == --fix ]]; then
  sed -i -e "/^<!-- options begin -->\$/r $table" -e '/^<!-- options begin -->$/,/^<!-- options end -->$/{//!d}' "$options"
fi
between options "$options" | diff -u --label "OPTIONS.md" --label "nzcl_info --options-markdown" - "$table" ||
  fail "the table in $options is not the code's; readme.sh --fix corrects it"

# commands FILE: prints the commands that a document shows, in blocks and within sentences.
commands() {
  sed -nE 's/^\$ (.*)/\1/p' "$1"
  grep -oE "\`[^\`]+\`" "$1" | tr -d "\`"
}

# Every program and script that a document names must exist, and must know the options that the document shows.
check_commands() { # DOCUMENT
  local command name program option
  while read -r command; do
    name=${command%% *}
    program=$build/bin/$name
    if [[ $name == *scripts/* ]]; then program=$source/$name; fi
    [[ -x $program ]] || fail "$1 names $name, and $program is not there"
    for option in $(grep -oE -- ' --[a-z-]+' <<<"$command" || true); do
      grep -qE -- "(^|[^a-z-])$option([^a-z-]|\$)" <<<"$("$program" --help)" ||
        fail "$1 shows $name $option, which its --help does not know"
    done
  done < <(commands "$1" | grep -E '^((\./)?scripts/[a-z]|nzcl_[a-z])')
}
for document in "${guides[@]}"; do check_commands "$document"; done

# Every variable that the documents name must exist. Exceptions are NZCL_CONFIG, which names a file and is no option, NZCL_*,
# which stands for all variables, and the variables of CMake.
while read -r variable; do
  grep -qE "^\| \`$variable\`" "$table" || grep -qE "option\($variable |set\($variable " "$source/CMakeLists.txt" ||
    fail "${guides[*]}: one of them names $variable, which is no option"
done < <(grep -ohE '\bNZCL_[A-Z_]+[A-Z]\b' "${guides[@]}" | sort -u | grep -vx NZCL_CONFIG)

# The tests that the table of mistakes names must exist.
mistakes=$(between mistakes "$source/include/nzcl/MISTAKES.md" | sed 1,2d) # without the heading
while read -r row; do
  grep -qE "\\| \`[A-Za-z]+\\.[A-Za-z]+\`" <<<"$row" || fail "MISTAKES.md: this row names no test: $row"
done <<<"$mistakes"
while IFS=. read -r suite name; do
  grep -rqE "^TEST(_F|_P)?\($suite, $name\)" "$source/tests" || fail "MISTAKES.md names the test $suite.$name, which does not exist"
done < <(grep -oE "\`[A-Z][A-Za-z]+\\.[A-Z][A-Za-z]+\`" <<<"$mistakes" | tr -d "\`")

# documents: prints the path of every document.
documents() { find "$source" -path "$source/build" -prune -o -name '*.md' -print; }

# Every whole program in a document is an example that installed_tree.sh compiles and runs, so it has a name.
while read -r document; do
  programs=$(grep -cE '^int main\(' "$document" || true)
  mapfile -t examples < <(sed -nE 's/^<!-- (.* example) begin -->$/\1/p' "$document")
  ((programs == ${#examples[@]})) || fail "$document has $programs programs, and names ${#examples[@]} examples"
  for example in "${examples[@]}"; do
    grep -qF "code_between '$example' \"\$source/${document#"$source"/}\"" "$(dirname "${BASH_SOURCE[0]}")"/{lib,installed_tree}.sh ||
      fail "installed_tree.sh does not run the $example of $document"
  done
done < <(documents)

# anchors DOCUMENT: prints the names by which links reach its headings.
anchors() {
  sed -nE 's/^#{1,6} +//p' "$1" | sed -E 's/\]\([^)]*\)//g' | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# Every link to a file of the repository must lead to one that exists, and to a heading that it has.
while read -r document; do
  while read -r target; do
    file=$document
    [[ $target == \#* ]] || file=$(dirname "$document")/${target%%#*}
    [[ -e $file ]] || fail "$document links to $target, which is not there"
    if [[ $target == *#* && $file == *.md ]]; then
      grep -qxF -- "${target#*#}" <<<"$(anchors "$file")" || fail "$document links to $target, and there is no such heading"
    fi
  done < <(grep -oE '\]\([^)]*\)' "$document" | sed -E 's/^\]\(|\)$//g' | grep -vE '^(https?:|$)')
done < <(documents)
