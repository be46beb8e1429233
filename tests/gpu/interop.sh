#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The rows of tests/gpu/run.sh with other libraries: Numba, PyTorch, CuPy, RMM, JAX, cuda.core, and the examples.
GPU_ONLY=${GPU_ONLY:-with example engines GPT-2} exec "$(dirname "${BASH_SOURCE[0]}")/run.sh"
