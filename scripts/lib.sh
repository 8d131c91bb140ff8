# shellcheck shell=bash disable=SC2034
# What the scripts in this folder share. Sourced, never run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
install=yes  # --no-install of the scripts sets it to "no"

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# packages_of GROUP...: prints the names of the packages of these groups (see packages.txt).
packages_of() {
  local group package rest wanted=" $* "
  while read -r group package rest; do
    if [[ $wanted == *" $group "* ]]; then echo "$package"; fi
  done <"$root/scripts/packages.txt"
}

# missing_of PACKAGE...: prints those that are not installed.
missing_of() {
  local installed package
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qxF "installed $package" <<<"$installed" || echo "$package"
  done
}

is_debian() {
  local ID='' ID_LIKE=''
  # shellcheck source=/dev/null
  [[ ! -r /etc/os-release ]] || . /etc/os-release
  [[ " $ID $ID_LIKE " == *" debian "* ]] && command -v apt-get dpkg-query >/dev/null
}

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# apt_install PACKAGE...: shows what apt-get said only if it failed.
apt_install() {
  local log status=0
  log=$(mktemp)
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

apt_update() {
  say "apt-get update"
  as_root apt-get update -qq -o DPkg::Lock::Timeout=300
}

# apt_knows PACKAGE...: succeeds if apt knows where to get all of them.
apt_knows() {
  local package
  for package in "$@"; do
    LC_ALL=C apt-cache policy "$package" | grep -q '^  Candidate: [0-9]' || return 1
  done
}

# install_packages GROUP...: installs the packages of these groups that are missing, and says so.
install_packages() {
  [[ $install == yes ]] || return 0
  local wanted missing
  mapfile -t wanted < <(packages_of "$@")
  if ! is_debian; then
    printf '%s\n' "This is not Debian or Ubuntu. Install what these Debian packages contain:" \
      "${wanted[@]/#/  }" "Then run this again with --no-install." >&2
    exit 1
  fi
  mapfile -t missing < <(missing_of "${wanted[@]}")
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || command -v sudo >/dev/null ||
    die "packages are missing, and there is no sudo. As root, run: apt-get install ${missing[*]}"
  say "Installing with apt-get, which may take some minutes: ${missing[*]}"
  apt_knows "${missing[@]}" || apt_update
  # Old package lists may name files that no longer exist, so a failure is followed by an update and another try.
  apt_install "${missing[@]}" || { apt_update && apt_install "${missing[@]}"; } ||
    die "apt-get could not install: ${missing[*]}"
}

# run_for PRESET COMMAND...: runs it, for TSan without address randomisation. gcc's TSan needs a memory layout that kernels with much
# randomisation do not give. This holds for the build as well, which asks each test program for its list of tests.
run_for() {
  local preset=$1
  shift
  if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then
    setarch -R "$@"
  else
    "$@"
  fi
}

# build_preset PRESET [CMAKE --BUILD OPTIONS]: configures if that was not done yet (ninja repeats it when needed), and builds.
build_preset() {
  local preset=$1 log
  shift
  local dir=$root/build/$preset
  if [[ ! -e $dir/build.ninja || $root/CMakePresets.json -nt $dir/build.ninja ]]; then
    say "Configuring build/$preset"
    log=$(mktemp)
    (cd "$root" && cmake --preset "$preset") >"$log" 2>&1 || {
      cat "$log" >&2
      die "cmake --preset $preset failed"
    }
    rm -f "$log"
  fi
  say "Building build/$preset"
  (cd "$root" && run_for "$preset" cmake --build --preset "$preset" -j "$(nproc)" "$@")
}

# source_mark FILE: what a picture made from this file says in a comment.
source_mark() { printf 'source: %s, sha256 %s' "${1##*/}" "$(sha256sum <"$1" | cut -d' ' -f1)"; }
