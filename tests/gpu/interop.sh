#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with a GPU and runs there what it does with other libraries: Numba, PyTorch, CuPy, RMM and
# JAX, and between processes. What is right or wrong runs side by side on the one GPU, what is measured
# alone, after it. Ends with a table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/interop.sh
#   OUT=FOLDER          where summary.txt, log.txt and Numba's own logs go; default tests/gpu/out
#   GPU_SECONDS=N   how long the whole may take; default 480
#   GPU_ONLY=WORDS  only the rows whose names have one of these words, by blanks
#   PYTHON=PATH         the interpreter with the libraries; python3
#   BUILD=FOLDER        a build folder to use and keep; default: a new one
#   GPU_RUN_FAKE=1  rehearses the script on the fake driver of the tests: a row with "----" ran to its end, and
#                       shows nothing about a GPU
#
# Needs what tests/gpu/run.sh needs, and the libraries; one that is missing is skipped and said so. .gpu/, which
# tests/gpu/pack.sh fills, brings SWIG, RMM, zlib and, where it was given them, what runs Numba's and RMM's own tests.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
. tests/support/tap.sh
open_output
build=${BUILD:-$work/build}
python=${PYTHON:-python3}
deadline=$((SECONDS + ${GPU_SECONDS:-480} * ${patience:-1}))
most=4 # programs at once
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

# A line below the row.
below() {
  rows+=("        $1")
  echo "${rows[-1]}"
}

# report NAME SECONDS STATUS LIMIT LOG KIND: the row of a command that has ended.
report() {
  local name=$1 seconds=$2 status=$3 limit=$4 file=$5 kind=$6 words result=PASS
  { printf '\n===== %s\n' "$name" && cat "$file"; } >>"$log"
  words=$(counts "$file")
  if [ "$status" = 77 ]; then # as Meson has it
    result=SKIP words="exit 77${words:+; $words}"
  elif [ "$kind $status" = 'example 0' ] && [[ $(tail -n 1 "$file") == skipped:* ]]; then
    result=SKIP words=$(tail -n 1 "$file" | cut -c 10-150)
  elif [ "$status" != 0 ]; then
    result=FAIL
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then words="stopped after $limit s${words:+; $words}"; fi
    words="exit $status${words:+; $words}"
    # No GPU library starts on the fake driver: there only the end of the script counts.
    if [ -n "$fake" ] && [ "$kind" = gpu ] && grep -qE '^1\.\.[0-9]+$' "$file"; then
      result='----'
    fi
  fi
  row "$result" "$name" "$seconds" "$words"
  while read -r line; do below "$line"; done < <(
    [ "$kind" != timed ] || grep -avE '^(1\.\.|not ok|$)' "$file" | head -n 60 | cut -c 1-220
    [ "$result" = PASS ] || [ "$result" = SKIP ] || grep -aE '^not ok|^FAIL|FAILED|[Ee]rror:' "$file" | head -n 8 |
      cut -c 1-250
    [ "$result" != PASS ] || [ "$kind" = timed ] || grep -aE '^ok .*# SKIP' "$file" | head -n 3 | cut -c 1-150
  )
}

# step NAME SECONDS KIND COMMAND...: waits for it; one row.
step() {
  local name=$1 limit=$(($2 * ${patience:-1})) kind=$3 begin=$SECONDS status left=$((deadline - SECONDS))
  shift 3
  wanted "$name" || [ "$kind" = build ] || return 0
  if [ "$left" -lt 5 ]; then
    row FAIL "$name" 0 'not run: no time was left'
    return 1
  fi
  [ "$left" -ge "$limit" ] || limit=$left
  timeout -k 5 "$limit" "$@" </dev/null >"$work/step.log" 2>&1
  status=$?
  report "$name" $((SECONDS - begin)) $status "$limit" "$work/step.log" "$kind"
  return $status
}

build_step() { step "$1" "$2" build "${@:3}"; }

