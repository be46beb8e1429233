#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm, gmm-bench and the peers on a machine with a GPU, and measures there what needs one. Ends with one line a
# figure.
#
# Usage: tests/gpu/bench.sh
#   OUT=FOLDER            where summary.txt, log.txt and cuda.json go; default tests/gpu/out
#   TRACES=FOLDER         the traces of the replay; default tests/bench/traces
#   GPU_SECONDS=N     how long the whole may take; default 520
#   BENCH_ONLY=NAMES  only the commands whose names begin so, by commas: pause
#   GPU_RUN_FAKE=1    rehearses the script on the fake driver of the tests: its times say nothing about a GPU
#   BUILD=FOLDER          a build folder to use and keep; default: a new one
#   PYTHON=PATH           the interpreter with PyTorch; python3
#
# Needs what tests/gpu/run.sh needs, zlib and PyTorch. .gpu/, which tests/gpu/pack.sh fills, brings RMM,
# torch_memory_saver, mimalloc, UMF and zlib. The summary names each peer that is missing.
# `ROWS=cuda.json tests/bench/figures.sh cuda` takes the figures over: measured.jsonl, READMEs and pictures.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
root=$PWD
out=${OUT:-$root/tests/gpu/out}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
log=$out/log.txt
work=$(mktemp -d) || exit 1
build=${BUILD:-$work/build}
peers=$work/peers
fake=${GPU_RUN_FAKE:-}
patience=${fake:+8} # a rehearsal may run on a small machine
deadline=$((SECONDS + ${GPU_SECONDS:-520} * ${patience:-1}))
python=${PYTHON:-python3}
: >"$log"
exec > >(tee "$out/summary.txt") 2>&1
tee=$!
trap 'rm -rf "$work"; exec >&- 2>&-; wait $tee' EXIT # the summary is whole when this ends

# step NAME SECONDS COMMAND...: runs into the log; one line on how it went.
step() {
  local name=$1 limit=$(($2 * ${patience:-1})) begin=$SECONDS status left=$((deadline - SECONDS))
  shift 2
  if [ "$left" -lt "$limit" ]; then limit=$left; fi
  if [ "$limit" -lt 2 ]; then
    echo "FAILED  $name: not run, no time was left"
    return 1
  fi
  printf '\n===== %s: %s\n' "$name" "$*" >>"$log"
  timeout -k 5 "$limit" "$@" </dev/null >"$work/step.log" 2>&1
  status=$?
  cat "$work/step.log" >>"$log"
  if [ $status = 0 ]; then
    echo "done    $name  $((SECONDS - begin)) s"
    return 0
  fi
  echo "FAILED  $name  $((SECONDS - begin)) s, exit $status"
  grep -aE '[Ee]rror|Failure|cannot|not found' "$work/step.log" | head -n 5 | cut -c 1-200 | sed 's/^/        /'
  return 1
}

fake_notice() {
  if [ -n "$fake" ]; then
    echo '*** REHEARSAL ON THE FAKE DRIVER: NO GPU WAS USED. THESE TIMES SAY NOTHING ABOUT A GPU. ***'
  fi
}

fake_notice
if [ -n "$fake" ]; then
  gpu='none: the fake driver of the tests'
else
  gpu=$(smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>>"$log" | head -n 1)
  if [ -z "$gpu" ]; then
    echo 'FAILED  nvidia-smi shows no GPU'
    exit 1
  fi
fi
echo "gmm tests/gpu/bench.sh"
echo "GPU:      $gpu"
echo "system:   $(uname -sr), $(nproc) cores; $(c++ --version 2>/dev/null | head -n 1); $($python --version 2>&1)"
echo "date:     $(date -u '+%Y-%m-%d %H:%M UTC')"
echo "revision: $(git rev-parse --short HEAD 2>/dev/null || echo 'not a checkout')"
echo

# --- what came along --------------------------------------------------------------------------------------------
if [ -d .gpu/lib ]; then export LD_LIBRARY_PATH=$root/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
take_zlib

# --- the build --------------------------------------------------------------------------------------------------
# A release, as users have it.
options=(-Dpython=disabled -Djava=disabled -Dcsharp=disabled -Dwerror=false)
[ -f "$build/build.ninja" ] || step 'configure' 60 meson setup "$build" "${options[@]}" || exit 1
JOBS=$(nproc) step 'peers' 150 tests/bench/peers/build.sh "$peers" &
building=$!
targets=(tests/bench/gmm-bench)
[ -z "$fake" ] || targets+=(tests/support/fake_cuda/libcuda.so.1)
# Not by step, whose file the peers' build is writing.
if timeout -k 5 $((200 * ${patience:-1})) ninja -C "$build" -j "$(nproc)" "${targets[@]}" </dev/null \
  >"$work/build.log" 2>&1; then
  echo 'done    build'
else
  echo 'FAILED  build'
  grep -aE 'error|FAILED' "$work/build.log" | head -n 10
  wait $building
  cat "$work/build.log" >>"$log"
  exit 1
fi
wait $building
cat "$work/build.log" >>"$log"
grep -aE '^(built|MISSING|warning):' "$work/step.log"

# --- the runs ---------------------------------------------------------------------------------------------------
export GMM_BACKEND=cuda
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((64 << 30))} # the traces want more than the fake has by itself
fi
echo
# What is paused with its contents needs 56 GiB of host memory, and a virtual machine may get memory only as it is used.
if [ -z "$fake" ] && [[ ${BENCH_ONLY:-pause} == *pause* ]]; then
  step 'host memory' 45 "$python" tests/gpu/grow_memory.py 72 40 && cat "$work/step.log"
fi
left=$((deadline - SECONDS - 30))
"$python" tests/bench/figures.py run --backend cuda --bench "$build/tests/bench/gmm-bench" --peers "$peers" \
  -o "$out/cuda.json" ${TRACES:+--traces "$TRACES"} \
  --seconds "$left" --patience "${patience:-1}" ${fake:+--quick} ${BENCH_ONLY:+--only "$BENCH_ONLY"} 2>>"$log"
status=$?
echo
echo "$SECONDS s in all"
fake_notice
exit $status
