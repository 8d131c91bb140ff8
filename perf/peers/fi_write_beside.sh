#!/usr/bin/env bash
# Measures libfabric's own writes and nzcl's in turn, between two processes of this host, with the same sizes and depth.
#   fi_write_beside.sh FOLDER DRIVER ROUNDS
# FOLDER holds nzcl's programs, DRIVER is fi_write_bw. Prints lines "bw:WHAT libfabric|nzcl BYTES VALUE" with MiB/s. libfabric has nothing
# like cma and nzcl's own shm, so its shm stands beside these. Over tcp nzcl posts writes one by one, as libfabric's loop does, because lists are slower there;
# over shared memory it posts lists of 16.
set -euo pipefail
programs=$1 driver=$2 rounds=$3
export NZCL_LOG_LEVEL=error
depth=128

# nzcl TRANSPORT BYTES ITERATIONS OPTIONS...
nzcl() {
  local list=16
  [[ $1 != tcp ]] || list=1
  local command=("$programs/nzcl_write_bw" --transport "$1" -s "$2" -n "$3" -t "$depth" -l "$list" --port $((20000 + RANDOM % 10000)) "${@:4}")
  timeout 100 "${command[@]}" >/dev/null &
  local server=$! out
  out=$(timeout 100 "${command[@]}" 127.0.0.1) || { kill "$server" && echo "nzcl_write_bw failed: $out" >&2 && return 1; }
  wait "$server"
  awk -v size="$2" '$1 == size {print $4}' <<<"$out"
}
# beside NAME PROVIDER CALL BYTES ITERATIONS TRANSPORTS OPTIONS...
beside() {
  local name=$1 provider=$2 call=$3 size=$4 iterations=$5 transports=$6 transport peer
  peer=$(timeout 100 "$driver" "$provider" "$size" "$iterations" "$depth" "$call")
  for transport in $transports; do
    [[ $transport != shm ]] || ((size < 512 * 1024)) || continue # more than it takes in one write
    echo "bw:$transport$name libfabric $size $peer"
    echo "bw:$transport$name nzcl $size $(nzcl "$transport" "$size" "$iterations" "${@:7}")"
  done
}
for ((round = 0; round < rounds; round++)); do
  for size in 4096 16384 65536 262144 1048576; do
    iterations=$((1 << 30 > 40000 * size ? 40000 : (1 << 30) / size))
    beside '' shm write "$size" "$iterations" "libfabric-shm shm cma"
    beside +imm shm writedata "$size" "$iterations" "libfabric-shm shm cma" --with_imm
    iterations=$((iterations / 2))
    beside '' net write "$size" "$iterations" tcp
    beside +imm net writedata "$size" "$iterations" tcp --with_imm
  done
done