# job NAME SECONDS KIND COMMAND...: the same beside others; the rows come with finish_jobs, in this order.
job_names=()
job() {
  local name=$1 limit=$(($2 * ${patience:-1})) kind=$3 number=${#job_names[@]} left
  shift 3
  wanted "$name" || return 0
  while [ "$(jobs -rp | wc -l)" -ge $most ]; do wait -n; done
  left=$((deadline - SECONDS))
  [ "$left" -ge "$limit" ] || limit=$left
  job_names+=("$name")
  echo "$kind $limit" >"$work/job.$number"
  if [ "$left" -lt 5 ]; then
    echo 'not run: no time was left' >"$work/job.$number.log"
    echo "124 0" >"$work/job.$number.end"
    return
  fi
  (
    begin=$SECONDS
    timeout -k 5 "$limit" "$@" </dev/null >"$work/job.$number.log" 2>&1 &
    trap 'kill $! 2>/dev/null' TERM
    wait $!
    echo "$? $((SECONDS - begin))" >"$work/job.$number.end"
  ) &
}

finish_jobs() {
  local number kind limit status seconds
  wait
  for number in "${!job_names[@]}"; do
    read -r kind limit <"$work/job.$number"
    read -r status seconds <"$work/job.$number.end"
    report "${job_names[number]}" "$seconds" "$status" "$limit" "$work/job.$number.log" "$kind"
  done
}

finish() {
  # shellcheck disable=SC2016 # the quotes are printed
  write_summary interop.sh "$(nproc) cores; $(c++ --version 2>/dev/null | head -n 1)
Python:   ${versions:-not asked}" "${GPU_ONLY:+GPU_ONLY='$GPU_ONLY' }" "$failed rows failed"
  [ $failed = 0 ]
  exit
}

# --- the machine ----------------------------------------------------------------------------------------------
# Managed memory beyond what is free can hang a GPU; Numba's own tests take a tenth of the card.
ask_machine 40000 || finish

# python_with LIBRARY: the interpreter. A rehearsal uses the environments that tests/support/setup.sh makes.
python_with() {
  local environment=interop
  [ "$1" != torch ] || environment=torch
  if [ -n "$fake" ] && [ -x "$root/.deps/$environment/bin/python" ]; then
    echo "$root/.deps/$environment/bin/python"
  else
    echo "$python"
  fi
}

# --- what came along --------------------------------------------------------------------------------------------
wheels=()
command -v swig >/dev/null || wheels+=(.gpu/wheels/swig-*.whl)
"$(python_with rmm)" -c 'import rmm' 2>/dev/null ||
  wheels+=(.gpu/wheels/rmm_cu13-*.whl .gpu/wheels/librmm_cu13-*.whl .gpu/wheels/rapids_logger-*.whl)
take_wheels "${wheels[@]}"
take_zlib
take_headers

# --- the build --------------------------------------------------------------------------------------------------
# A release, as users have it: some of it is measured.
options=(-Dpython=enabled -Djava=disabled -Dcsharp=disabled -Dwerror=false)
if [ ! -f "$build/build.ninja" ]; then step 'configure' 60 build meson setup "$build" "${options[@]}" || finish; fi
# Only what runs below.
mapfile -t targets < <(ninja -C "$build" -t targets all | sed -n 's/: .*//p' | grep -vE '\.p/|\.symbols$' |
  grep -E -e '^(bindings/python/|lib/(preload/)?lib|tests/api/conformance_(comm|ipc|pause|tickets|cached))' \
    -e '^(tests/(bench/gmm-bench|ipc[^/]*|gpu/[^/]*)$|tests/support/fake_(cuda|cudart|nvml)/lib)')
step 'build' 150 build ninja -C "$build" -j "$(nproc)" "${targets[@]}" || finish

unset GMM_BACKEND
export PYTHONPATH=$build/bindings/python${PYTHONPATH:+:$PYTHONPATH} \
  LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONDONTWRITEBYTECODE=1 XLA_PYTHON_CLIENT_PREALLOCATE=false GMM_TORCH_CACHE=$work/torch OUT=$out BUILD=$build
export XDG_CACHE_HOME=$work/cache # of what gmm.rmm compiles
export NUMBA_SUITE=${NUMBA_SUITE:-$root/.gpu/numba-suite} RMM_SUITE=${RMM_SUITE:-$root/.gpu/rmm-suite}
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda:$LD_LIBRARY_PATH \
    FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((64 << 30))}
