#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm, gmm-bench and the peers on a machine with a GPU, and measures there what needs one. Ends with one line a
# figure.
#
# Usage: tests/gpu/bench.sh      README.md has the variables that the scripts read. This one reads also
#   TRACES=FOLDER     the traces of the replay; default tests/bench/traces
#   BENCH_ONLY=NAMES  only the commands whose names begin so, by commas: pause
# It writes cuda.json beside the summary.
#
# Needs what tests/gpu/run.sh needs, zlib and PyTorch. .gpu/, which tests/gpu/pack.sh fills, brings RMM,
# torch_memory_saver, mimalloc, UMF and zlib. The summary names each peer that is missing.
# `ROWS=cuda.json tests/bench/figures.sh cuda` takes the figures over: measured.jsonl, READMEs and pictures.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
open_output 520
peers=$work/peers
ask_machine 2048 || finish

# --- what came along --------------------------------------------------------------------------------------------
if [ -d .gpu/lib ]; then export LD_LIBRARY_PATH=$root/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
take_zlib

# --- the build --------------------------------------------------------------------------------------------------
# A release, as users have it.
options=(-Dpython=disabled -Djava=disabled -Dcsharp=disabled -Dwerror=false)
[ -f "$build/build.ninja" ] || build_step 'configure' 60 meson setup "$build" "${options[@]}" || finish
targets=(tests/bench/gmm-bench)
[ -z "$fake" ] || targets+=(tests/support/fake_cuda/libcuda.so.1)
beside 'peers' 150 env JOBS="$(nproc)" tests/bench/peers/build.sh "$peers"
beside 'build' 200 ninja -C "$build" -j "$(nproc)" "${targets[@]}"
together
mapfile -t -O "${#rows[@]}" rows < <(grep -aE '^(built|MISSING|warning):' "$work/0.log")
[ -x "$build/tests/bench/gmm-bench" ] || finish

# --- the runs ---------------------------------------------------------------------------------------------------
export GMM_BACKEND=cuda
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((64 << 30))} # the traces want more than the fake has by itself
fi
# A pause with contents needs 56 GiB of host memory, and a virtual machine may get memory only as it is used.
if [ -z "$fake" ] && [[ ${BENCH_ONLY:-pause} == *pause* ]]; then
  alone 'host memory' 45 "$python" tests/gpu/grow_memory.py 72 40
fi
begin=$SECONDS
"$python" tests/bench/figures.py run --backend cuda --bench "$build/tests/bench/gmm-bench" --peers "$peers" \
  -o "$out/cuda.json" ${TRACES:+--traces "$TRACES"} \
  --seconds $((deadline - SECONDS - 30)) --patience "${patience:-1}" ${fake:+--quick} \
  ${BENCH_ONLY:+--only "$BENCH_ONLY"} 2>>"$log" | tee "$work/figures.txt"
[ "${PIPESTATUS[0]}" = 0 ] && result=PASS || result=FAIL
mapfile -t -O "${#rows[@]}" rows <"$work/figures.txt"
row "$result" 'figures' $((SECONDS - begin)) "$out/cuda.json"
finish
