# What the tests of processes have in common. A test sources it after `set -euo pipefail`. It sets:
#   work    a folder of the test's own, in which NAME.out is what the process NAME has printed
#   pids    the processes of a job to kill at the end, which the test adds
#   keepers the same for processes that last longer than a job
#   hosts   the network namespaces to delete at the end, which the test adds
# shellcheck shell=bash
work=$(mktemp -d)
pids=() keepers=() hosts=()
# shellcheck disable=SC2317 # called by the trap
clean_up() {
  ((${#pids[@]} + ${#keepers[@]} == 0)) || kill -KILL "${pids[@]}" "${keepers[@]}" 2>/dev/null || true
  local host
  for host in "${hosts[@]}"; do ip netns del "$host" || true; done
  rm -rf "$work"
}
trap clean_up EXIT

# Variables of a launcher that may have started this test must not reach the ranks.
while read -r name; do unset "$name"; done < <(compgen -e | grep -E '^(NZCL_|PMI|PMIX_|OMPI_|PRTE_|MPI_|SLURM_|HYDRA|MASTER_|TORCHELASTIC_)|^(RANK|WORLD_SIZE|LOCAL_RANK)$' || true)
export NZCL_BOOTSTRAP_TIMEOUT_S=60 NZCL_TIMEOUT_S=20

skip() { echo "$*" && exit 77; }
fail() {
  echo "FAILED: $*" >&2
  local file
  for file in "$work"/*.out; do
    [[ ! -e $file ]] || { echo "--- $file" && tail -n 20 "$file"; } >&2
  done
  exit 1
}
# until_true TEXT COMMAND...: waits until the command succeeds; TEXT is what the failure says otherwise
until_true() {
  local what=$1 i
  shift
  for ((i = 0; i < 300; i++)); do
    ! "$@" || return 0
    sleep 0.1
  done
  fail "in 30 s not: $what"
}
# Prints a port of 127.0.0.1 such that nobody listens on it or on the next one. It lies below the range that the system takes
# for outgoing connections, because an earlier test's connection may hold such a port for a minute after its end.
free_port() {
  local port
  while port=$((RANDOM % 12000 + 20000)); do
    (: </dev/tcp/127.0.0.1/$port) 2>/dev/null || (: </dev/tcp/127.0.0.1/$((port + 1))) 2>/dev/null || break
  done
  echo "$port"
}
