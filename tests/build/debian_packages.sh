#!/usr/bin/env bash
# The Debian packages that `cpack` makes: unpacked, they hold all that a stranger's project needs, and say what they depend on.
# With TEST_INSTALL=1, which .ci/run sets, they are also installed into this system, used there, and removed again. That needs root.
#   debian_packages.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

if ! command -v dpkg-shlibdeps >/dev/null; then
  echo "SKIPPED: dpkg-shlibdeps is not installed (package dpkg-dev)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$build" && cpack -B "$work/packages") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
mapfile -t packages < <(find "$work/packages" -maxdepth 1 -name '*.deb' | sort)
runtime='' development=''
for package in "${packages[@]}"; do
  case $(dpkg-deb -f "$package" Package) in
    nzcl) runtime=$package ;;
    nzcl-dev) development=$package ;;
    python3-nzcl-torch) ;; # Torch.package tests it
    *) fail "$package is not expected" ;;
  esac
done

[[ -n $runtime && -n $development ]] || fail "cpack should make nzcl and nzcl-dev: ${packages[*]}"

echo "They say what they depend on"
for needed in libc6 libfabric1 libhwloc15 libibverbs1; do
  dpkg-deb -f "$runtime" Depends | grep -qwF "$needed" || fail "$needed: $(dpkg-deb -f "$runtime" Depends)"
done
version=$(dpkg-deb -f "$runtime" Version)
[[ $(dpkg-deb -f "$development" Depends) == "nzcl (= $version)" ]] || fail "nzcl-dev depends on its own version of nzcl"

echo "A program that needs the library runs with the first alone"
dpkg-deb -x "$runtime" "$work/root"
libdir=$(dirname "$(find "$work/root/usr/lib" -name 'libnzcl.so.?' -print -quit)")
for program in "$work/root"/usr/bin/*; do
  env -u LD_LIBRARY_PATH "$program" --help >/dev/null || fail "$program --help"
done
! find "$work/root" -name '*.h' -o -name '*.cmake' -o -name libnzcl.so | grep . || fail "this belongs into nzcl-dev"

echo "The README's example is compiled with both, and runs"
dpkg-deb -x "$development" "$work/root"
build_consumer "$work/root/usr"
two_ranks "$work/build/example" "weights[0] = -1.50"

[[ ${TEST_INSTALL:-} == 1 ]] || exit 0
((EUID == 0)) || fail "TEST_INSTALL=1 needs root"
! dpkg-query -W -f '${db:Status-Status}\n' nzcl nzcl-dev 2>/dev/null | grep -qx installed ||
  fail "a package nzcl is installed already; remove it before this test installs its own"
echo "Installed by dpkg, they are found without a word about where they are"
remove() { dpkg --remove nzcl-dev nzcl >>"$work/log" 2>&1; }
trap 'remove || true; rm -rf "$work"' EXIT
dpkg --install "$runtime" "$development" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
nzcl_info --help >/dev/null || fail "nzcl_info --help"
# shellcheck disable=SC2046
c++ -std=c++20 "$work/consumer/example.cc" $(pkg-config --cflags --libs nzcl) -o "$work/installed_example"
two_ranks "$work/installed_example" "weights[0] = -1.50" ""

echo "Removed, they leave nothing behind"
remove || fail "$(cat "$work/log")"
! find /usr/bin /usr/lib /usr/include -name '*nzcl*' -not -path '*/python*' 2>/dev/null | grep . || fail "this was left"
