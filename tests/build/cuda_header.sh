#!/usr/bin/env bash
# nzcl's own declarations of the CUDA driver's functions are those of NVIDIA's header, where that is installed. Usage: cuda_header.sh BUILD SOURCE
set -euo pipefail
source=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/build/lib.sh
. "$here/lib.sh"

header=''
for folder in "${CUDA_HOME:-/usr/local/cuda}/include" /usr/local/cuda-*/include /usr/include; do
  if [[ -f $folder/cuda.h ]]; then header=$folder && break; fi
done
if [[ -z $header ]]; then
  echo "SKIPPED: cuda.h is not installed (NVIDIA's CUDA toolkit)"
  exit 77
fi
c++ -std=c++20 -fsyntax-only -I "$source" -isystem "$header" "$here/cuda_header.cc" || fail "cuda_api.h is not what $header/cuda.h says"
