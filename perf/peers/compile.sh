#!/usr/bin/env bash
# Compiles one driver of a peer.
#   compile.sh openmpi|mpich|gloo|openmpi_elements|mpich_elements|gloo_elements|fi_write_bw OUTPUT
set -euo pipefail
driver=$1 output=$2
here=$(dirname "$(readlink -f "$0")")
root=$here/../..
include=(-I "$root" -I "$root/include")
elements=("$here"/{elements_loop,gather_and_sum,streams}.cc "$root/perf/allreduce/problem.cc")
case $driver in
  openmpi | mpich) "mpicc.$driver" -O2 "${include[@]}" -o "$output" "$here/mpi_collectives.c" ;;
  openmpi_elements | mpich_elements)
    "mpicxx.${driver%_elements}" -std=c++20 -O2 "${include[@]}" -o "$output" "$here"/{mpi_elements,sparcml}.cc "${elements[@]}"
    ;;
  gloo) g++ -std=c++20 -O2 "${include[@]}" -o "$output" "$here"/gloo_{collectives,context}.cc -lgloo ;;
  gloo_elements) g++ -std=c++20 -O2 "${include[@]}" -o "$output" "$here"/gloo_{elements,context}.cc "${elements[@]}" -lgloo ;;
  fi_write_bw)
    read -ra flags < <(pkg-config --cflags --libs libfabric)
    g++ -std=c++20 -O2 "${include[@]}" -o "$output" "$here/fi_write_bw.cc" "${flags[@]}"
    ;;
  *) echo "no such driver: $driver" >&2 && exit 2 ;;
esac
