#!/usr/bin/env bash
# Measures datagrams (UD) and writes (RC) of perftest and nzcl in turn, between two RDMA devices of this machine.
#   datagrams_beside.sh FOLDER ROUNDS SIZE...
# FOLDER holds nzcl's programs. Prints lines "bw:ud|bw:rc perftest|nzcl BYTES VALUE" with MiB/s.
set -euo pipefail
programs=$1 rounds=$2
shift 2
export NZCL_LOG_LEVEL=error
mapfile -t devices < <(ls /sys/class/infiniband)
((${#devices[@]} >= 2)) || { echo "two RDMA devices are needed" >&2 && exit 1; }
address=$(ip -4 -o addr show dev "$(cat "/sys/class/infiniband/${devices[0]}/ports/1/gid_attrs/ndevs/0")" | awk '{sub("/.*", "", $4); print $4; exit}')
server_core=0 client_core=$(($(nproc) - 1)) # write_beside.sh says why

# measure WHAT TOOL BYTES COLUMN PEER PROGRAM OPTIONS...
measure() {
  local what=$1 tool=$2 size=$3 column=$4 peer=$5 out
  shift 5
  taskset -c "$server_core" "$@" -d "${devices[0]}" >/dev/null 2>&1 &
  local server=$!
  sleep 2 # as long as a program takes to start on an emulated machine
  out=$(timeout 100 taskset -c "$client_core" "$@" -d "${devices[1]}" "$peer") || { kill "$server" && echo "$1 failed: $out" >&2 && return 1; }
  wait "$server"
  awk -v size="$size" -v what="$what" -v tool="$tool" -v column="$column" '$1 == size {print what, tool, size, $column}' <<<"$out"
}
for ((round = 0; round < rounds; round++)); do
  for size in "$@"; do
    iterations=$((24 << 20 > 12000 * size ? 12000 : (24 << 20) / size))
    measure bw:ud perftest "$size" 4 "$address" ib_send_bw -F -c UD -s "$size" -n "$iterations"
    measure bw:ud nzcl "$size" 3 127.0.0.1 "$programs/nzcl_datagram_bw" --kind ud -s "$size" -n "$iterations"
    measure bw:rc perftest "$size" 4 "$address" ib_write_bw -F -l 16 -s "$size" -n "$iterations"
    measure bw:rc nzcl "$size" 4 127.0.0.1 "$programs/nzcl_write_bw" --transport ibverbs -l 16 -s "$size" -n "$iterations"
  done
done
