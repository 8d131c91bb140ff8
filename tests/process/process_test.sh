#!/usr/bin/env bash
# Tests of ranks and aggregators as separate processes.
#   process_test.sh CASE RANK_PROGRAM AGGREGATOR_PROGRAM INFO_PROGRAM
set -euo pipefail
# shellcheck source=tests/process/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case_name=$1 rank=$2 aggregator=$3 info=$4
read -ra transports <<<"${TEST_TRANSPORTS:-cma shm tcp}"
grep -qE '^ +cma +yes' <<<"$("$info" 2>/dev/null)" || transports=("${transports[@]/#cma/shm}") # without cma, which some containers forbid
# The timeout of cases where a member is missing. It is long enough that all others have been started by then, even on a busy
# machine.
brief=NZCL_BOOTSTRAP_TIMEOUT_S=10

# start NAME VARIABLE=VALUE... -- COMMAND...: starts the command in the background, with its output in NAME.out
start() {
  local name=$1
  shift
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  rm -f "$work/$name.out" # what an earlier process of this name has printed
  env "${variables[@]}" "$@" >"$work/$name.out" 2>&1 &
  pids+=($!)
  eval "pid_$name=$!"
}

# start_ranks N [VARIABLE=VALUE...] -- ARGUMENTS: starts ranks 0 to N-1 with the variables that torchrun would set
start_ranks() {
  local n=$1 r
  shift
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  for ((r = 0; r < n; r++)); do
    start "rank$r" "RANK=$r" "WORLD_SIZE=$n" "LOCAL_RANK=$r" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "${variables[@]}" \
      -- "$rank" "$@"
  done
}

