#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: find_headers.sh WANTED DEPS. It prints the folder that has cuda.h, or nothing.
# If WANTED is not empty, only that folder counts. DEPS is where the wheel nvidia-cuda-runtime of PyPI may be unpacked.
if [ -n "$1" ]; then
  if [ -f "$1/cuda.h" ]; then echo "$1"; fi
  exit 0
fi
nvcc=$(command -v nvcc) && nvcc=$(readlink -f "$nvcc")
for folder in "${CUDA_HOME:+$CUDA_HOME/include}" "${CUDA_PATH:+$CUDA_PATH/include}" \
  "${nvcc:+${nvcc%/bin/nvcc}/include}" /usr/local/cuda/include "$2"/cuda/nvidia/*/include; do
  if [ -n "$folder" ] && [ -f "$folder/cuda.h" ]; then
    echo "$folder"
    exit 0
  fi
done
