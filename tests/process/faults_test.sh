#!/usr/bin/env bash
# Runs scripts/faults for some minutes. Each round needs a network and a /dev/shm of its own.
#   faults_test.sh RANK_PROGRAM ROUNDS [OPTIONS]
set -euo pipefail
# shellcheck source=tests/process/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if ((EUID != 0)) || ! unshare --mount --net true 2>/dev/null; then skip "not allowed to make namespaces"; fi
"$(dirname "${BASH_SOURCE[0]}")/../../scripts/faults" --program "$1" --rounds "$2" --jobs 4 "${@:3}"
