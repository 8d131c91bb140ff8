#!/usr/bin/env bash
# Compiles mpi_example.cc with the named MPI and nzcl's shared library, and runs it with 4 ranks.
#   mpi_example.sh openmpi|mpich SOURCE INCLUDE LIBRARY_DIR OUTPUT_DIR SANITIZE
set -euo pipefail
mpi=$1 source=$2 include=$3 library=$4 output=$5 sanitize=$6
command -v "mpicxx.$mpi" >/dev/null || { echo "mpicxx.$mpi is not installed" && exit 77; }
[[ -z $sanitize ]] || { echo "MPI itself is not built for sanitizers" && exit 77; }
"mpicxx.$mpi" -std=c++20 -O2 "$source" -I"$include" -L"$library" -lnzcl -Wl,-rpath,"$library" -o "$output/mpi_example_$mpi"
options=()
[[ $mpi == mpich ]] || options=(--allow-run-as-root --oversubscribe)
"mpirun.$mpi" "${options[@]}" -n 4 "$output/mpi_example_$mpi" | tee "$output/mpi_example_$mpi.out"
grep -q '^4 ranks: nzcl and MPI agree$' "$output/mpi_example_$mpi.out"
