#!/usr/bin/env bash
# Measures perftest's one-sided writes and nzcl's in turn, between two RDMA devices of this machine, with the same sizes and list lengths.
#   write_beside.sh FOLDER ROUNDS
# FOLDER holds nzcl's programs. Prints lines "bw|lat perftest|nzcl BYTES VALUE" with MiB/s or microseconds.
set -euo pipefail
programs=$1 rounds=$2
export NZCL_LOG_LEVEL=error
mapfile -t devices < <(ls /sys/class/infiniband)
((${#devices[@]} >= 2)) || { echo "two RDMA devices are needed" >&2 && exit 1; }
address=$(ip -4 -o addr show dev "$(cat "/sys/class/infiniband/${devices[0]}/ports/1/gid_attrs/ndevs/0")" | awk '{sub("/.*", "", $4); print $4; exit}')

# Each side stays on a core of its own. On Soft-RoCE either the core of the poster sends, or the core that receives does so beside its own
# work (verbs/GOTCHAS.md). If the scheduler moved the sides between cores, the speed of both tools would change from run to run.
server_core=0 client_core=$(($(nproc) - 1))

# measure WHAT TOOL BYTES COLUMN PEER PROGRAM OPTIONS...
measure() {
  local what=$1 tool=$2 size=$3 column=$4 peer=$5 out
  shift 5
  taskset -c "$server_core" "$@" -d "${devices[0]}" >/dev/null 2>&1 &
  local server=$!
  sleep 0.7
  out=$(timeout 100 taskset -c "$client_core" "$@" -d "${devices[1]}" "$peer") || { kill "$server" && echo "$1 failed: $out" >&2 && return 1; }
  wait "$server"
  awk -v size="$size" -v what="$what" -v tool="$tool" -v column="$column" '$1 == size {print what, tool, size, $column}' <<<"$out"
}
for ((round = 0; round < rounds; round++)); do
  for size in 1024 4096 16384 65536 1048576; do
    iterations=$((96 << 20 > 20000 * size ? 20000 : (96 << 20) / size))
    bandwidth=(-s "$size" -n "$iterations" -l 16)
    latency=(-s "$size" -n 200)
    measure bw perftest "$size" 4 "$address" ib_write_bw -F "${bandwidth[@]}"
    measure bw nzcl "$size" 4 127.0.0.1 "$programs/nzcl_write_bw" --transport ibverbs "${bandwidth[@]}"
    measure lat perftest "$size" 5 "$address" ib_write_lat -F "${latency[@]}"
    measure lat nzcl "$size" 5 127.0.0.1 "$programs/nzcl_write_lat" --transport ibverbs "${latency[@]}"
  done
done
