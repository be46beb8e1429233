#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the peers of gmm-bench that need more than gmm's own build has: OUT/gmm_bench_NAME.so, for gmm-bench --peers
# OUT. Prints of each whether it is built, or the reason. A peer that cannot be built here is no failure: the list names
# it, and so does gmm-bench.
#
# Usage: tests/bench/peers/build.sh OUT
#   CXX        the compiler; c++
#   CUDA_HOME  the CUDA toolkit; where nvcc is, else /usr/local/cuda
#   PYTHON     the interpreter with PyTorch, CuPy and, if it is there, gmm; python3
#   WHEELS     a folder with the wheels of librmm, rapids-logger and torch-memory-saver, for a Python without them;
#              .gpu/wheels
#   JOBS       how many compilers at a time; 4
set -uo pipefail
[ $# = 1 ] || {
  sed -n '3,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 1
rm -f "$out"/gmm_bench_*.so "$out"/*.log
cxx=${CXX:-c++}
python=$(command -v "${PYTHON:-python3}")
wheels=${WHEELS:-$root/.gpu/wheels}
jobs=${JOBS:-4}
flags=(-std=c++20 -O3 -DNDEBUG -fPIC -shared -fvisibility=hidden -Wall -Wextra -Wl,-z,defs)
declare -A missing=()
started=()

# start NAME OPTION...: compiles gmm_bench_NAME.cpp beside the others.
start() {
  local name=$1
  shift
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  started+=("$name")
  {
    echo "$cxx ${flags[*]} $here/gmm_bench_$name.cpp -o $out/gmm_bench_$name.so $*"
    # Under another name until it is whole.
    "$cxx" "${flags[@]}" "$here/gmm_bench_$name.cpp" -o "$out/$name.part" "$@" 2>&1 &&
      mv "$out/$name.part" "$out/gmm_bench_$name.so"
  } >"$out/$name.log" &
}

# The folder of a Python package, without importing it.
package() {
  [ -n "$python" ] && "$python" - "$1" 2>/dev/null <<'FIND'
import importlib.util, sys
found = importlib.util.find_spec(sys.argv[1])
places = list(found.submodule_search_locations or ()) if found else ()
if not places:
    sys.exit(1)
print(places[0])
FIND
}

# --- the CUDA toolkit -------------------------------------------------------------------------------------------
cuda=${CUDA_HOME:-}
if [ -z "$cuda" ] && command -v nvcc >/dev/null; then
  cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
cuda=${cuda:-/usr/local/cuda}
runtime=()
for folder in "$cuda/lib64" "$cuda/targets/x86_64-linux/lib" "$cuda/lib"; do
  # Better each peer with its own inside; all of them meet in the device's primary context.
  if [ -f "$folder/libcudart_static.a" ]; then
    runtime=("-L$folder" -lcudart_static)
  elif [ -f "$folder/libcudart.so" ]; then
    runtime=("-L$folder" -lcudart "-Wl,-rpath,$folder")
  else
    continue
  fi
  break
done
no_toolkit=
if [ ! -f "$cuda/include/cuda_runtime_api.h" ]; then
  no_toolkit="no cuda_runtime_api.h in $cuda/include; install the CUDA toolkit or set CUDA_HOME"
elif [ ${#runtime[@]} = 0 ]; then
  no_toolkit="neither libcudart_static.a nor libcudart.so under $cuda; install the CUDA toolkit's runtime"
  no_toolkit+=" (cuda-cudart-dev)"
fi
runtime+=(-ldl -lrt -lpthread)

if [ -n "$no_toolkit" ]; then
  missing[cuda]=$no_toolkit
else
  start cuda -isystem "$cuda/include" "${runtime[@]}"
fi

# --- PyTorch ----------------------------------------------------------------------------------------------------
if [ -n "$no_toolkit" ]; then
  missing[pytorch]=$no_toolkit
elif ! torch=$(package torch); then
  missing[pytorch]="${python:-python3} has no module torch"
elif [ ! -f "$torch/lib/libc10_cuda.so" ]; then
  missing[pytorch]="$torch is a PyTorch without CUDA: no lib/libc10_cuda.so"
else
  # The library's strings are those of one of libstdc++'s two ABIs, and callers must have the same.
  abi=0
  if grep -aq 'NSt7__cxx1112basic_string' "$torch/lib/libc10.so"; then abi=1; fi
  start pytorch "-D_GLIBCXX_USE_CXX11_ABI=$abi" -isystem "$torch/include" -isystem "$cuda/include" "-L$torch/lib" \
    "-Wl,-rpath,$torch/lib" -lc10_cuda -lc10 "${runtime[@]}"
fi

# --- RMM --------------------------------------------------------------------------------------------------------
if [ -n "$no_toolkit" ]; then
  missing[rmm]=$no_toolkit
else
  rmm=$(package librmm) && logger=$(package rapids_logger) || {
    rmm=
    if ls "$wheels"/librmm_cu13-*.whl "$wheels"/rapids_logger-*.whl >/dev/null 2>&1; then
      rm -rf "$out/rmm"
      for wheel in "$wheels"/librmm_cu13-*.whl "$wheels"/rapids_logger-*.whl; do
        "$python" -m zipfile -e "$wheel" "$out/rmm"
      done
      rmm=$out/rmm/librmm logger=$out/rmm/rapids_logger
    else
      missing[rmm]="neither ${python:-python3} has librmm and rapids_logger, nor are their wheels"
      missing[rmm]+=" (librmm-cu13, rapids-logger) in $wheels"
    fi
  }
  # Its wheel brings the parts of CCCL that its headers need.
  [ -z "$rmm" ] || start rmm -isystem "$rmm/include" -isystem "$rmm/include/rapids" -isystem "$logger/include" \
    -isystem "$cuda/include" "-L$rmm/lib64" "-L$logger/lib64" "-Wl,-rpath,$rmm/lib64:$logger/lib64" \
    -lrmm -lrapids_logger \
    "${runtime[@]}"
fi

# --- torch_memory_saver -----------------------------------------------------------------------------------------
# Its library for the CUDA runtime that is here: PyTorch itself takes no part.
cudart=
nvidia=$(package nvidia) # wheels bring a runtime too
for folder in "$cuda/lib64" "$cuda/targets/x86_64-linux/lib" "$cuda/lib" \
  ${nvidia:+"$nvidia/cu13/lib" "$nvidia/cuda_runtime/lib"}; do
  for major in 13 12; do
    [ -n "$cudart" ] || [ ! -e "$folder/libcudart.so.$major" ] || cudart=$folder/libcudart.so.$major
  done
done
saver=
if [ -n "$cudart" ]; then
  name=torch_memory_saver_hook_mode_torch_cu${cudart##*.}.abi3.so
  if found=$(package torch_memory_saver) && [ -f "$found/../$name" ]; then
    saver=$(cd "$found/.." && pwd)/$name
  elif ls "$wheels"/torch_memory_saver-*.whl >/dev/null 2>&1; then
    rm -rf "$out/tms"
    "$python" -m zipfile -e "$(ls "$wheels"/torch_memory_saver-*.whl | tail -n 1)" "$out/tms"
    [ ! -f "$out/tms/$name" ] || saver=$out/tms/$name
  fi
fi
if [ -z "$cudart" ]; then
  missing[tms]="no libcudart.so.13 or .12 under $cuda or in ${python:-python3}'s packages;"
  missing[tms]+=" install the CUDA toolkit's runtime (cuda-cudart)"
elif [ -z "$saver" ]; then
  missing[tms]="neither ${python:-python3} has torch_memory_saver with $name, nor is its wheel"
  missing[tms]+=" (torch-memory-saver) in $wheels"
else
  start tms "-DGMM_BENCH_TMS=\"$saver\"" "-DGMM_BENCH_CUDART=\"$cudart\"" -ldl
fi

wait
for name in "${started[@]}"; do
  [ -f "$out/gmm_bench_$name.so" ] && continue
  why=$(grep -m 1 -E 'error|cannot|undefined' "$out/$name.log" | cut -c 1-200)
  missing[$name]="it does not compile: $why; see $out/$name.log"
done
for name in cuda pytorch rmm tms; do
  if [ -f "$out/gmm_bench_$name.so" ]; then
    echo "built:   gmm_bench_$name.so"
  else
    echo "MISSING: gmm_bench_$name.so: ${missing[$name]}"
  fi
done
