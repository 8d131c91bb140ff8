#!/usr/bin/env bash
# Installs into an empty folder and uses nzcl from there as a stranger would: the README's examples are compiled against
# it, through find_package and pkg-config, and run with two ranks.
#   installed_tree.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" >/dev/null
cp -r "$here/consumer" "$work/consumer"
libdir=$(dirname "$(find "$prefix" -name nzcl.pc)" | xargs dirname)

# two_ranks PROGRAM RESULT: both must end well, and the last line of each must end with RESULT.
two_ranks() {
  local rank pids=() meeting=$work/meeting.${1##*/}
  for rank in 0 1; do
    RANK=$rank WORLD_SIZE=2 NZCL_BOOTSTRAP=file NZCL_RENDEZVOUS_FILE=$meeting \
      LD_LIBRARY_PATH=$libdir timeout 100 "$1" >"$work/out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do
    if ! wait "${pids[rank]}" || [[ $(tail -n 1 "$work/out.$rank") != "rank $rank"*"$2" ]]; then
      fail "${1##*/}, rank $rank of 2, should end with '$2': $(tail -n +1 "$work"/out.*)"
    fi
  done
}

echo "Every installed header compiles alone, as C++20 or C11"
(cd "$prefix/include" && find nzcl -name '*.h') >"$work/headers"
grep -qx nzcl/communicator.h "$work/headers" || fail "nzcl/communicator.h is not installed"
strict=(-fsyntax-only -Wall -Wextra -Wpedantic -Werror -I "$prefix/include")
while read -r header; do
  "${CXX:-c++}" -std=c++20 "${strict[@]}" -include "$header" -x c++ /dev/null || fail "$header, as C++20"
  if [[ $header == nzcl/nzcl.h ]]; then
    "${CC:-cc}" -std=c11 "${strict[@]}" -include "$header" -x c /dev/null || fail "$header, as C11"
  fi
done <"$work/headers"

echo "The README's C++ example, through find_package"
code_between 'c++ example' "$source/README.md" >"$work/consumer/example.cc"
(cmake -S "$work/consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release &&
  cmake --build "$work/build") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
# 10 steps, learning rate 0.1, gradient (1 + 2) / 2
two_ranks "$work/build/example" "weights[0] = -1.50"

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -ra flags < <(pkg-config --cflags --libs nzcl)
echo "The README's C example, through pkg-config"
code_between 'c example' "$source/README.md" >"$work/example.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$work/example.c" -o "$work/example_c" "${flags[@]}"
two_ranks "$work/example_c" "gradient[0] = 1.50"
echo "The C++ example, through pkg-config"
"${CXX:-c++}" -std=c++20 "$work/consumer/example.cc" -o "$work/example_pc" "${flags[@]}"
two_ranks "$work/example_pc" "weights[0] = -1.50"

echo "Installed programs find their libraries by themselves"
for program in "$prefix"/bin/*; do
  "$program" --help >/dev/null || fail "$program --help"
done

echo "The library exports nzcl's own names only"
foreign=$(nm -DC --defined-only "$libdir/libnzcl.so" | cut -d' ' -f3- |
  grep -vE '^(nzcl|(typeinfo|typeinfo name|vtable|VTT|guard variable) for nzcl::)' || true)
[[ -z $foreign ]] || fail "also exported: $foreign"
