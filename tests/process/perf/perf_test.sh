#!/usr/bin/env bash
# Runs the microbenchmarks as people call them, and checks what they print but not how fast they are.
#   perf_test.sh CASE WRITE_BW WRITE_LAT ALLREDUCE_PERF [CUDA_DRIVER]
set -euo pipefail
case_name=$1 write_bw=$2 write_lat=$3 allreduce=$4 driver=${5:-}
work=$(mktemp -d)
server=''
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
export NZCL_LOG_LEVEL=warn
read -ra transports <<<"${TEST_TRANSPORTS:-cma shm tcp}"
grep -qE '^ +cma +yes' <<<"$("$(dirname "$write_bw")/nzcl_info" 2>/dev/null)" || transports=("${transports[@]/#cma/shm}") # without cma, which some containers forbid

fail() {
  echo "FAILED: $*" >&2
  tail -n 20 "$work"/* >&2
  exit 1
}
# both TOOL STATUS OPTIONS: runs a server and a client with the same options, which must both end with STATUS. Options in
# SERVER_OPTIONS go to the server alone.
both() {
  local tool=$1 expected=$2 port=$((RANDOM % 12000 + 20000)) status=0
  shift 2
  # shellcheck disable=SC2086 # a list of options
  "$tool" -p $port "$@" ${SERVER_OPTIONS:-} >"$work/server" 2>&1 &
  server=$!
  for _ in $(seq 100); do ! grep -q Waiting "$work/server" || break && sleep 0.05; done
  "$tool" -p $port "$@" 127.0.0.1 >"$work/client" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "the client of $tool $* ended with status $status"
  status=0
  wait $server || status=$?
  server=''
  [[ $status == "$expected" ]] || fail "the server of $tool $* ended with status $status"
}
# right LEAST OPTIONS: at least so many rows of results, of which none has a wrong element; some are timed in place, too
right() {
  local least=$1 rows
  shift
  "$allreduce" --link 10 --out_json_file "$work/json" "$@" >"$work/rows" 2>&1 || fail "$*: status $?"
  rows=$(grep -c '"wrong"' "$work/json")
  ((rows >= least)) || fail "$*: $rows rows instead of $least"
  [[ $(grep -c '"wrong": 0' "$work/json") == "$rows" ]] || fail "$*: wrong elements"
}
# refused TEXT OPTIONS
refused() {
  local text=$1
  shift
  ! "$allreduce" --ranks 2 "$@" >"$work/rows" 2>&1 || fail "$* was accepted"
  grep -qF -- "$text" "$work/rows" || fail "$*: the refusal does not say: $text"
}
# good_rows N: rows of the table whose two #wrong are 0, or N/A where there is no such form. They must be N, and all rows.
good_rows() {
  local all good
  all=$(grep -cE '^ +[0-9]' "$work/rows" || true) # lines of the log are no rows
  good=$(awk '!/^#/ && NF == 19 && $9 == "0" && ($13 == "0" || $13 == "N/A")' "$work/rows" | wc -l)
  [[ $all == "$good" && $good == "$1" ]] || fail "$good good rows of $all, not $1"
}
rows() { grep -cE "^ $1 +[0-9]+ +[0-9.]+ +[0-9.]+" "$work/client"; }

case $case_name in
  write_bw)
    for transport in "${transports[@]}"; do
      for options in "" "--with_imm" "-b -q 2 -l 8" "-b --with_imm" "--report_gbits -t 4"; do
        # shellcheck disable=SC2086 # a list of options
        both "$write_bw" 0 --transport "$transport" -n 300 -s 10000 $options
        [[ $(rows 10000) == 1 ]] || fail "no row of results"
        cmp <(grep '^ 10000' "$work/server") <(grep '^ 10000' "$work/client") || fail "the two sides show different results"
      done
      both "$write_bw" 0 --transport "$transport" -D 0.2 -s 1
    done
    both "$write_bw" 0 --transport tcp -e -q 2 --with_imm -n 300 --out_json --out_json_file "$work/json"
    grep -q '"BW_average"' "$work/json" || fail "no results in the JSON file"
    both "$write_bw" 1 --transport libfabric-shm -e -n 10
    grep -q 'libfabric-shm has nothing to sleep on' "$work/client" || fail "-e was not refused"
    both "$write_bw" 1 --transport shm -s 1000000 -n 10
    grep -q 'shm takes at most 524160 bytes in one write' "$work/client" || fail "a write that is too large was not refused"
    ;;
  write_lat)
    for transport in "${transports[@]}"; do
      for options in "" "--with_imm" "-s 100000"; do
        # shellcheck disable=SC2086 # a list of options
        both "$write_lat" 0 --transport "$transport" -n 50 $options
        [[ $(rows '(2|100000)') == 1 ]] || fail "no row of results"
      done
    done
    both "$write_lat" 0 --transport tcp -n 20 -a
    [[ $(rows '[0-9]+') == 23 ]] || fail "not all sizes"
    ;;
  write_mismatch)
    SERVER_OPTIONS="-s 5" both "$write_bw" 1 --transport tcp -n 50
    for side in server client; do grep -q 'different options: size' "$work/$side" || fail "$side does not name the option"; done
    ;;
  taken_port | taken_port_datagrams)
    tools=("$write_bw" "$write_lat")
    [[ $case_name == taken_port ]] || tools=("$(dirname "$write_bw")/nzcl_datagram_bw")
    # Some other program has the port, and says nothing.
    port=$((RANDOM % 12000 + 20000))
    exec {silent}< <(exec python3 -c "import signal, socket
s = socket.create_server(('127.0.0.1', $port))
print('listening', flush=True)
signal.pause()")
    server=$!
    [[ $(head -n 1 <&"$silent") == listening ]] || fail "no other program to try with"
    for tool in "${tools[@]}"; do
      ! timeout 60 "$tool" -p $port >"$work/server" 2>&1 || fail "$tool took a port that is taken"
      grep -qF "cannot listen on 127.0.0.1 port $port: Address already in use; end the program that has it, or give both sides another port with -p" "$work/server" ||
        fail "the server of $tool does not name the port"
      ! NZCL_BOOTSTRAP_TIMEOUT_S=1 timeout 60 "$tool" -p $port 127.0.0.1 >"$work/client" 2>&1 || fail "$tool met a program that is not its server"
      grep -qF "no server of this program answers at 127.0.0.1 port $port" "$work/client" || fail "the client of $tool does not name the port"
    done
    ;;
  allreduce_switch)
    "$allreduce" --ranks 2 --algorithm switch -b 100K -n 2 --density 0.1 -d int32,float32 --link 10 >"$work/rows" 2>&1 || fail "status $?"
    good_rows 2
    ;;
  allreduce)
    # Without --link the speed of memory is measured first. In a sanitizer build on a CPU with large caches that takes long,
    # so it is done only once.
    for transport in "${transports[@]}"; do
      "$allreduce" --ranks 3 --transport "$transport" -b 1K -e 256K -f 16 -n 3 -w 1 --density 1,0.1 --link 10 >"$work/rows" 2>&1 || fail "status $?"
      good_rows 6
    done
    "$allreduce" --ranks 2 -b 10001 -n 2 -w 0 -d all -o all --density 0.3 --overlap none --link 10 >"$work/rows" 2>&1 || fail "types: status $?"
    good_rows 28
    "$allreduce" --ranks 3 --aggregators 2 -b 100K -n 2 --density 0.1 --bitmap --out_json_file "$work/json" >"$work/rows" 2>&1 || fail "aggregators: status $?"
    for text in '"aggregators": 2' '"wrong": 0' '"bound": "memory"'; do grep -q "$text" "$work/json" || fail "no $text in the JSON file"; done
    for field in bytes count type op density union overlap block ranks aggregators transport time_us_{min,median,max} algbw busbw wire_bytes bound_us bound entropy_bytes input output wrong; do
      grep -q "\"$field\": " "$work/json" || fail "no field $field in the JSON file"
    done
    for options in "--output dense" "--output packed" "--output packed --block 1 -o all -d all" "--output packed --overlap none"; do
      # shellcheck disable=SC2086 # a list of options
      "$allreduce" --ranks 3 --input stream -b 50004 -n 2 -w 1 --density 1,0.1,0 --link 10 $options --out_json_file "$work/json" >"$work/rows" 2>&1 ||
        fail "stream, $options: status $?"
      [[ $(grep -c '"input": "stream"' "$work/json") == $(grep -c '"wrong": 0' "$work/json") ]] || fail "stream, $options: wrong elements"
      good_rows "$(grep -c '"input": "stream"' "$work/json")"
      grep -q "\"output\": \"$(cut -d' ' -f2 <<<"$options")\"" "$work/json" || fail "stream, $options: another output"
    done
    ! "$allreduce" --ranks 2 --output packed >"$work/rows" 2>&1 || fail "a packed output of a dense input was accepted"
    grep -q -- '--output: packed needs --input stream' "$work/rows" || fail "--output: $(cat "$work/rows")"
    ! "$allreduce" --ranks 2 --input stream --bitmap >"$work/rows" 2>&1 || fail "a stream with a bitmap was accepted"
    grep -q -- '--input: stream excludes --bitmap and --dense' "$work/rows" || fail "--input: $(cat "$work/rows")"
    "$allreduce" --ranks 2 -b 64K -n 2 --dense --overlap all --reproducible -c 0 --link 10 --out_json_file "$work/json" >"$work/rows" 2>&1 || fail "dense: status $?"
    grep -q 'bound: wire' "$work/rows" || fail "no bound of the wire"
    for text in '"overlap": "all"' '"wrong": null'; do grep -q "$text" "$work/json" || fail "no $text in the JSON file of what was not checked"; done
    ! "$allreduce" --ranks 2 --overlap some >"$work/rows" 2>&1 || fail "an unknown overlap was taken"
    grep -q 'overlap: some not in {random,all,none}' "$work/rows" || fail "the overlaps are not listed: $(cat "$work/rows")"
    ! "$allreduce" --ranks 2 -d float31 >"$work/rows" 2>&1 || fail "an unknown type was taken"
    grep -q 'float31 is none of: all, float32' "$work/rows" || fail "the types are not listed"
    ;;
  nccl_tests)
    # Command lines of nccl-tests, and programs that read its tables: after the lines with #, the fields of a line are counted.
    for type in float half double; do
      right 4 --ranks 2 -b 1K -e 16K -f 16 -g 1 -t 1 -z 0 -n 3 -w 1 -c 1 -m 1 -p 0 -r 0 -G 0 -C 0 -a 3 -o sum -d $type
      good_rows 2
      [[ $(awk '!/^#/ { print $3, $4, $5 }' "$work/rows" | sort -u) == "$type sum -1" ]] || fail "other names for $type"
      for place in 8:false 12:true; do
        shown=$(awk -v at="${place%:*}" '!/^#/ { print $at }' "$work/rows")
        meant=$(grep -E '"(in_place|busbw)"' "$work/json" | tr -d ' ,' | paste -d ' ' - - | awk -F '[: ]' -v in_place="${place#*:}" '$2 == in_place { printf "%.2f\n", $4 }')
        [[ -n $meant && $shown == "$meant" ]] || fail "field ${place%:*} is $shown, and busbw is $meant"
      done
      grep -qE '^# Out of bounds values : 0 OK$' "$work/rows" || fail "no word about wrong elements"
      mean=$(awk '!/^#/ { sum += $8 + $12; n += 2 } END { printf "%.6f", sum / n }' "$work/rows")
      awk -v mean="$mean" '/^# Avg bus bandwidth    : / { found = $6 } END { exit !(found - mean < 0.011 && mean - found < 0.011) }' "$work/rows" || fail "another average than $mean"
    done
    "$allreduce" --ranks 2 --collective broadcast -b 4K -n 2 -w 0 --link 10 >"$work/rows" 2>&1 || fail "broadcast: status $?"
    [[ $(awk '!/^#/ { print $4, $5, $12 }' "$work/rows") == "none 0 N/A" ]] || fail "a broadcast has a root, no operation and one form"
    refused '2 cannot be: a process is one rank: start more ranks by --ranks, mpirun or srun' -g 2
    refused '4 cannot be: a process is one rank: start more ranks by --ranks, mpirun or srun' -t 4
    refused '1 cannot be: the root of broadcasts and reduces is rank 0' -r 1
    refused '1 cannot be: the time is that of the slowest rank' -a 1
    refused 'int8 is none of: all, float32' -d int8
    refused 'a size of 8.0 EiB needs 48.0 EiB of memory for 2 rank(s) of this host (3 buffers each), and ' -b 8e
    ! NZCL_WORLD_SIZE=1 "$allreduce" -b 8 -e 4E >"$work/rows" 2>&1 || fail "a rank without --ranks took 12 EiB"
    grep -qE 'a size of 4.0 EiB needs 12.0 EiB of memory for 1 rank\(s\) of this host \(3 buffers each\), and [0-9.]+ [MGT]iB are free' "$work/rows" ||
      fail "a rank without --ranks: $(cat "$work/rows")"
    ;;
  collectives)
    for transport in "${transports[@]}"; do
      for collective in broadcast reduce reduce_scatter allgather; do
        right 4 --collective "$collective" --ranks 3 --transport "$transport" -b 1000 -e 100000 -f 100 -n 2 -w 1 --density 1,0.1
        grep -q "\"collective\": \"$collective\"" "$work/json" || fail "the rows are not those of $collective"
      done
    done
    for collective in allreduce broadcast reduce reduce_scatter allgather; do
      for memory in emulated emulated-copied; do
        right 2 --collective "$collective" --ranks 3 --memory "$memory" -b 100000 -n 2 -w 1 --density 1,0.1
      done
    done
    refused 'emulated is for whole tensors' --memory emulated --input stream
    right 8 --collective reduce_scatter --ranks 2 -b 10000 -n 1 -w 0 --density 0.3 -o all -d int32,bfloat16
    refused 'broadcast excludes --bitmap' --collective broadcast --bitmap
    refused 'gossip not in' --collective gossip
    ;;
  gpus)
    # Processes whose GPUs read each other's memory send no blocks, and those that let the host sum do. With the driver in software, they open each
    # other's memory by the handles of CUDA's.
    bytes() { awk -F '[:,]' -v least="$1" -v most="$2" '/"wire_bytes"/ { if ($2 < least || $2 > most) exit 1 }' "$work/json" || fail "bytes on the wire"; }
    for transport in "${transports[@]}"; do
      right 2 --ranks 3 --transport "$transport" --memory emulated -b 1M -n 3 -w 4 --density 1,0.1
      bytes 1 30000
    done
    right 2 --ranks 2 --memory emulated -b 1M -n 3 -w 4 --density 1,0.1 --algorithm push
    bytes 100000 2000000
    if [[ -n $driver ]] && LD_PRELOAD=$driver "$(dirname "$write_bw")/nzcl_info" | grep -A 2 'GPU 0: Fake' | grep -q 'driver for CUDA [0-9.]*$'; then
      LD_PRELOAD=$driver right 2 --ranks 3 --memory cuda -b 1M -n 3 -w 4 --density 1,0.1
      bytes 1 30000
    fi
    ;;
  codes)
    for compressor in adacomp:500 topk:0.01:exact topk:0.02+qsgd:4 qsgd:8; do
      right 1 --compress "$compressor" --ranks 2 -b 100000 -n 2 -w 0
      grep -qF "\"compress\": \"$compressor\"" "$work/json" || fail "the rows are not those of $compressor"
    done
    refused "the ratio of TopK is 7" --compress topk:7
    for format in auto bitmap offsets gaps runs; do
      right 2 --format "$format" --ranks 2 --block 1 -b 100000 -n 2 -w 0 --density 0.5,0.01
    done
    refused 'bits not in' --format bits
    for algorithm in push doubling; do
      right 4 --algorithm "$algorithm" --ranks 3 -b 256 -e 4096 -f 16 -n 2 -w 0 --density 1,0.1
    done
    refused 'gossip not in' --algorithm gossip
    right 4 --hint --ranks 3 -b 256 -e 4096 -f 16 -n 2 -w 0 --density 1,0.1
    [[ $(grep -c '"hint": true' "$work/json") == 8 ]] || fail "the rows do not say that nzcl was told the density"
    refused 'hint: is for allreduces' --hint --collective broadcast
    for wire_type in as_is float16 bfloat16; do
      right 2 --wire_type "$wire_type" --ranks 2 -b 100000 -n 2 -w 0 --density 0.5,0.01
    done
    refused 'float8 not in' --wire_type float8
    ;;
  *) fail "no such case" ;;
esac
