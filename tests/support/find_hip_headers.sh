#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Usage: find_hip_headers.sh DEPS. It prints the folders that have HIP's headers, one a line: ROCm's, Debian's that is
# unpacked in DEPS, and that of Triton, which comes with PyTorch.
for folder in "${ROCM_PATH:-/opt/rocm}/include" "$1"/hip/usr/include \
  "$1"/torch/lib/python3*/site-packages/triton/backends/amd/include; do
  if [ -f "$folder/hip/hip_runtime_api.h" ]; then readlink -f "$folder"; fi
done | sort -u
