#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: find_cuda_headers.sh DEPS. It prints the folders that have a cuda.h, one a line: the CUDA Toolkit's, and those
# of the packages nvidia-cuda-runtime of PyPI that are unpacked in DEPS.
nvcc=$(command -v nvcc) && nvcc=$(readlink -f "$nvcc")
for folder in "${CUDA_HOME:+$CUDA_HOME/include}" "${CUDA_PATH:+$CUDA_PATH/include}" \
  "${nvcc:+${nvcc%/bin/nvcc}/include}" /usr/local/cuda/include "$1"/cuda*/nvidia/*/include; do
  if [ -f "${folder:-none}/cuda.h" ]; then readlink -f "$folder"; fi
done | sort -u
