#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with a GPU and runs there all that needs one: the interface's tests, Python, the tests with
# other libraries, several processes, several GPUs. Tests of right and wrong run side by side; tests that compare the
# device's free memory, fill it or measure times run alone after them. Ends with a table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/run.sh      README.md has the variables that the scripts read. This one reads also
#   AT_ONCE=N        how many programs run side by side; default: half of the cores, at most 8
#   GMM_BACKEND=hip  the tests of the interface, on an AMD GPU
#
# The script needs a C++ compiler, the CUDA toolkit's headers, Python 3 with pytest and NumPy, Meson and ninja. A
# library that is missing is skipped. The script needs no network: tests/gpu/pack.sh fills .gpu/ with SWIG, RMM and the
# tests of RMM and torch_memory_saver.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
gpus=$(smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l) # the interface's tests go over every device
[ "$gpus" -gt 0 ] || gpus=1
open_output $((540 * gpus))
python_option=enabled
if [ "${GMM_BACKEND:-}" = hip ]; then
  GPU_ONLY=${GPU_ONLY:-interface:}
  python_option=disabled
else
  GMM_BACKEND=cuda
fi
most=${AT_ONCE:-$(($(nproc) < 16 ? ($(nproc) + 1) / 2 : 8))}

# --- the machine and the tools that came along ------------------------------------------------------------------
# Managed memory beyond what is free can hang a GPU; Numba's own tests take a tenth of the card.
ask_machine 40000 || finish
wheels=()
command -v swig >/dev/null || wheels+=(.gpu/wheels/swig-*.whl)
"$python" -c 'import rmm' 2>/dev/null ||
  wheels+=(.gpu/wheels/rmm_cu13-*.whl .gpu/wheels/librmm_cu13-*.whl .gpu/wheels/rapids_logger-*.whl)
take_wheels "${wheels[@]}"
take_headers
take_zlib

# --- the build --------------------------------------------------------------------------------------------------
options=(-Dpython="$python_option" -Djava=disabled -Dcsharp=disabled -Dgtest=disabled -Dwerror=false)
[ -z "$fake" ] || options+=(-Doptimization=0)
[ -f "$build/build.ninja" ] || build_step 'configure' 60 meson setup "$build" "${options[@]}" || finish
# Only what runs below.
mapfile -t targets < <(ninja -C "$build" -t targets all | sed -n 's/: .*//p' | grep -vE '\.p/|\.symbols$' |
  grep -E '^(bindings/python/|lib/((preload/)?lib|cli/gmm$)|tests/(api/|support/fake_(cuda|cudart|hip)/lib))')
build_step 'build' 200 ninja -C "$build" -j "$(nproc)" "${targets[@]}" || finish

export GMM_BACKEND GPU_ONLY PYTHONDONTWRITEBYTECODE=1 XLA_PYTHON_CLIENT_PREALLOCATE=false BUILD=$build
export PYTHONPATH=$build/bindings/python${PYTHONPATH:+:$PYTHONPATH} \
  LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export GMM_TORCH_CACHE=$work/torch XDG_CACHE_HOME=$work/cache CUBLAS_WORKSPACE_CONFIG=:4096:8
export RMM_SUITE=${RMM_SUITE:-$root/.gpu/rmm-suite}
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_$GMM_BACKEND:$build/tests/support/fake_cudart:$LD_LIBRARY_PATH \
    FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((64 << 30))} FAKE_CUDA_DEVICES=2
fi

# Numba's release imports a name that the newest NumPy lacks.
with_numba=$PYTHONPATH
if "$python" -c 'import numpy, sys; sys.exit(hasattr(numpy, "row_stack"))' 2>/dev/null; then
  mkdir -p "$work/prelude"
  printf 'import numpy\nnumpy.row_stack = numpy.vstack\n' >"$work/prelude/sitecustomize.py"
  with_numba=$work/prelude:$PYTHONPATH
fi

# with_library NAME: whether Python has it.
with_library() {
  "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)" 2>/dev/null
}

# interop alone|beside LIBRARY MODULE SECONDS: tests/bindings/interop/test_LIBRARY.py.
interop() {
  if with_library "$3"; then
    "$1" "with $2" "$4" env PYTHONPATH="$with_numba" "$python" tests/bindings/python/run.py \
      "tests/bindings/interop/test_$2.py"
  elif wanted "with $2"; then
    row SKIP "with $2" 0 "no module $3"
  fi
}

# preload_library shared|static: unchanged programs under `gmm run`, with the CUDA runtime beside them or linked in.
# test_torch.py and test_torch_pauses.py of tests/bindings/interop have PyTorch.
preload_library() {
  local name="preload library, $1 runtime" file home options=(${fake:+FAKE_CUDA_MEMORY=$((8 << 30))})
  wanted "$name" || return 0
  home=$(command -v nvcc) && home=$(dirname "$(dirname "$(readlink -f "$home")")")
  home=${CUDA_HOME:-${home:-/usr/local/cuda}}
  [ -z "$fake" ] || home=$build/tests/support/fake_cudart
  case $1 in shared) file='libcudart.so.1[0-9]' ;; static) file=libcudart_static.a ;; esac
  file=$(find -L "$home" -name "$file" 2>/dev/null | head -n 1)
  if [ -z "$file" ]; then
    row SKIP "$name" 0 'no libcudart was found; set CUDA_HOME'
    return
  fi
  build_step "$name, a program" 60 cc -std=gnu11 -O1 tests/preload/user.c tests/support/check.c "$file" \
    -Wl,-rpath,"$(dirname "$file")" -lrt -lm -lpthread -ldl -o "$work/user_$1" || return
  alone "$name, without gmm" 90 env "${options[@]}" "$work/user_$1" calls forwarded
  alone "$name, gmm off" 90 env "${options[@]}" "$build/lib/cli/gmm" run --off -- "$work/user_$1" calls forwarded
  alone "$name, gmm on" 90 env "${options[@]}" "$build/lib/cli/gmm" run -- "$work/user_$1" calls taken
  alone "$name, regions" 90 env "${options[@]}" "$build/lib/cli/gmm" run --regions -- "$work/user_$1" regions taken
}

