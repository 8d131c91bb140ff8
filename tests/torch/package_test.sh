#!/usr/bin/env bash
# The Debian package python3-nzcl-torch: unpacked, it has all that Python needs, and says what it depends on. With TEST_INSTALL=1, which .ci/run
# sets, it is installed into this system, used there without a word about where it is, and removed again. That needs root.
#   package_test.sh BUILD_DIR PYTHON
set -euo pipefail
build=$1 python=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unset PYTHONPATH LD_LIBRARY_PATH

fail() { echo "FAILED: $*" >&2 && exit 1; }
if ! command -v dpkg-shlibdeps >/dev/null; then
  echo "SKIPPED: dpkg-shlibdeps is not installed (package dpkg-dev)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$build" && cpack -B "$work/packages") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
# of NAME: the file with this package
of() {
  local package
  for package in "$work"/packages/*.deb; do
    if [[ $(dpkg-deb -f "$package" Package) == "$1" ]]; then echo "$package"; fi
  done
}
runtime=$(of nzcl) plugin=$(of python3-nzcl-torch)
[[ -n $runtime && -n $plugin ]] || fail "a package is missing: $(ls "$work/packages")"

# train: two ranks train a model with the package that Python finds, and all of it lies below FOLDER.
train() { # FOLDER
  "$python" "$here/torch_test.py" dense_model || fail "two ranks cannot train"
  local found
  found=$("$python" -c 'import nzcl_torch; print(nzcl_torch._C.__file__)')
  [[ $found == "$1"/* ]] || fail "Python has found another package: $found"
}

echo "It says what it depends on"
depends=$(dpkg-deb -f "$plugin" Depends)
for needed in "nzcl (= $(dpkg-deb -f "$runtime" Version))" python3-torch "python3 (>= 3." libtorch libc6; do
  [[ $depends == *"$needed"* ]] || fail "$needed: $depends"
done

echo "Unpacked, it is used from there"
for package in "$runtime" "$plugin"; do dpkg-deb -x "$package" "$work/root"; done
PYTHONPATH=$work/root/usr/lib/python3/dist-packages train "$work/root"

[[ ${TEST_INSTALL:-} == 1 ]] || exit 0
((EUID == 0)) || fail "TEST_INSTALL=1 needs root"
! dpkg-query -W -f '${db:Status-Status}\n' nzcl python3-nzcl-torch 2>/dev/null | grep -qx installed ||
  fail "a package nzcl is installed already; remove it before this test installs its own"
echo "Installed by dpkg, it is found without a word about where it is"
remove() { dpkg --remove python3-nzcl-torch nzcl >>"$work/log" 2>&1; }
trap 'remove || true; rm -rf "$work"' EXIT
dpkg --install "$runtime" "$plugin" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
train /usr/lib/python3/dist-packages
remove || fail "$(cat "$work/log")"
! "$python" -c 'import nzcl_torch' 2>/dev/null || fail "removed, it is there nevertheless"
