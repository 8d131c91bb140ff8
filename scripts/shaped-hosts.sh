# shellcheck shell=bash
# Network namespaces that stand for hosts on one switch, with links of a given rate each way. Sourced, never run.
#
# Everything lives in namespaces of its own, named PREFIX-switch and PREFIX-0, PREFIX-1, ...; host i has 10.88.0.(i+1). Processes of a host
# share memory, and those of different hosts do not: a process that sleeps keeps an IPC namespace for each host.

host_address() { echo "10.88.0.$(($1 + 1))"; }

add_namespace() { # NAME
  ip netns add "$1" || {
    echo "error: no network namespace can be made here; it takes root (or CAP_SYS_ADMIN), also in a container" >&2
    return 1
  }
}

# gbps_of RATE: prints the number of Gb/s of a rate as tc spells it, such as 250mbit
gbps_of() {
  local unit
  case $1 in
    *gbit) unit=1 ;;
    *mbit) unit=1e-3 ;;
    *kbit) unit=1e-6 ;;
    *) echo "error: the rate $1 is not a number of gbit, mbit or kbit" >&2 && return 1 ;;
  esac
  awk "BEGIN { printf \"%g\", ${1%?bit} * $unit }"
}

# make_hosts PREFIX COUNT RATE: RATE as tc spells it, such as 1gbit. Ranks that are started afterwards are told of the rate, because the devices
# say that of an unshaped link.
make_hosts() {
  local prefix=$1 count=$2 rate=$3 i end
  NZCL_LINK_GBPS=$(gbps_of "$rate") || return
  export NZCL_LINK_GBPS
  add_namespace "$prefix-switch"
  ip -n "$prefix-switch" link add bridge type bridge
  ip -n "$prefix-switch" link set bridge up
  for ((i = 0; i < count; i++)); do
    add_namespace "$prefix-$i"
    ip -n "$prefix-switch" link add "port$i" type veth peer name eth0 netns "$prefix-$i"
    ip -n "$prefix-switch" link set "port$i" master bridge up
    ip -n "$prefix-$i" link set lo up
    ip -n "$prefix-$i" addr add "$(host_address "$i")/24" dev eth0
    ip -n "$prefix-$i" link set eth0 up
    set_congestion_control "$prefix-$i"
    ip netns exec "$prefix-$i" unshare --ipc sleep infinity &
    for end in "$prefix-switch port$i" "$prefix-$i eth0"; do
      # shellcheck disable=SC2086 # two words
      shape $end "$rate"
    done
  done
}

# make_lone_host PREFIX: makes one host that has no link
make_lone_host() {
  add_namespace "$1-0"
  ip -n "$1-0" link set lo up
  set_congestion_control "$1-0"
}

# set_congestion_control NAMESPACE: chooses what hosts of a cluster run, whatever the default of this machine is: cubic, or reno where a
# namespace may not choose cubic. A default of BBR would slow TCP down and make it unsteady, because BBR paces every connection by an
# estimate of its own, on loopback too (perf/results/tuning.md).
set_congestion_control() {
  local name
  for name in cubic reno; do
    # shellcheck disable=SC2016 # for the inner shell
    if ip netns exec "$1" sh -c 'echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control' "$name" 2>/dev/null; then return; fi
  done
}

# congestion_control PREFIX: prints what its hosts run
congestion_control() { ip netns exec "$1-0" cat /proc/sys/net/ipv4/tcp_congestion_control; }

# shape NAMESPACE INTERFACE RATE: limits what leaves by the interface
shape() {
  tc -n "$1" qdisc add dev "$2" root handle 1: htb default 1
  tc -n "$1" class add dev "$2" parent 1: classid 1:1 htb rate "$3" ceil "$3" quantum 60000
}

# keeper_of NAMESPACE: prints the process that keeps its IPC namespace, or nothing if it has none of its own
keeper_of() {
  local pid
  for pid in $(ip netns pids "$1"); do
    [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") != 'sleep infinity ' ]] || { echo "$pid" && return; }
  done
}

# in_host PREFIX I COMMAND...: runs it in host i, which has a host name of its own because Open MPI tells hosts apart by their names
in_host() {
  local name=$1-$2 keeper enter=()
  shift 2
  keeper=$(keeper_of "$name")
  [[ -z $keeper ]] || enter=(nsenter "--ipc=/proc/$keeper/ns/ipc")
  # shellcheck disable=SC2016 # for the inner shell
  ip netns exec "$name" "${enter[@]}" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$name" "$@"
}

# measure_stream PREFIX: prints iperf3's JSON about one TCP stream from host 0 to host 1
measure_stream() {
  in_host "$1" 1 iperf3 --server --one-off >/dev/null &
  sleep 0.5
  in_host "$1" 0 iperf3 --client "$(host_address 1)" --time 2 --omit 1 --json
  wait $!
}

remove_hosts() { # PREFIX
  local name
  unset NZCL_LINK_GBPS
  while read -r name _; do
    [[ $name == "$1"-* ]] || continue
    ip netns pids "$name" | xargs --no-run-if-empty kill || true # what a script that was ended has left there
    ip netns del "$name"
  done < <(ip netns list)
}
