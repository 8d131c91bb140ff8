#!/usr/bin/env bash
# Installs nzcl into an empty folder and uses it as a user would: the examples of the README and the manual are compiled through
# find_package and pkg-config, and run with two ranks.
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
libdir=$(dirname "$(find "$prefix" -name nzcl.pc)" | xargs dirname)

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
build_consumer "$prefix"
# The example takes 10 steps with a learning rate of 0.1, and its gradient is (1 + 2) / 2.
two_ranks "$work/build/example" "weights[0] = -1.50"

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -ra flags < <(pkg-config --cflags --libs nzcl)
echo "The manual's C example, through pkg-config"
code_between 'c example' "$source/include/nzcl/C.md" >"$work/example.c"
"${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$work/example.c" -o "$work/example_c" "${flags[@]}"
two_ranks "$work/example_c" "gradient[0] = 1.50"
echo "The C++ example, through pkg-config"
"${CXX:-c++}" -std=c++20 "$work/consumer/example.cc" -o "$work/example_pc" "${flags[@]}"
two_ranks "$work/example_pc" "weights[0] = -1.50"
echo "The manual's example of values and indices; it finds the library by itself"
code_between 'sparse example' "$source/include/nzcl/SPARSE.md" >"$work/sparse.cc"
"${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror "$work/sparse.cc" -o "$work/sparse" "${flags[@]}" "-Wl,-rpath,$(pkg-config --variable=libdir nzcl)"
two_ranks "$work/sparse" "3 blocks, block 7 holds 2.00" ""
echo "The manual's example of subgroups"
code_between 'split example' "$source/include/nzcl/SPLITS.md" >"$work/split.cc"
"${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror "$work/split.cc" -o "$work/split" "${flags[@]}"
two_ranks "$work/split" "in a group of 2: 4"
echo "The manual's example of going on without ranks that have died"
code_between 'shrink example' "$source/include/nzcl/ELASTIC.md" >"$work/shrink.cc"
"${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror "$work/shrink.cc" -o "$work/shrink" "${flags[@]}"
two_ranks "$work/shrink" "of 2"

echo "Installed programs find their libraries by themselves"
for program in "$prefix"/bin/*; do
  "$program" --help >/dev/null || fail "$program --help"
done

echo "The library exports nzcl's own names only"
foreign=$(nm -DC --defined-only "$libdir/libnzcl.so" | cut -d' ' -f3- |
  grep -vE '^(nzcl|(typeinfo|typeinfo name|vtable|VTT|guard variable) for nzcl::)' || true)
[[ -z $foreign ]] || fail "also exported: $foreign"
