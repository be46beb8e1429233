#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the peers of gmm-bench that need more than gmm's own build has: OUT/gmm_bench_NAME.so, for gmm-bench --peers
# OUT. Prints of each whether it is built, or the reason. A peer that cannot be built here is no failure: the list names
# it, and so does gmm-bench.
#
# Usage: tests/bench/peers/build.sh OUT
#   CXX        the compiler; c++
#   CUDA_HOME  the CUDA toolkit; the folder of nvcc, else /usr/local/cuda
#   PYTHON     the interpreter with PyTorch, librmm and torch_memory_saver; python3
#   WHEELS     a folder with the wheels of librmm, rapids-logger and torch-memory-saver, for a Python without them;
#              .gpu/wheels
#   JOBS       how many compilers at a time; 4
set -uo pipefail
[ $# = 1 ] || {
  sed -n '3,14s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 1
rm -rf "$out"/gmm_bench_*.so "$out"/*.log "$out/wheels"
cxx=${CXX:-c++}
python=${PYTHON:-python3}
wheels=${WHEELS:-$(cd "$here/../../.." && pwd)/.gpu/wheels}
flags=(-std=c++20 -O3 -DNDEBUG -fPIC -shared -fvisibility=hidden -Wall -Wextra -Wl,-z,defs)
declare -A missing=()

# start NAME OPTION...: compiles gmm_bench_NAME.cpp beside the others.
start() {
  local name=$1
  shift
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-4}" ]; do wait -n; done
  {
    echo "$cxx ${flags[*]} $here/gmm_bench_$name.cpp -o $out/gmm_bench_$name.so $*"
    # Under another name until it is whole.
    "$cxx" "${flags[@]}" "$here/gmm_bench_$name.cpp" -o "$out/$name.part" "$@" 2>&1 &&
      mv "$out/$name.part" "$out/gmm_bench_$name.so"
  } >"$out/$name.log" &
}

# package NAME WHEEL: the folder of a Python package, without importing it, or that of its unpacked wheel.
package() {
  "$python" - "$1" "$wheels/${2:-$1}-*.whl" "$out/wheels" 2>/dev/null <<'FIND'
import glob, importlib.util, sys, zipfile
name, wheel, folder = sys.argv[1:]
spec = importlib.util.find_spec(name)
found = list(spec.submodule_search_locations or ()) if spec else []
for path in sorted(glob.glob(wheel))[-1:] if not found else []:
    zipfile.ZipFile(path).extractall(folder)
    found = [f"{folder}/{name}"]
sys.exit(print(found[0]) if found else 1)
FIND
}

# --- the CUDA toolkit -------------------------------------------------------------------------------------------
nvcc=$(command -v nvcc) && nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
cuda=${CUDA_HOME:-${nvcc:-/usr/local/cuda}}
nvidia=$(package nvidia) # wheels bring a runtime too
folders=("$cuda/lib64" "$cuda/targets/x86_64-linux/lib" "$cuda/lib"
  ${nvidia:+"$nvidia/cu13/lib" "$nvidia/cuda_runtime/lib"})
runtime=() cudart=
for folder in "${folders[@]}"; do
  for major in 13 12; do
    [ -n "$cudart" ] || [ ! -e "$folder/libcudart.so.$major" ] || cudart=$folder/libcudart.so.$major
  done
  # Better each peer with its own inside; all of them meet in the device's primary context.
  if [ ${#runtime[@]} = 0 ] && [ -f "$folder/libcudart_static.a" ]; then
    runtime=("-L$folder" -lcudart_static -ldl -lrt -lpthread)
  elif [ ${#runtime[@]} = 0 ] && [ -f "$folder/libcudart.so" ]; then
    runtime=("-L$folder" -lcudart "-Wl,-rpath,$folder" -ldl -lrt -lpthread)
  fi
done
if [ ! -f "$cuda/include/cuda_runtime_api.h" ] || [ ${#runtime[@]} = 0 ]; then
  for name in cuda pytorch rmm; do
    missing[$name]="no cuda_runtime_api.h in $cuda/include, or no libcudart_static.a or libcudart.so beside it;"
    missing[$name]+=" install the CUDA toolkit (cuda-cudart-dev) or set CUDA_HOME"
  done
else
  start cuda -isystem "$cuda/include" "${runtime[@]}"

  if torch=$(package torch) && [ -f "$torch/lib/libc10_cuda.so" ]; then
    # The library's strings are those of one of libstdc++'s two ABIs, and callers must have the same.
    abi=0
    if grep -aq 'NSt7__cxx1112basic_string' "$torch/lib/libc10.so"; then abi=1; fi
    start pytorch "-D_GLIBCXX_USE_CXX11_ABI=$abi" -isystem "$torch/include" -isystem "$cuda/include" "-L$torch/lib" \
      "-Wl,-rpath,$torch/lib" -lc10_cuda -lc10 "${runtime[@]}"
  else
    missing[pytorch]="$python has no module torch with CUDA (lib/libc10_cuda.so)"
  fi

  # Its wheel brings the parts of CCCL that its headers need.
  if rmm=$(package librmm librmm_cu13) && logger=$(package rapids_logger); then
    start rmm -isystem "$rmm/include" -isystem "$rmm/include/rapids" -isystem "$logger/include" \
      -isystem "$cuda/include" "-L$rmm/lib64" "-L$logger/lib64" "-Wl,-rpath,$rmm/lib64:$logger/lib64" \
      -lrmm -lrapids_logger "${runtime[@]}"
  else
    missing[rmm]="neither $python has librmm and rapids_logger, nor are their wheels (librmm-cu13, rapids-logger)"
    missing[rmm]+=" in $wheels"
  fi
fi

# torch_memory_saver's library for the CUDA runtime that is here. PyTorch itself takes no part.
hook=torch_memory_saver_hook_mode_torch_cu${cudart##*.}.abi3.so
if [ -z "$cudart" ]; then
  missing[tms]="no libcudart.so.13 or .12 in ${folders[*]}; install the CUDA toolkit's runtime (cuda-cudart)"
elif saver=$(package torch_memory_saver) && saver=$(dirname "$saver")/$hook && [ -f "$saver" ]; then
  start tms "-DGMM_BENCH_TMS=\"$saver\"" "-DGMM_BENCH_CUDART=\"$cudart\"" -ldl
else
  missing[tms]="neither $python has torch_memory_saver with $hook, nor is its wheel (torch-memory-saver) in $wheels"
fi

wait
for name in cuda pytorch rmm tms; do
  if [ -f "$out/gmm_bench_$name.so" ]; then
    echo "built:   gmm_bench_$name.so"
  else
    why=$(grep -s -m 1 -E 'error|cannot|undefined' "$out/$name.log" | cut -c 1-200)
    echo "MISSING: gmm_bench_$name.so: ${missing[$name]:-it does not compile: $why; see $out/$name.log}"
  fi
done