# past_block KIND MISTAKE RESULT WORDS COMMAND...: the command runs past_block.cu. It ends with the result, and prints
# the words: none, where they are empty.
past_block() {
  local kind=$1 mistake=$2 result=$3 words=$4
  shift 4
  # shellcheck disable=SC2016 # expanded by the inner shell
  alone "a write ${mistake/inside/inside of} a $kind block, ${*:-no tool}" 60 bash -c '
    words=$1 result=$2 kind=$3 mistake=$4
    shift 4
    "$@" "$past_block" "$kind" "$mistake" 2>&1 | tee "$past_block.log"
    [ "${PIPESTATUS[0]}" = "$result" ] || exit 1
    if [ -n "$words" ]; then
      grep -q "$words" "$past_block.log"
    else
      ! grep -qE "Invalid|gmm warning" "$past_block.log"
    fi
  ' bash "$words" "$result" "$kind" "$mistake" env "$@"
}

# --- right or wrong: side by side -------------------------------------------------------------------------------
# The longest first.
mapfile -t files < <(printf '%s\n' tests/bindings/python/test_*.py | grep -v test_suspend) # it fills the device
beside 'Python tests' $((240 * gpus)) "$python" tests/bindings/python/run.py "${files[@]}"
interop beside numba_suite numba.cuda 200
interop beside torch torch 200
interop beside kvcached torch 200
interop beside torch_managed torch 200
interop beside numba numba.cuda 200
apart=() found=
for path in "$build"/tests/api/*; do
  name=${path##*/}
  # gmm_hpp_throwing_20 has the cases of gmm_hpp_throwing. Others start the rest.
  case $name in *.p | *.def | *.so | gmm_hpp_throwing | pool_mistakes*) continue ;; esac
  [ -x "$path" ] && [ -f "$path" ] || continue
  found=1
  case $name in
    conformance_foreign | conformance_limits | conformance_pause | conformance_watch) apart+=("$path") ;;
    conformance_ipc) # the longest of all
      for ((i = 0; i < gpus; ++i)); do
        beside "interface: $name$([ "$gpus" = 1 ] || echo " $i")" $((150 * gpus)) env CHECK_DEVICE=$i "$path"
      done
      ;;
    nvtx_ranges*)
      tools=("$build"/tests/api/libnvtx_tool*.so)
      beside "interface: ${name%%__*}" $((150 * gpus)) env NVTX_INJECTION64_PATH="${tools[0]}" "$path"
      ;;
    *) beside "interface: $name" $((150 * gpus)) "$path" ;;
  esac
done
[ -n "$found" ] || ! wanted interface || row FAIL 'interface' 0 'not built: tests/api'
interop beside rmm rmm 150
interop beside cupy cupy 120
interop beside jax jax 90
interop beside cuda_core cuda.core 60
interop beside torch_multiprocessing torch 90
for path in examples/python/*.py; do
  [ "${path##*/}" = tour.py ] || beside "example ${path##*/}" 90 env PYTHONPATH="$with_numba" "$python" "$path"
done
together

# --- alone: the device's free memory, all of the device, times --------------------------------------------------
for path in "${apart[@]}"; do alone "interface: ${path##*/}" $((150 * gpus)) "$path"; done
interop alone torch_pauses torch 300
interop alone memory_saver torch 250
for kind in shared static; do preload_library $kind; done
export past_block=$work/past_block
if [ -z "$fake" ] && wanted 'a write' && command -v compute-sanitizer >/dev/null &&
  build_step 'past_block' 60 nvcc -std=c++20 -lineinfo -Iinclude tests/gpu/past_block.cu -L"$build/lib" -lgmm \
    -o "$past_block"; then
  tool=(compute-sanitizer --error-exitcode 9)
  for kind in device vmm; do
    past_block $kind inside 0 '' "${tool[@]}"
    past_block $kind past 0 'wrote past the end of block' GMM_DEBUG=redzone
    past_block $kind freed 0 'wrote after its free to block' GMM_DEBUG=poison,quarantine
  done
  past_block device past 9 'is 1 bytes after the nearest allocation at .* of size 1,000 bytes' "${tool[@]}"
  past_block device freed 9 'Invalid __global__ write' "${tool[@]}"
else
  row SKIP 'a write past a block' 0 'it needs a GPU, nvcc and compute-sanitizer'
fi
if with_library torch; then
  alone 'training GPT-2 small' 60 "$python" tests/gpu/train_gpt2.py ${fake:+--rehearse}
fi
alone 'Python: a process suspends' 120 "$python" tests/bindings/python/run.py tests/bindings/python/test_suspend.py
interop alone lease gmm 90
interop alone two_gpus gmm 90
interop alone torch_ranks torch 200
memory_came_back
finish
