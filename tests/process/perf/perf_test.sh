#!/usr/bin/env bash
# Runs the microbenchmarks as people call them, and checks what they print but not how fast they are.
#   perf_test.sh CASE WRITE_BW WRITE_LAT ALLREDUCE_PERF
set -euo pipefail
case_name=$1 write_bw=$2 write_lat=$3 allreduce=$4
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
    both "$write_bw" 1 --transport shm -e -n 10
    grep -q 'shm has nothing to sleep on' "$work/client" || fail "-e was not refused"
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
  allreduce)
    # Without --link the speed of memory is measured first. In a sanitizer build on a CPU with large caches that takes long,
    # so it is done only once.
    for transport in "${transports[@]}"; do
      "$allreduce" --ranks 3 --transport "$transport" -b 1K -e 256K -f 16 -n 3 -w 1 --density 1,0.1 --link 10 >"$work/rows" 2>&1 || fail "status $?"
      [[ $(grep -cE '^ +[0-9]+ .* 0 .* 0$' "$work/rows") == 6 ]] || fail "not six rows without a wrong element"
    done
    "$allreduce" --ranks 2 -b 10001 -n 2 -w 0 -d all -o all --density 0.3 --overlap none --link 10 >"$work/rows" 2>&1 || fail "types: status $?"
    [[ $(grep -cE '^ +[0-9]+ .* 0$' "$work/rows") == 28 ]] || fail "not 28 rows"
    "$allreduce" --ranks 3 --aggregators 2 -b 100K -n 2 --density 0.1 --bitmap --out_json_file "$work/json" >"$work/rows" 2>&1 || fail "aggregators: status $?"
    for text in '"aggregators": 2' '"wrong": 0' '"bound": "memory"'; do grep -q "$text" "$work/json" || fail "no $text in the JSON file"; done
    "$allreduce" --ranks 2 --algorithm switch -b 100K -n 2 --density 0.1 -d int32,float32 --link 10 >"$work/rows" 2>&1 || fail "switch: status $?"
    [[ $(grep -cE '^ +[0-9]+ .* 0 .* 0$' "$work/rows") == 2 ]] || fail "not two rows through the switch exchange without a wrong element"
    for field in bytes count type op density union overlap block ranks aggregators transport time_us_{min,median,max} algbw busbw wire_bytes bound_us bound entropy_bytes input output wrong; do
      grep -q "\"$field\": " "$work/json" || fail "no field $field in the JSON file"
    done
    for options in "--output dense" "--output packed" "--output packed --block 1 -o all -d all" "--output packed --overlap none"; do
      # shellcheck disable=SC2086 # a list of options
      "$allreduce" --ranks 3 --input stream -b 50004 -n 2 -w 1 --density 1,0.1,0 --link 10 $options --out_json_file "$work/json" >"$work/rows" 2>&1 ||
        fail "stream, $options: status $?"
      [[ $(grep -c '"input": "stream"' "$work/json") == $(grep -c '"wrong": 0' "$work/json") ]] || fail "stream, $options: wrong elements"
      [[ $(grep -cE '^ +[0-9]+ .* 0$' "$work/rows") == $(grep -c '"input": "stream"' "$work/json") ]] || fail "stream, $options: not one row for each result"
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
  collectives)
    for transport in "${transports[@]}"; do
      for collective in broadcast reduce reduce_scatter allgather; do
        right 4 --collective "$collective" --ranks 3 --transport "$transport" -b 1000 -e 100000 -f 100 -n 2 -w 1 --density 1,0.1
        grep -q "\"collective\": \"$collective\"" "$work/json" || fail "the rows are not those of $collective"
      done
    done
    right 8 --collective reduce_scatter --ranks 2 -b 10000 -n 1 -w 0 --density 0.3 -o all -d int32,bfloat16
    refused 'broadcast excludes --bitmap' --collective broadcast --bitmap
    refused 'gossip not in' --collective gossip
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