fi
versions=$("$python" - 2>>"$log" <<'CODE'
import importlib.metadata as metadata, platform
names = {"numba-cuda": "numba-cuda", "torch": "torch", "CuPy": "cupy-cuda13x", "RMM": "rmm-cu13", "JAX": "jax",
         "jaxlib": "jaxlib", "numpy": "numpy", "cuda-bindings": "cuda-bindings"}
have = []
for name, package in names.items():
    try:
        have.append(f"{name} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        have.append(f"no {name}")
print(platform.python_version(), *have, sep=", ")
CODE
)

# first_of PATH...: the first that is there.
first_of() {
  local path
  for path in "$@"; do
    if [ -f "$path" ]; then
      echo "$path"
      return 0
    fi
  done
  return 1
}

# check NAME SECONDS LIBRARY KIND PATH [ARGUMENT...]: a script of this folder, in Python or bash, beside others.
check() {
  local name=$1 limit=$2 library=$3 kind=$4 path
  shift 4
  wanted "$name" || return 0
  if ! path=$(first_of "$1.py" "$1.sh"); then
    row FAIL "$name" 0 "not there: $1.py or .sh"
    return
  fi
  shift
  case $path in
    *.py) job "$name" "$limit" "$kind" "$(python_with "$library")" "$path" "$@" ;;
    *) job "$name" "$limit" "$kind" env PYTHON="$(python_with "$library")" bash "$path" "$@" ;;
  esac
}

# --- right or wrong: side by side -------------------------------------------------------------------------------
suite=()
[ ! -d "$NUMBA_SUITE" ] || suite=("$NUMBA_SUITE")
check 'Numba' 150 numba gpu tests/gpu/numba_check "${suite[@]}"
# Its tests of IPC give a new process 4 seconds to start CUDA: the others do not all start in the same moment.
if [ -z "$fake" ] && [ ${#job_names[@]} != 0 ]; then sleep 10; fi
check 'CuPy' 90 cupy gpu tests/gpu/cupy_check cupy
check 'between processes' 90 torch gpu tests/gpu/ipc_check
check 'RMM' 60 rmm gpu tests/gpu/cupy_check rmm
if [ -d "$RMM_SUITE" ]; then check "RMM's own tests" 150 rmm gpu tests/gpu/rmm_suite "$RMM_SUITE"; fi
check 'JAX' 60 jax gpu tests/gpu/cupy_check jax
for path in "$build"/tests/api/conformance_{comm,ipc,pause,tickets,cached}*; do
  if [ -f "$path" ] && [ -x "$path" ]; then job "interface: ${path##*/}" 120 host env GMM_BACKEND=cuda "$path"; fi
done
for path in examples/python/*.py; do
  name=${path##*/}
  case $name in
    tour.py | replay.py) continue ;; # tests/gpu/run.sh runs the tour
  esac
  library=cupy
  if grep -q 'import torch' "$path" && ! grep -q 'import cupy' "$path"; then library=torch; fi
  # Numba's suite brings what its release lacks with the newest NumPy. A rehearsal is without the fake driver, which the
  # libraries would take for a GPU.
  job "example $name" 60 example env ${suite:+PYTHONPATH="$NUMBA_SUITE:$PYTHONPATH"} \
    ${fake:+LD_LIBRARY_PATH="$build/lib"} "$(python_with "$library")" "$path"
done
finish_jobs

# --- measured: alone --------------------------------------------------------------------------------------------
# It counts the device's memory.
if [ -x "$build/tests/ipc_lifetimes" ]; then
  step 'either side killed' 30 host env GMM_BACKEND=cuda "$build/tests/ipc_lifetimes"
fi
if [ -x "$build/tests/bench/gmm-bench" ]; then
  # A process takes half a second to start CUDA, so there are fewer of them than on the host backend.
  step 'gmm-bench ipc' 60 timed "$build/tests/bench/gmm-bench" ipc --backend cuda --blocks 10 --threads 16 \
    --samples 60 --iterations 2000
  step 'gmm-bench ipc, 64 at once' 60 timed "$build/tests/bench/gmm-bench" ipc --backend cuda --kind vmm \
    --blocks 1 --threads 64 --iterations 10000
fi
# It fills the device for a moment, and times copies.
step 'checkpoint of a process' 120 timed "$(python_with cupy)" tests/gpu/checkpoint_check.py ${fake:+--rehearse}
for name in torch torch_managed; do
  step "PyTorch: $name" 130 gpu env GMM_BACKEND=cuda "$(python_with torch)" tests/bindings/python/run.py \
    "tests/bindings/interop/test_$name.py"
done
step 'training GPT-2 small' 50 timed "$(python_with torch)" tests/gpu/train_gpt2.py ${fake:+--rehearse}
# Its tests compare the device's free memory.
step 'torch_memory_saver upstream' 200 gpu "$(python_with torch)" tests/gpu/memory_saver_upstream.py \
  ${fake:+--without-gpu}

# --- what is left behind ----------------------------------------------------------------------------------------
memory_came_back
finish
