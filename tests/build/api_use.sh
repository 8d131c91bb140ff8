#!/usr/bin/env bash
# Checks what the public headers must let compile, what they must warn about, and that they state the library's version. Only
# a compiler can tell, so it is given small sources one by one.
#   api_use.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# compiles STATEMENT: compiles it as the body of a function that has a communicator, with every warning as an error.
compiles() {
  printf '#include <nzcl/communicator.h>\nvoid use([[maybe_unused]] nzcl::Communicator& c) { %s }\n' "$1" |
    "${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I "$source/include" -x c++ - 2>&1
}
accepted() {
  local said
  said=$(compiles "$1") || fail "this should compile: $1: $said"
}
refused_as_dropped() {
  local said
  if said=$(compiles "$1"); then fail "the compiler should warn that a value is dropped: $1"; fi
  grep -q 'nodiscard' <<<"$said" || fail "$1 was refused for another reason: $said"
}

echo "Both forms of a request can be written in braces"
accepted 'c.allreduce({.count = 0}).wait();'
accepted 'c.allreduce_sparse({.count = 0}).wait();'

echo "What must not be dropped is marked"
accepted 'auto b = c.register_buffer(nullptr, 1); auto w = c.allreduce({}); while (!w.test()) {}'
refused_as_dropped 'c.register_buffer(nullptr, 1);'
refused_as_dropped 'c.allreduce({.count = 0});'
refused_as_dropped 'c.allreduce_sparse({.count = 0});'
refused_as_dropped 'nzcl::Work().test();'
refused_as_dropped 'nzcl::Work().wait(std::chrono::seconds(1));'
refused_as_dropped 'c.async_error();'
refused_as_dropped 'nzcl::options_from_environment();'

echo "The headers' version is the package's, in C and in C++"
version=$(sed -n 's/^Version: //p' "$(find "$build/runtime" -name nzcl.pc)")
for language in c c++; do
  found=$(printf '#include <nzcl/nzcl.h>\nNZCL_VERSION_STRING NZCL_VERSION_MAJOR.NZCL_VERSION_MINOR.NZCL_VERSION_PATCH\n' |
    "${CXX:-c++}" -E -P -I "$source/include" -x "$language" - | tail -n 1 | tr -d ' "')
  [[ $found == "$version${version//./.}" ]] || fail "$language: the headers say $found, the package $version"
done
