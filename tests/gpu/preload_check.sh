#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The preload library on a GPU, with the real CUDA runtime, shared and linked in. A line PASS, FAIL or SKIP for each
# program; exit code 1 when one failed. tests/bindings/interop/test_preload.py has PyTorch.
#
# Usage: tests/gpu/preload_check.sh BUILD
#   BUILD               a build folder that has lib/preload/libgmm_preload.so
#   CUDA_HOME=FOLDER    the toolkit; default: beside nvcc, or /usr/local/cuda
#   GPU_RUN_FAKE=1  rehearses on the fake driver and runtime of the tests: shows nothing about a GPU
set -uo pipefail
[ $# -eq 1 ] || { sed -n '3,10s/^# \?//p' "$0"; exit 2; }
build=$(cd "$1" && pwd) || exit 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
. tests/support/tap.sh
library=$build/lib/preload/libgmm_preload.so
if [ ! -e "$library" ]; then
  echo "FAIL $library: no such file; build it: ninja -C $build lib/preload/libgmm_preload.so"
  exit 1
fi
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
failed=0

if [ -n "${GPU_RUN_FAKE:-}" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda:$build/tests/support/fake_cudart FAKE_CUDA_MEMORY=$((8 << 30))
  shared=$build/tests/support/fake_cudart/libcudart.so.13
  static=$build/tests/support/fake_cudart/libcudart_static.a
else
  unset FAKE_CUDA_MEMORY
  nvcc=$(command -v nvcc || true)
  home=${CUDA_HOME:-${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")}}
  home=${home:-/usr/local/cuda}
  shared=$(find -L "$home" -name 'libcudart.so.1[0-9]' 2>/dev/null | head -n 1)
  static=$(find -L "$home" -name libcudart_static.a 2>/dev/null | head -n 1)
  [ -z "$shared" ] || export LD_LIBRARY_PATH=$(dirname "$shared")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# with_gmm VALUE COMMAND...: as `gmm run` starts it, or by hand where the command was not built.
with_gmm() {
  local value=$1
  shift
  if [ -x "$build/lib/cli/gmm" ]; then
    case $value in regions) set -- --regions -- "$@" ;; off) set -- --off -- "$@" ;; *) set -- -- "$@" ;; esac
    "$build/lib/cli/gmm" run "$@"
  else
    LD_PRELOAD=$library GMM_PRELOAD=$value "$@"
  fi
}

# check NAME COMMAND...
check() {
  local name=$1 begin=$SECONDS code words
  shift
  timeout 120 "$@" >"$work/out" 2>&1
  code=$?
  words=$(counts "$work/out")
  if [ $code -eq 0 ]; then
    echo "PASS $name: $words, $((SECONDS - begin)) s"
  else
    echo "FAIL $name: $words, exit code $code, $((SECONDS - begin)) s"
    grep -v '^ok ' "$work/out" | tail -n 40 | sed 's/^/  | /'
    failed=1
  fi
}
export -f with_gmm
export build library

build_user() { # NAME SOURCE LIBRARIES...
  local name=$1 source=$2
  shift 2
  ${CC:-cc} -std=gnu11 -O1 "$source" tests/support/check.c "$@" -lpthread -ldl -o "$work/$name" 2>"$work/out" && return
  echo "FAIL $name does not build"
  sed 's/^/  | /' "$work/out"
  failed=1
  return 1
}

for kind in shared static; do
  file=${!kind}
  if [ -z "$file" ]; then
    echo "SKIP $kind runtime: no libcudart was found; set CUDA_HOME"
    continue
  fi
  more=()
  [ $kind = shared ] || more=(-lrt -lm)
  build_user "user_$kind" tests/preload/user.c "$file" "${more[@]}" || continue
  check "$kind runtime, without gmm" "$work/user_$kind" calls forwarded
  check "$kind runtime, gmm off" bash -c 'with_gmm off "$@"' - "$work/user_$kind" calls forwarded
  check "$kind runtime, gmm on" bash -c 'with_gmm on "$@"' - "$work/user_$kind" calls taken
  check "$kind runtime, regions" bash -c 'with_gmm regions "$@"' - "$work/user_$kind" regions taken
done

exit $failed
