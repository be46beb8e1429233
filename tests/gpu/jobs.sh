#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with GPUs and runs there what takes several GPUs or several processes that work together:
# memory of network libraries, pauses of tags over two GPUs, moves between them, jobs over NCCL, leases. Ends with a
# table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/jobs.sh
#   OUT=FOLDER          where summary.txt and log.txt go; default tests/gpu/out
#   GPU_SECONDS=N       how long the whole may take; default 300
#   GPU_ONLY=WORDS      only the rows whose names have one of these words, by blanks
#   PYTHON=PATH         the interpreter with PyTorch; python3
#   BUILD=FOLDER        a build folder to use and keep; default: a new one
#   GPU_RUN_FAKE=1      rehearses the script on the fake driver of the tests: shows nothing about a GPU
#
# Needs what tests/gpu/run.sh needs, and PyTorch with NCCL. With one GPU the rows that need two are SKIP.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
. tests/support/tap.sh
open_output
trap 'rm -rf "$work"' EXIT
build=${BUILD:-$work/build}
python=${PYTHON:-python3}
deadline=$((SECONDS + ${GPU_SECONDS:-300} * ${patience:-1}))

finish() {
  write_summary jobs.sh "$(c++ --version 2>/dev/null | head -n 1); $("$python" --version 2>&1)" \
    "${GPU_ONLY:+GPU_ONLY='$GPU_ONLY' }" "$failed rows failed"
  [ $failed = 0 ]
  exit
}

# step NAME SECONDS COMMAND...: one row, and below it what was measured.
step() {
  local name=$1 limit=$(($2 * ${patience:-1})) begin=$SECONDS left=$((deadline - SECONDS)) status words
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -le 0 ]; then
    row FAIL "$name" 0 'not run: no time was left'
    return 1
  fi
  timeout -k 5 "$limit" "$@" </dev/null >"$work/step.log" 2>&1
  status=$?
  { printf '\n===== %s: %s\n' "$name" "$*" && cat "$work/step.log"; } >>"$log"
  words=$(counts "$work/step.log")
  case $status in
    0) row PASS "$name" $((SECONDS - begin)) "$words" ;;
    77) row SKIP "$name" $((SECONDS - begin)) "$(grep -a -m 1 '# ' "$work/step.log" | cut -c 1-100)" ;;
    *) row FAIL "$name" $((SECONDS - begin)) "exit $status${words:+; $words}" ;;
  esac
  while read -r line; do rows+=("        $line"); done < <(
    grep -aE '^(not )?ok .*(GB/s|MiB|ms)|^not ok|^# ' "$work/step.log" | cut -c 1-200 | head -n 16)
  [ $status = 0 ] || [ $status = 77 ]
}
build_step() { step "$@"; }

# --- the machine and the build --------------------------------------------------------------------------------------
ask_machine 40000 || finish
command -v swig >/dev/null || take_wheels .gpu/wheels/swig-*.whl
take_headers
take_zlib
options=(-Dpython=enabled -Djava=disabled -Dcsharp=disabled -Dwerror=false)
[ -f "$build/build.ninja" ] || step 'configure' 60 meson setup "$build" "${options[@]}" || finish
mapfile -t targets < <(ninja -C "$build" -t targets all | sed -n 's/: .*//p' | grep -vE '\.p/|\.symbols$' |
  grep -E -e '^(bindings/python/|lib/lib|tests/support/fake_cuda/lib)' \
    -e '^tests/api/(conformance_(comm|foreign|lease)|lease_processes)$')
step 'build' 150 ninja -C "$build" -j "$(nproc)" "${targets[@]}" || finish

export GMM_BACKEND=cuda GMM_TORCH_CACHE=$work/torch PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$build/bindings/python${PYTHONPATH:+:$PYTHONPATH} \
  LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
rehearse=()
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda:$LD_LIBRARY_PATH FAKE_CUDA_DEVICES=2 \
    FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((8 << 30))}
  rehearse=(--rehearse --gib 0.25)
fi

# --- the tests --------------------------------------------------------------------------------------------------------
for path in "$build"/tests/api/{conformance_{comm,foreign,lease},lease_processes}; do
  [ -x "$path" ] && [ -f "$path" ] || continue
  if wanted "${path##*/}"; then step "${path##*/}" 60 "$path"; fi
done
for what in pause move job; do
  wanted "several GPUs: $what" || continue
  step "several GPUs: $what" 120 "$python" tests/gpu/several_gpus_check.py "${rehearse[@]}" $what
done
# It takes the first GPU but for 12 GiB.
if wanted 'leases'; then
  step 'leases' 60 "$python" tests/gpu/lease_check.py ${fake:+--rehearse}
fi
if wanted 'NCCL'; then step 'NCCL' 100 "$python" tests/gpu/nccl_check.py ${fake:+--rehearse}; fi
memory_came_back
finish