# expect NAME STATUS [TEXT]: waits for NAME, which must end with STATUS and have printed TEXT
expect() {
  local pid_name=pid_$1 status=0
  wait "${!pid_name}" || status=$?
  [[ $status == "$2" ]] || fail "$1 ended with status $status, not $2"
  [[ $# -lt 3 ]] || grep -qE -- "$3" "$work/$1.out" || fail "$1 did not say: $3"
}
expect_ranks_ok() {
  local n=$1 r
  for ((r = 0; r < n; r++)); do expect "rank$r" 0 "^rank $r of $n: ok$"; done
}
# expect_quiet NAME: no member has given buffers back while another one may have written to them
expect_quiet() { ! grep -q 'not every member has ended its writes' "$work/$1.out" || fail "$1 gave buffers back too early"; }
expect_text() { grep -qE -- "$2" "$work/$1.out" || fail "$1 did not say: $2"; } # NAME TEXT
# start_new_ranks FIRST N [VARIABLE=VALUE...] -- ARGUMENTS: starts ranks FIRST to N-1, who join those that are there
start_new_ranks() {
  local first=$1 n=$2 r
  shift 2
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1") && shift; done
  shift
  for ((r = first; r < n; r++)); do
    start "rank$r" "RANK=$r" "WORLD_SIZE=$n" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "${variables[@]}" -- "$rank" "$@"
  done
}
# start_aggregators N WORKERS [VARIABLE=VALUE...]: starts aggregators 0 to N-1 for the ranks of start_ranks
start_aggregators() {
  local n=$1 workers=$2 i
  shift 2
  for ((i = 0; i < n; i++)); do
    start "aggregator$i" "WORLD_SIZE=$workers" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "NZCL_AGGREGATORS=$n" "$@" -- "$aggregator" --index "$i"
  done
}
# expect_subgroups_ok N: the ranks of `--split` that have ended compared all sums
expect_subgroups_ok() {
  local n=$1 r what
  for ((r = 0; r < n; r++)); do
    for what in parent child 'child after the parent'; do expect_text "rank$r" "^$what: ok\$"; done
    ((r == 0)) || ((n == 2)) || expect_text "rank$r" '^grandchild: ok$'
  done
}
has_come_to() { grep -q "^round $1\$" "$work/rank0.out" 2>/dev/null; } # ROUND
joined() { grep -q joined "$work/rank$1.out" 2>/dev/null; } # RANK
listens() { (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; }
need() { command -v "$1" >/dev/null || { echo "$1 is not installed" && exit 77; }; }
expect_lines() { # N REGEX FILE
  [[ $(grep -cE "$2" "$3") == "$1" ]] || fail "not $1 lines of $3 match $2"
}

# two_programs N COMMAND M COMMAND: N ranks of one and M of the other under Open MPI, with two aggregators
two_programs() {
  local mpirun=(mpirun.openmpi --allow-run-as-root --oversubscribe -x NZCL_AGGREGATORS)
  export NZCL_AGGREGATORS=2
  if TMPDIR=$work "${mpirun[@]}" -n 1 true : -n 1 true >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # a command has words
    "${mpirun[@]}" -n "$1" $2 : -n "$3" $4
  else # mpirun of Open MPI 5.0.7 crashes when it is given two programs, and leaves a folder
    "${mpirun[@]}" -n $(($1 + $3)) bash -c "if ((OMPI_COMM_WORLD_RANK < $1)); then exec $2; else exec $4; fi"
  fi
}

# "${with_hosts[@]}" FILE COMMAND...: runs the command with FILE as its /etc/hosts
# shellcheck disable=SC2016 # the inner shell expands it
with_hosts=(unshare -m bash -c 'mount --bind "$0" /etc/hosts && exec "$@"')
need_mounts() { unshare -m true 2>/dev/null || { echo "not allowed to make mount namespaces" && exit 77; }; }

port=$(free_port)
case $case_name in
  torchrun_variables)
    for transport in "${transports[@]}" libfabric-shm; do
      start_ranks 4 "NZCL_TRANSPORT=$transport" -- --communicators 3
      expect_ranks_ok 4
      port=$(free_port)
    done
    ;;
  dedicated_aggregators)
    for transport in "${transports[@]}"; do
      start_ranks 3 NZCL_AGGREGATORS=2 "NZCL_TRANSPORT=$transport" --
      for i in 0 1; do
        start "aggregator$i" WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_AGGREGATORS=2 \
          "NZCL_TRANSPORT=$transport" -- "$aggregator" --index $i
      done
      expect_ranks_ok 3
      expect aggregator0 0
      expect aggregator1 0
      port=$(free_port)
    done
    ;;
  shared_file)
    echo leftover >"$work/meeting"
    for r in 1 2 0; do start "rank$r" "NZCL_RANK=$r" NZCL_WORLD_SIZE=3 "NZCL_RENDEZVOUS_FILE=$work/meeting" -- "$rank" --communicators 2; done
    expect_ranks_ok 3
    [[ ! -e $work/meeting ]] || fail "the rendezvous file was not removed"
    ;;
  open_mpi)
    need mpirun.openmpi
    mpirun.openmpi --allow-run-as-root --oversubscribe -n 4 "$rank" --communicators 3 >"$work/mpi.out" 2>&1 || fail "mpirun"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    ;;
  open_mpi_with_aggregators)
    need mpirun.openmpi
    two_programs 4 "$rank" 2 "$aggregator" >"$work/mpi.out" 2>&1 || fail "mpirun"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    ;;
  mpich)
    need mpirun.mpich
    mpirun.mpich -n 4 "$rank" --communicators 2 >"$work/mpi.out" 2>&1 || fail "mpirun"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    MASTER_ADDR=127.0.0.1 MASTER_PORT=$port mpirun.mpich -n 4 "$rank" >"$work/mpi.out" 2>&1 || fail "mpirun with MASTER_ADDR"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    mpirun.mpich -n 4 -env NZCL_AGGREGATORS 2 "$rank" : -n 2 -env NZCL_AGGREGATORS 2 "$aggregator" >"$work/mpi.out" 2>&1 || fail "mpirun with aggregators"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    ;;
  slurm_variables)
    for r in 0 1 2; do
      start "rank$r" "SLURM_PROCID=$r" SLURM_STEP_NUM_TASKS=3 "SLURM_LOCALID=$r" SLURM_STEP_TASKS_PER_NODE=3 "SLURM_JOB_ID=$$" SLURM_STEP_ID=0 -- "$rank"
    done
    expect_ranks_ok 3
    ;;
  wrong_secret)
    start_ranks 2 WORLD_SIZE=3 "$brief" --
    start rank2 RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=another-secret-of-the-tests "$brief" -- "$rank"
    expect rank2 3 'secret'
    expect rank0 3 'rank 2 did not come .*refused'
    expect rank1 3 'rank 2 did not come'
    ;;
  wrong_secret_at_hub)
    start_ranks 1 WORLD_SIZE=3 "$brief" NZCL_SECRET=another-secret-of-the-tests --
    for r in 1 2; do start rank$r RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "$brief" -- "$rank"; done
    expect rank0 3 'rank 1, rank 2 did not come'
    for r in 1 2; do expect rank$r 3 'secret'; done
    ;;
  tcp_keys | tcp_immediates)
    # A process of this host that knows no secret, and speaks to the port of rank 1's transport. All ranks are on one host, so
    # nobody else can even reach them: each listens on loopback alone.
    need ss
    stranger=$(dirname "$rank")/process_tcp_stranger
    start_ranks 2 NZCL_TRANSPORT=tcp NZCL_TIMEOUT_S=100 -- --rounds 8000 --count 20000 --late-rank 0 --late-ms 2
    for r in 0 1; do until_true "rank $r joined" grep -q joined "$work/rank$r.out"; done
    # shellcheck disable=SC2154 # set by start
    mapfile -t sockets < <(ss -Hltnp | grep -E "pid=($pid_rank0|$pid_rank1)," | awk '{print $4}')
    ((${#sockets[@]} >= 2)) || fail "the ranks listen nowhere"
    for socket in "${sockets[@]}"; do [[ $socket =~ ^(127\.|\[::1\]|\[::ffff:127\.) ]] || fail "a rank listens at $socket"; done
    reached=no
    while read -r socket; do
      if [[ $case_name == tcp_keys ]]; then
        "$stranger" 127.0.0.1 "${socket##*:}" keys 0 24 >>"$work/stranger.out" 2>&1 && reached=yes
      else
        "$stranger" 127.0.0.1 "${socket##*:}" immediate 5 >>"$work/stranger.out" 2>&1 && reached=yes
      fi
    done < <(ss -Hltnp | grep "pid=$pid_rank1," | awk '{print $4}')
    [[ $reached == yes ]] || fail "the stranger reached no port of rank 1"
    if [[ $case_name == tcp_keys ]]; then
      expect_ranks_ok 2
    else
      for r in 0 1; do expect "rank$r" 3 'rank 0 announced a message that is not there'; done
    fi
    ;;
  no_secret)
    for address in 127.0.0.1 localhost; do
      for r in 1 0 2; do start "rank$r" "RANK=$r" WORLD_SIZE=3 "MASTER_ADDR=$address" "MASTER_PORT=$port" -- "$rank" --communicators 2; done
      expect_ranks_ok 3
      port=$(free_port)
    done
    ;;
  another_user)
    # Without a secret nobody but this user becomes a rank of its job, and nobody's job takes in one of its ranks.
    ((EUID == 0)) || { echo "only root can start processes of another user" && exit 77; }
    chmod 755 "$work"
    cp "$rank" "$(ldd "$rank" | awk '/libnzcl/ {print $3}')" "$work"
    stranger=(env "LD_LIBRARY_PATH=$work" setpriv --reuid 65534 --regid 65534 --clear-groups "$work/$(basename "$rank")")
    start rank0 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" "$brief" -- "$rank"
    start rank1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" "$brief" -- "${stranger[@]}"
    expect rank1 3 'it belongs to user 0, not to user 65534.*NZCL_SECRET'
    expect rank0 3 'rank 1 did not come .*user 65534.*NZCL_SECRET'
    port=$(free_port)
    start rank0 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" "$brief" -- "${stranger[@]}"
    start rank1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" "$brief" -- "$rank"
    expect rank1 3 'it belongs to user 65534, not to user 0.*NZCL_SECRET'
    expect rank0 3 'rank 1 did not come'
    port=$(free_port)
    export NZCL_SECRET=secret-of-the-tests
    start rank0 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_TRANSPORT=tcp -- "$rank"
    start rank1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_TRANSPORT=tcp -- "${stranger[@]}"
    expect_ranks_ok 2
    ;;
  one_host_listens)
    # Nobody beyond this host is needed where the launcher says that all ranks are on it.
    need ss
    start rank0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 "SLURM_JOB_ID=$$" -- "$rank"
    # shellcheck disable=SC2154 # set by start
    sockets() { ss -Hltnp | grep "pid=$pid_rank0," | awk '{print $4}'; }
    has_sockets() { sockets | grep -q .; }
    until_true "rank 0 listens" has_sockets
    mapfile -t listening < <(sockets)
    for socket in "${listening[@]}"; do [[ $socket =~ ^(127\.0\.0\.1|\[::1\]): ]] || fail "rank 0 listens at $socket"; done
    start rank1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 "SLURM_JOB_ID=$$" -- "$rank"
    expect_ranks_ok 2
    ;;
  localhost_is_ipv6)
    need_mounts
    printf '::1\tlocalhost ip6-localhost\n127.0.0.1\tlocalhost\n' >"$work/hosts"
    for address in localhost ip6-localhost ::1 '[::1]'; do
      for secret in '' secret-of-the-tests; do
        for r in 0 1; do
          start "rank$r" "RANK=$r" WORLD_SIZE=2 "MASTER_ADDR=$address" "MASTER_PORT=$port" "NZCL_SECRET=$secret" -- "${with_hosts[@]}" "$work/hosts" "$rank"
        done
        expect_ranks_ok 2
        port=$(free_port)
      done
    done
    ;;
  name_of_loopback)
    # Debian gives a host's own name the address 127.0.1.1, on this host only.
    if ! ip netns add "nzcl-$$-0" 2>/dev/null; then echo "not allowed to make network namespaces" && exit 77; fi
    ip netns add "nzcl-$$-1"
    hosts=("nzcl-$$-0" "nzcl-$$-1")
    ip link add "nz$$a" netns "${hosts[0]}" type veth peer name "nz$$b" netns "${hosts[1]}"
    for host in "${hosts[@]}"; do ip -n "$host" link set lo up; done
    ip -n "${hosts[0]}" address add 10.98.0.1/24 dev "nz$$a"
    ip -n "${hosts[1]}" address add 10.98.0.2/24 dev "nz$$b"
    ip -n "${hosts[0]}" link set "nz$$a" up
    ip -n "${hosts[1]}" link set "nz$$b" up
    printf '127.0.0.1\tlocalhost\n127.0.1.1\tnode0\n' >"$work/hosts0"
    printf '127.0.0.1\tlocalhost\n10.98.0.1\tnode0\n' >"$work/hosts1"
    for r in 0 1; do
      start "rank$r" "RANK=$r" WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 NZCL_SECRET=secret-of-the-tests NZCL_TRANSPORT=tcp NZCL_LOG_LEVEL=info \
        -- ip netns exec "${hosts[r]}" "${with_hosts[@]}" "$work/hosts$r" "$rank"
    done
    expect_ranks_ok 2
    expect_text rank0 'node0 is 127.0.1.1 here.*listens on every interface'
    # Without a secret, rank 0 says why nobody comes, and the other host what it needs.
    for r in 0 1; do
      start "rank$r" "RANK=$r" WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 "$brief" -- ip netns exec "${hosts[r]}" "${with_hosts[@]}" "$work/hosts$r" "$rank"
    done
    expect rank0 3 'rank 1 did not come to the meeting at node0:29500 .*which only this host can reach'
    expect rank1 3 'node0 is not a loopback address.*NZCL_SECRET'
    ;;
  late_name)
    # The name of a pod is known only some seconds after its start.
    need_mounts
    printf '127.0.0.1\tlocalhost\n' >"$work/hosts"
    for r in 0 1; do
      start "rank$r" "RANK=$r" WORLD_SIZE=2 MASTER_ADDR=late.nzcl.invalid "MASTER_PORT=$port" -- "${with_hosts[@]}" "$work/hosts" "$rank"
    done
    for r in 0 1; do until_true "rank $r looks for the name" grep -q 'cannot resolve the host late.nzcl.invalid.*trying again' "$work/rank$r.out"; done
    printf '127.0.0.1\tlate.nzcl.invalid\n' >>"$work/hosts"
    expect_ranks_ok 2
    ;;
  left_over_world_size)
    need mpirun.mpich
    status=0
    RANK=0 WORLD_SIZE=1 mpirun.mpich -n 2 "$rank" >"$work/mpi.out" 2>&1 || status=$?
    ((status != 0)) || fail "two lone ranks"
    grep -q 'contradict each other.*RANK=0 WORLD_SIZE=1.*PMI_RANK=. PMI_SIZE=2' "$work/mpi.out" || fail "the error does not show both launchers"
    if command -v mpirun.openmpi >/dev/null; then # PMIx counts more
      RANK=0 WORLD_SIZE=1 mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 "$rank" >"$work/mpi.out" 2>&1 || fail "mpirun.openmpi"
      expect_lines 2 '^rank [0-1] of 2: ok$' "$work/mpi.out"
    fi
    ;;
  left_over_master_port)
    # Kubernetes sets it so for a service that is called "master". Only those who meet there need it.
    export MASTER_PORT=tcp://10.0.0.1:5557
    "$info" >"$work/info.out" || fail "nzcl_info"
    for r in 0 1; do start "rank$r" "RANK=$r" WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "NZCL_MASTER_PORT=$port" -- "$rank"; done
    expect_ranks_ok 2
    for r in 0 1; do start "rank$r" "RANK=$r" WORLD_SIZE=2 "NZCL_RENDEZVOUS_FILE=$work/meeting" -- "$rank"; done
    expect_ranks_ok 2
    start rank0 RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 -- "$rank"
    expect rank0 3 'MASTER_PORT: "tcp://10.0.0.1:5557" is not a number.*NZCL_MASTER_PORT'
    ;;
  foreign_file)
    # Another user's file came first. It is not believed, and rank 0 replaces it, which only root may do in such a folder.
    ((EUID == 0)) || { echo "only root can make files of another user" && exit 77; }
    mkdir -m 1777 "$work/open"
    file=$work/open/meeting
    printf '{"hosts":["127.0.0.1"],"host_id":"","port":%s,"secret":"known to its writer"}' "$port" >"$file"
    chown 65534:65534 "$file"
    start rank1 NZCL_RANK=1 NZCL_WORLD_SIZE=2 "NZCL_RENDEZVOUS_FILE=$file" -- "$rank"
    until_true "rank 1 refuses the file" grep -q 'not believed, because it belongs to user 65534' "$work/rank1.out"
    start rank0 NZCL_RANK=0 NZCL_WORLD_SIZE=2 "NZCL_RENDEZVOUS_FILE=$file" -- "$rank"
    expect_ranks_ok 2
    # Without root's right to replace it, rank 0 says so.
    printf 'first' >"$file"
    chown 65534:65534 "$file" "$work/open"
    start rank0 NZCL_RANK=0 NZCL_WORLD_SIZE=2 "NZCL_RENDEZVOUS_FILE=$file" -- setpriv --bounding-set=-all --inh-caps=-all "$rank"
    expect rank0 3 'cannot replace the rendezvous file, which belongs to another user'
    ;;
  no_secret_beyond_loopback)
    address=$(hostname -I | awk '{print $1}')
    [[ -n $address ]] || { echo "this host has no address but loopback" && exit 77; }
    start rank0 RANK=0 WORLD_SIZE=2 "MASTER_ADDR=$address" "MASTER_PORT=$port" -- "$rank"
    expect rank0 3 'NZCL_SECRET'
    ;;
  same_rank_twice)
    start_ranks 2 WORLD_SIZE=3 --
    start again RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests -- "$rank"
    for name in rank0 rank1 again; do expect $name 3 'both claim to be rank 1'; done
    ;;
  missing_rank)
    start_ranks 2 WORLD_SIZE=3 "$brief" --
    for name in rank0 rank1; do expect $name 3 'rank 2 did not come'; done
    ;;
  switch)
    [[ -z ${TEST_TRANSPORTS:-} ]] || export NZCL_TRANSPORT=$TEST_TRANSPORTS # ibverbs, whose datagrams go over UD
    for lanes in 1 2; do
      start_ranks 3 NZCL_AGGREGATORS=1 NZCL_ALGORITHM=switch "NZCL_LANES=$lanes" --
      start aggregator0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_AGGREGATORS=1 \
        "NZCL_LANES=$lanes" -- "$aggregator" --switch --index 0
      expect_ranks_ok 3
      expect aggregator0 0
      port=$(free_port)
    done
    start_ranks 2 NZCL_AGGREGATORS=1 -- # without the option on the ranks
    start aggregator0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_AGGREGATORS=1 -- "$aggregator" --switch --index 0
    for r in 0 1; do expect rank$r 3 "members disagree about option algorithm"; done
    expect aggregator0 1 "members disagree about option algorithm"
    ;;
  switch_killed_rank)
    start_ranks 3 NZCL_AGGREGATORS=1 NZCL_ALGORITHM=switch NZCL_TIMEOUT_S=100 -- --rounds 100000 --die-rank 1 --die-at 20
    start_aggregators 1 3 NZCL_ALGORITHM=switch NZCL_TIMEOUT_S=100
    expect rank1 137
    for r in 0 2; do expect rank$r 3 "rank 1 \(pid .*\) died"; done
    ;;
  killed_rank | killed_first_rank | killed_before_all)
    # Before all: the rank has joined, but nobody has written to it yet. Over TCP it is not connected then.
    dead=2 at=20
    [[ $case_name != killed_first_rank ]] || dead=0
    [[ $case_name != killed_before_all ]] || at=0
    for transport in "${transports[@]}"; do
      start_ranks 4 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --rounds 100000 --die-rank $dead --die-at $at
      for r in 0 1 2 3; do
        if ((r == dead)); then expect rank$r 137; else expect rank$r 3 "rank $dead \(pid .*\) died" && expect_quiet rank$r; fi
      done
      port=$(free_port)
    done
    ;;
  one_round_more)
    # Rank `early` ends in good order while the others start another operation. They learn it at once.
    for transport in "${transports[@]}"; do
      for early in 0 2; do
        for r in 0 1 2; do
          start "rank$r" "RANK=$r" WORLD_SIZE=3 "LOCAL_RANK=$r" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=1000 \
            -- "$rank" --rounds $((r == early ? 10 : 11))
        done
        for r in 0 1 2; do
          if ((r == early)); then expect rank$r 0; else expect rank$r 3 "^operation 10: rank $early \(pid .*\) did not join it and has left"; fi
        done
        port=$(free_port)
      done
    done
    ;;
  killed_with_first_rank)
    # Rank 0 collects who has come to rest. The others do so without it, and without one that dies at the same time.
    for transport in "${transports[@]}"; do
      for n in 3 4 8; do
        others=(0 1)
        ((n < 8)) || others+=(7)
        for other in "${others[@]}"; do
          start_ranks $n "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --rounds 1000000
          for ((r = 0; r < n; r++)); do until_true "rank $r joined" joined "$r"; done
          other_pid=pid_rank$other
          # shellcheck disable=SC2154 # set by start
          kill -KILL "$pid_rank0" "${!other_pid}"
          for ((r = 0; r < n; r++)); do
            if ((r == 0 || r == other)); then expect rank$r 137; else expect rank$r 3 "rank (0|$other) \(pid .*\) died" && expect_quiet rank$r; fi
          done
          port=$(free_port)
        done
      done
    done
    ;;
  stopped_first_rank)
    # Rank 0 neither dies nor answers, and so cannot tell the others of a failure. They end all the same, and say what nobody
    # can promise: that rank 0 does not write when it goes on.
    for transport in "${transports[@]}"; do
      start_ranks 3 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=2 -- --rounds 1000000
      for r in 0 1 2; do until_true "rank $r joined" joined "$r"; done
      kill -STOP "$pid_rank0"
      for r in 1 2; do
        expect rank$r 3 'rank 0 \(pid .*\), which should tell this to all, does not answer'
        expect_text rank$r 'a late write may still reach'
      done
      kill -CONT "$pid_rank0"
      expect rank0 3
      port=$(free_port)
    done
    ;;
  shrink)
    # Those that are left go on, whoever dies.
    for transport in "${transports[@]}"; do
      for dead in 0 2 "0 1" "1 4"; do
        start_ranks 5 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --shrink --rounds 1000000
        for r in 0 1 2 3 4; do until_true "rank $r joined" joined "$r"; done
        for r in $dead; do
          pid=pid_rank$r
          kill -KILL "${!pid}"
        done
        left=$((5 - $(wc -w <<<"$dead")))
        for r in 0 1 2 3 4; do
          if [[ " $dead " == *" $r "* ]]; then expect rank$r 137; else expect rank$r 0 "^rank . of $left: ok" && expect_quiet rank$r; fi
        done
        port=$(free_port)
      done
    done
    ;;
  shrink_meanwhile)
    # A second one dies while the others agree that the first one has died, or build the smaller communicator, or use it.
    for transport in "${transports[@]}"; do
      for pair in "0 1" "0 3" "2 0"; do
        read -r first second <<<"$pair"
        for pause in 0 0.02; do
          start_ranks 5 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --shrink --rounds 1000000
          for r in 0 1 2 3 4; do until_true "rank $r joined" joined "$r"; done
          first_pid=pid_rank$first second_pid=pid_rank$second
          kill -KILL "${!first_pid}"
          sleep "$pause"
          kill -KILL "${!second_pid}" 2>/dev/null || true
          for r in 0 1 2 3 4; do
            if ((r == first)); then expect rank$r 137; elif ((r != second)); then expect rank$r 0 '^rank . of [34]: ok'; fi
          done
          port=$(free_port)
        done
      done
    done
    ;;
  shrink_stopped)
    # A rank that is stopped is left out, and learns it when it goes on, also if it is the hub.
    for transport in "${transports[@]}"; do
      for stopped in 0 2; do
        start_ranks 4 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=2 NZCL_BOOTSTRAP_TIMEOUT_S=5 -- --shrink --rounds 1000000
        for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
        pid=pid_rank$stopped
        kill -STOP "${!pid}"
        for r in 0 1 2 3; do ((r == stopped)) || expect rank$r 0 '^rank . of 3: ok'; done
        kill -CONT "${!pid}"
        expect rank$stopped 3
        port=$(free_port)
      done
    done
    ;;
  shrink_with_aggregators)
    for transport in "${transports[@]}"; do
      export NZCL_AGGREGATORS=2 NZCL_TRANSPORT=$transport NZCL_TIMEOUT_S=100
      start_ranks 4 -- --shrink --rounds 1000000
      start_aggregators 2 4
      for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
      # shellcheck disable=SC2154 # set by start
      kill -KILL "$pid_rank0" "$pid_aggregator1"
      for r in 1 2 3; do expect rank$r 0 '^rank . of 3: ok'; done
      expect aggregator0 0
      port=$(free_port)
    done
    ;;
  grow)
    # New ranks come when the others wait for them, or before. They meet where the job met.
    for transport in "${transports[@]}" auto; do
      for pause in 0 0.5; do
        start_ranks 3 "NZCL_TRANSPORT=$transport" -- --rounds 20 --grow 5
        for r in 0 1 2; do until_true "rank $r joined" joined "$r"; done
        sleep "$pause"
        start_new_ranks 3 5 "NZCL_TRANSPORT=$transport" -- --rounds 20
        expect_ranks_ok 5
        port=$(free_port)
      done
    done
    ;;
  grow_back)
    # A rank dies, and one comes back, whichever has died.
    for transport in "${transports[@]}"; do
      for dead in 0 1; do
        start_ranks 4 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --shrink --rounds 1000000 --grow 4
        for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
        pid=pid_rank$dead
        kill -KILL "${!pid}"
        expect rank$dead 137
        mapfile -t old < <(seq 0 3 | grep -vx "$dead")
        start back RANK=3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests "NZCL_TRANSPORT=$transport" -- "$rank"
        for r in "${old[@]}"; do expect "rank$r" 0 '^rank . of 4: ok'; done
        expect back 0 '^rank 3 of 4: ok'
        port=$(free_port)
      done
    done
    ;;
  grow_with_aggregators)
    for transport in "${transports[@]}"; do
      start_ranks 2 NZCL_AGGREGATORS=2 "NZCL_TRANSPORT=$transport" -- --rounds 20 --grow 4
      start_aggregators 2 2 "NZCL_TRANSPORT=$transport"
      for r in 0 1; do until_true "rank $r joined" joined "$r"; done
      start_new_ranks 2 4 NZCL_AGGREGATORS=2 "NZCL_TRANSPORT=$transport" -- --rounds 20
      expect_ranks_ok 4
      for i in 0 1; do expect "aggregator$i" 0; done
      port=$(free_port)
    done
    ;;
  grow_by_other_transport)
    # Nobody may write the new rank's memory, so what is registered for cma gets registered for shm.
    [[ ${transports[*]} == *cma* ]] || exit 77
    without=() # as in not_dumpable
    ((EUID != 0)) || without=(setpriv --bounding-set=-all --inh-caps=-all)
    for r in 0 1; do
      start "rank$r" "RANK=$r" WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_LOG_LEVEL=info \
        -- "${without[@]}" "$rank" --rounds 20 --grow 3 --shrink
    done
    for r in 0 1; do until_true "rank $r joined" joined "$r"; done
    start rank2 RANK=2 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests \
      -- "${without[@]}" "$rank" --rounds 10 --not-dumpable
    for r in 0 1 2; do expect rank$r 0 "^rank $r of 3: ok"; done
    for r in 0 1; do expect_text rank$r "of 2 workers.*, cma, " && expect_text rank$r "of 3 workers.*, shm, "; done
    ;;
  grow_alone)
    # Nobody comes: the error says who, and the others go on.
    start_ranks 2 NZCL_BOOTSTRAP_TIMEOUT_S=2 -- --shrink --rounds 20 --grow 4
    for r in 0 1; do
      expect rank$r 0 "^rank $r of 2: ok"
      expect_text rank$r '^failed: .*rank 2.*rank 3'
    done
    ;;
  killed_aggregator)
    for transport in "${transports[@]}"; do
      export NZCL_AGGREGATORS=2 NZCL_TRANSPORT=$transport NZCL_TIMEOUT_S=100 NZCL_LOG_LEVEL=info
      start_ranks 3 -- --rounds 100000
      for i in 0 1; do start "aggregator$i" WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests -- "$aggregator" --index $i; done
      for r in 0 1 2; do until_true "rank $r joined" joined "$r"; done
      grep -q 'slots 8 x' "$work/rank0.out" || fail "not the slots for members of one host"
      sleep 0.3
      # shellcheck disable=SC2154 # set by start
      kill -KILL "$pid_aggregator1"
      for r in 0 1 2; do expect rank$r 3 'aggregator 1 \(pid .*\) died'; done
      expect aggregator0 1 'aggregator 1 \(pid .*\) died'
      port=$(free_port)
    done
    ;;
  lost_aggregators | lost_aggregators_at_once)
    # One after the other, or both at the same time. Operations of all kinds are in flight.
    for transport in "${transports[@]}"; do
      for way in reassign preserve; do
        export NZCL_AGGREGATORS=2 NZCL_ON_AGGREGATOR_LOSS=$way "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100
        start_ranks 4 -- --rounds 100 --count 10000
        start_aggregators 2 4
        until_true "round 10" has_come_to 10
        # shellcheck disable=SC2154 # set by start
        if [[ $case_name == lost_aggregators ]]; then
          kill -KILL "$pid_aggregator1"
          until_true "round 30" has_come_to 30
          kill -KILL "$pid_aggregator0"
        else
          kill -KILL "$pid_aggregator0" "$pid_aggregator1"
        fi
        for r in 0 1 2 3; do expect "rank$r" 0 '^rank . of 4: ok'; done
        if [[ $way == preserve ]]; then
          for r in 0 1 2 3; do ! grep 'sums in place' "$work/rank$r.out" || fail "rank $r has lost an input"; done
        fi
        for i in 0 1; do expect "aggregator$i" 137; done
        port=$(free_port)
      done
    done
    ;;
  lost_rank_with_aggregators)
    # The ranks do not go on without one of them, nor after an aggregator that may still write.
    export NZCL_AGGREGATORS=2 NZCL_ON_AGGREGATOR_LOSS=reassign NZCL_TIMEOUT_S=100
    start_ranks 3 -- --rounds 100000
    start_aggregators 2 3
    until_true "round 10" has_come_to 10
    # shellcheck disable=SC2154 # set by start
    kill -KILL "$pid_rank1"
    for r in 0 2; do expect "rank$r" 3 'rank 1 \(pid .*\) died'; done
    port=$(free_port)
    export NZCL_TIMEOUT_S=1
    start_ranks 3 -- --rounds 100000
    start_aggregators 2 3
    until_true "round 10" has_come_to 10
    kill -STOP "$pid_aggregator1"
    # On a busy machine some ranks take results of the other aggregator for a while, and those that do not are blamed.
    for r in 0 1 2; do expect "rank$r" 3 'no progress for 1 s: (no answer from aggregator 1|operation .* stopped taking results)'; done
    kill -KILL "$pid_aggregator1"
    ;;
  missing_aggregator)
    start_ranks 2 NZCL_AGGREGATORS=2 "$brief" --
    start aggregator0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_AGGREGATORS=2 "$brief" -- "$aggregator" --index 0
    for name in rank0 rank1; do expect $name 3 'aggregator 1 did not come'; done
    expect aggregator0 1 'aggregator 1 did not come'
    ;;
  subgroups)
    for transport in "${transports[@]}"; do
      start_ranks 5 "NZCL_TRANSPORT=$transport" -- --split
      expect_ranks_ok 5
      expect_subgroups_ok 5
      port=$(free_port)
    done
    for r in 1 2 0; do start "rank$r" "NZCL_RANK=$r" NZCL_WORLD_SIZE=3 "NZCL_RENDEZVOUS_FILE=$work/meeting" -- "$rank" --split; done
    expect_ranks_ok 3
    expect_subgroups_ok 3
    ;;
  subgroups_with_aggregators)
    for transport in "${transports[@]}"; do
      start_ranks 4 NZCL_AGGREGATORS=2 "NZCL_TRANSPORT=$transport" -- --split
      start_aggregators 2 4 "NZCL_TRANSPORT=$transport"
      expect_ranks_ok 4
      expect_subgroups_ok 4
      for i in 0 1; do expect "aggregator$i" 0; done
      port=$(free_port)
    done
    ;;
  open_mpi_subgroups)
    # The aggregators come first, so that one of them is member 0 of the meeting.
    need mpirun.openmpi
    two_programs 2 "$aggregator" 4 "$rank --split" >"$work/mpi.out" 2>&1 || fail "mpirun"
    expect_lines 4 '^rank [0-3] of 4: ok$' "$work/mpi.out"
    expect_lines 4 '^child after the parent: ok$' "$work/mpi.out"
    expect_lines 3 '^grandchild: ok$' "$work/mpi.out"
    ;;
  killed_in_subgroup)
    # Rank 3 dies: the parent and the odd ranks' child fail, each by itself, and the even ranks' child goes on.
    for transport in "${transports[@]}"; do
      start_ranks 4 "NZCL_TRANSPORT=$transport" NZCL_TIMEOUT_S=100 -- --split --rounds 200 --die-rank 3 --die-at 20
      expect rank3 137
      for r in 0 1 2; do expect "rank$r" 0 '^parent: .*rank 3 \(pid .*\) died'; done
      expect_text rank1 '^child after the parent: .*rank 0 \(pid .*\) died'
      for r in 0 2; do
        expect_text "rank$r" '^child: ok$'
        expect_text "rank$r" '^child after the parent: ok$'
      done
      port=$(free_port)
    done
    ;;
  aggregators_of_sessions)
    # A second communicator that meets by itself finds no aggregator, and the error says what to start.
    start_ranks 2 NZCL_AGGREGATORS=1 "$brief" -- --communicators 2
    start_aggregators 1 2 "$brief"
    for name in rank0 rank1; do expect $name 3 'aggregator 0 did not come.*needs 1 dedicated aggregator\(s\) of its own.*NZCL_SESSION, here "default".*split\(\)'; done
    expect aggregator0 0 # the first communicator has ended well
    port=$(free_port)
    # This is what it says.
    start_ranks 2 NZCL_AGGREGATORS=1 -- --communicators 2 --sessions
    for s in 0 1; do
      start_aggregators 1 2 "NZCL_SESSION=s$s"
      # shellcheck disable=SC2154 # set by start
      eval "pid_session$s=$pid_aggregator0"
    done
    expect_ranks_ok 2
    for s in 0 1; do expect "session$s" 0; done
    ;;
  vanished_host)
    # Two hosts on a wire that is cut. No process dies and no connection is closed, but nothing answers any more.
    if ! ip netns add "nzcl-$$-0" 2>/dev/null; then echo "not allowed to make network namespaces" && exit 77; fi
    ip netns add "nzcl-$$-1"
    hosts=("nzcl-$$-0" "nzcl-$$-1")
    ip link add "nz$$a" netns "${hosts[0]}" type veth peer name "nz$$b" netns "${hosts[1]}"
    for host in "${hosts[@]}"; do ip -n "$host" link set lo up; done
    ip -n "${hosts[0]}" address add 10.99.0.1/24 dev "nz$$a"
    ip -n "${hosts[1]}" address add 10.99.0.2/24 dev "nz$$b"
    ip -n "${hosts[0]}" link set "nz$$a" up
    ip -n "${hosts[1]}" link set "nz$$b" up
    running() { ip -n "$1" -br link show up | grep -q '^nz.* UP '; }
    for host in "${hosts[@]}"; do until_true "the interface of $host runs" running "$host"; done
    for r in 0 1 2 3; do
      start rank$r RANK=$r WORLD_SIZE=4 MASTER_ADDR=10.99.0.1 MASTER_PORT=29500 NZCL_SECRET=secret-of-the-tests NZCL_TRANSPORT=tcp NZCL_TIMEOUT_S=100 NZCL_LOG_LEVEL=info \
        -- ip netns exec "${hosts[r / 2]}" "$rank" --rounds 1000000
    done
    for r in 0 1 2 3; do until_true "rank $r joined" joined "$r"; done
    for r in 0 1 2 3; do grep -q 'slots 32 x' "$work/rank$r.out" || fail "rank $r: not the slots for links between members"; done
    ip -n "${hosts[1]}" link set "nz$$b" down
    for r in 0 1; do expect rank$r 3 'rank [23] \(pid .*\) died'; done
    # Rank 0 was the hub. The two that are left on the other host need not wait for rank 1 either.
    for r in 2 3; do expect rank$r 3 'rank 0 \(pid .*\) died' && expect_quiet rank$r; done
    ;;
  self_connection)
    # Nobody listens on the port yet, and the system may take it for an outgoing connection. Sooner or later it takes this
    # port for a connection to this port, which TCP then connects with itself. The test leaves the system few ports, so that
    # this happens soon.
    if ! ip netns add "nzcl-$$-0" 2>/dev/null; then echo "not allowed to make network namespaces" && exit 77; fi
    hosts=("nzcl-$$-0")
    ip -n "${hosts[0]}" link set lo up
    ip netns exec "${hosts[0]}" bash -c 'echo "40000 40040" >/proc/sys/net/ipv4/ip_local_port_range' || exit 77
    for r in 1 0; do
      start rank$r RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=40000 NZCL_SECRET=secret-of-the-tests NZCL_BOOTSTRAP_TIMEOUT_S=20 \
        -- ip netns exec "${hosts[0]}" "$rank"
      sleep 3
    done
    for r in 0 1; do expect rank$r 0 "rank $r of 2: ok"; done
    ;;
  process_id_again)
    # A killed process leaves a file in /dev/shm, which must not disturb a later process with the same process id. Each job
    # runs in its own pid namespace, so that the second job's processes get the ids of the first one's.
    unshare --pid --fork --mount-proc true 2>/dev/null || { echo "not allowed to make pid namespaces" && exit 77; }
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NZCL_SECRET=secret-of-the-tests NZCL_TRANSPORT=libfabric-shm NZCL_BOOTSTRAP_TIMEOUT_S=10
    job() { # ARGUMENTS: prints each rank's process id and status
      # shellcheck disable=SC2016 # the inner shell expands it
      unshare --pid --fork --mount-proc bash -c 'mount --bind "$0" /dev/shm; for r in 0 1; do RANK=$r "$@" & pids+=($!); done
        for r in 0 1; do status=0; wait ${pids[r]} || status=$?; echo "rank $r: pid ${pids[r]}, status $status"; done' "$work/shm" "$rank" "$@"
    }
    mkdir "$work/shm"
    job --rounds 1000 --die-rank 1 --die-at 1 >"$work/first.out" 2>&1
    grep -q '^rank 1: pid .*, status 137$' "$work/first.out" || fail "rank 1 of the first job was not killed"
    job >"$work/second.out" 2>&1
    for r in 0 1; do grep -q "^rank $r: pid .*, status 0$" "$work/second.out" || fail "rank $r of the second job"; done
    [[ $(grep -o '^rank 1: pid [0-9]*' "$work/first.out") == $(grep -o '^rank 1: pid [0-9]*' "$work/second.out") ]] || fail "other process ids"
    ;;
  not_dumpable)
    # Other processes of the same user may not write into a process that is not dumpable. The transport auto takes shm then,
    # which needs no such permission. Processes of root may write all the same, unless they lack the capability for it.
    without=()
    ((EUID != 0)) || without=(setpriv --bounding-set=-all --inh-caps=-all)
    for closed in 1 '0 1'; do
      for r in 0 1; do
        flag=()
        [[ $closed != *$r* ]] || flag=(--not-dumpable)
        start "rank$r" "RANK=$r" WORLD_SIZE=2 "LOCAL_RANK=$r" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests NZCL_LOG_LEVEL=info \
          -- "${without[@]}" "$rank" "${flag[@]}"
      done
      for r in 0 1; do expect "rank$r" 0 '\(colocated\), shm, '; done
      port=$(free_port)
    done
    ;;
  shm_leftovers)
    # Of libfabric's shm; nzcl's own leaves nothing (limits_test.sh nothing_in_dev_shm).
    start_ranks 2 NZCL_TRANSPORT=libfabric-shm -- --rounds 100000 --die-rank 1 --die-at 5
    expect rank1 137
    expect rank0 3
    # shellcheck disable=SC2154 # set by start
    of_rank1() { compgen -G "/dev/shm/nzcl-*-$pid_rank1-*" >/dev/null; }
    of_rank1 || fail "a killed process leaves nothing: this test tests nothing"
    port=$(free_port)
    start_ranks 2 NZCL_TRANSPORT=libfabric-shm --
    expect_ranks_ok 2
    ! of_rank1 || fail "the file of a dead process is still there"
    ;;
  strangers)
    start_ranks 1 WORLD_SIZE=3 --
    until_true "rank 0 listens" listens "$port"
    for i in 1 2 3; do
      # These run in subshells, because a process gets SIGPIPE if its connection is closed while it still sends.
      (head -c $((i * 3000)) /dev/urandom >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || true
      (printf 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n' >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || true
      (printf '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' >"/dev/tcp/127.0.0.1/$port") 2>/dev/null || true # the beginning of a TLS handshake
    done
    exec 4<>"/dev/tcp/127.0.0.1/$port" # this connection stays silent until the meeting is over
    for r in 1 2; do start "rank$r" "RANK=$r" WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests -- "$rank"; done
    expect_ranks_ok 3
    exec 4>&-
    grep -q 'refused a connection from 127.0.0.1' "$work/rank0.out" || fail "rank 0 does not speak of strangers"
    ;;
  torchrun_agent)
    # torchrun's own store listens on MASTER_PORT, so the ranks meet on the next port.
    export TORCHELASTIC_RUN_ID=tests
    start_ranks 1 WORLD_SIZE=2 --
    until_true "rank 0 listens on the port after MASTER_PORT" listens $((port + 1))
    ! listens "$port" || fail "nzcl listens on torchrun's own port"
    start rank1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" NZCL_SECRET=secret-of-the-tests -- "$rank"
    expect_ranks_ok 2
    ;;
  shared_file_leftovers)
    file=$work/shared
    file_rank() { start "rank$1" "NZCL_RANK=$1" NZCL_WORLD_SIZE=2 "NZCL_RENDEZVOUS_FILE=$file" -- "$rank"; }
    for leftover in '' 'something else' '{"hosts":' '[1, 2]' '{"hosts":[],"host_id":"?","port":1,"secret":""}' \
      '{"hosts":["no host"],"host_id":"?","port":-1,"secret":""}'; do
      printf '%s' "$leftover" >"$file"
      file_rank 1
      sleep 0.2 # so that rank 1 finds the leftover file first
      file_rank 0
      expect_ranks_ok 2
      [[ ! -e $file ]] || fail "the file was not removed"
    done
    # A job that is killed leaves its file behind. Only the file's owner can read it.
    file_rank 0
    until_true "rank 0 writes the file" test -s "$file"
    [[ $(stat -c %a "$file") == 600 ]] || fail "others may read the file"
    # shellcheck disable=SC2154 # set by start
    kill -KILL "$pid_rank0"
    expect rank0 137
    file_rank 1
    file_rank 0
    expect_ranks_ok 2
    ;;
  idle_ranks)
    # The measured processor time may include time that a hypervisor gave to other machines. So it is enough if one of three
    # attempts passes.
    for transport in "${transports[@]}"; do
      for attempt in 1 2 3; do
        start_ranks 8 "NZCL_TRANSPORT=$transport" -- --idle 3
        expect_ranks_ok 8
        used=$(sed -nE 's/^idle ([0-9]+) us$/\1/p' "$work"/rank*.out | awk '{sum += $1} END {print sum}')
        echo "$transport: 8 idle ranks used $used us of CPU in 3 s"
        port=$(free_port)
        if ((used < 150000)); then continue 2; fi
      done
      fail "8 idle ranks use more than 5 % of a core, each of $attempt times"
    done
    ;;
  info)
    NZCL_SECRET=hunter2-and-his-friends NZCL_TRASPORT=tcp NZCL_TUNE=slot_bytes=64K "$info" >"$work/info.out"
    for section in Transports Kernels Topology Placement Bootstrap Options; do grep -q "^$section" "$work/info.out" || fail "no section $section"; done
    for transport in shm libfabric-shm; do grep -qE "^  $transport +(yes|no) " "$work/info.out" || fail "no line about $transport"; done
    grep -A1 '^Sums inside the kernel' "$work/info.out" | grep -qE '^  (yes|no) +[^ ]' || fail "no line about sums inside the kernel"
    grep -qE '^  tune.slot_bytes +64K +NZCL_TUNE$' "$work/info.out" || fail "no origin of slot_bytes"
    grep -qE 'NZCL_TRASPORT.*did you mean NZCL_TRANSPORT' "$work/info.out" || fail "no warning about NZCL_TRASPORT"
    ! grep -q hunter2 "$work/info.out" || fail "the secret is shown"
    "$info" --topology 'pack:2 [numa] core:32 pu:2' --local-ranks 8 >"$work/plan.out"
    grep -qE 'rank 7: 8 of 64 cores; lanes: 2 on cpu' "$work/plan.out" || fail "the plan for another machine"
    NZCL_SECRET=$("$info" --new-secret) "$info" >"$work/secret.out" || fail "a new secret is refused"
    [[ $("$info" --new-secret) != "$("$info" --new-secret)" ]] || fail "a new secret is an old one"
    status=0
    NZCL_SECRET=abc "$info" >"$work/bad.out" 2>&1 || status=$?
    [[ $status == 1 ]] || fail "a short secret ended with status $status"
    grep -q 'NZCL_SECRET.*nzcl_info --new-secret' "$work/bad.out" || fail "the error about a short secret does not help"
    NZCL_LINK_GBPS=2.5 "$info" >"$work/info.out" || fail "nzcl_info failed"
    grep -q 'tcp: 2.5 Gb/s (as option link_gbps says)' "$work/info.out" || fail "nzcl_info does not say where the link's speed comes from"
    status=0
    NZCL_LANES=many "$info" >"$work/bad.out" 2>&1 || status=$?
    [[ $status == 1 ]] || fail "a bad value ended with status $status"
    grep -q 'option lanes (NZCL_LANES): "many"' "$work/bad.out" || fail "the bad value is not named"
    ;;
  explain)
    chosen() { # PATTERN OPTIONS...
      "$info" --explain "${@:2}" >"$work/explain.out" || fail "--explain ${*:2} failed"
      grep -qE "^Chosen: $1" "$work/explain.out" || { cat "$work/explain.out" && fail "--explain ${*:2} does not choose $1"; }
    }
    chosen doubling 1K,1,32 --hosts 32 --cores 4
    chosen 'push; doubling is predicted to take' 1K,1,32 --cores 4
    chosen 'push; doubling cannot be' 64M,0.1,32 --hosts 32
    chosen 'push in one hop' 1K,1,2
    chosen 'push; nothing is sent' 1K,1,1
    NZCL_ALGORITHM=push chosen 'push, as NZCL_ALGORITHM says' 1K,1,32 --hosts 32 --cores 4
    NZCL_AGGREGATORS=2 chosen 'push; doubling cannot be' 1K,1,32 --hosts 32 --cores 4
    grep -q 'doubling  no: .*set aggregators to 0' "$work/explain.out" || fail "the reason against doubling is missing"
    embedding=('20M,0.015,4' --hosts 4 --cores 1 --block 100 --packed)
    NZCL_LINK_GBPS=1 chosen 'push; doubling cannot be; merging would add in another order, which NZCL_SUM_ORDER=any permits' "${embedding[@]}"
    NZCL_SUM_ORDER=any NZCL_LINK_GBPS=1 chosen 'merging, which is predicted to take 0\.8' "${embedding[@]}"
    grep -q 'over tcp, links of 1 Gb/s (as option link_gbps says)' "$work/explain.out" || fail "--explain does not say where the link's speed comes from"
    chosen push 64M,0.1,32 --hosts 4
    grep -q 'over cma within a host and tcp between hosts, links of' "$work/explain.out" || fail "--explain does not say what reaches whom"
    NZCL_SUM_ORDER=any NZCL_LINK_GBPS=1 chosen 'push; doubling cannot be; merging is predicted to take 1\.' 20M,1,4 --hosts 4 --cores 1 --block 100 --packed
    for bad in 64M,2,4 64M,0.1 x,0.1,4 64M,0.1,0; do
      status=0
      "$info" --explain "$bad" >"$work/bad.out" 2>&1 || status=$?
      [[ $status != 0 ]] || fail "--explain $bad is taken"
      grep -q -e '--explain' "$work/bad.out" || fail "the error about --explain $bad does not name it"
    done
    ;;
  *) fail "no such case" ;;
esac
