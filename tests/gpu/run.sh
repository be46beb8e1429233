#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with a GPU and runs there what needs one. Ends with a table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/run.sh
#   OUT=FOLDER          where summary.txt and log.txt go; default tests/gpu/out
#   GPU_SECONDS=N   how long the whole may take; default 540 for each GPU
#   GPU_ONLY=WORDS  only the rows whose names have one of these words, by blanks
#   AT_ONCE=N       how many programs of the interface run at once; default 2, and one more a GPU
#   BUILD=FOLDER        a build folder to use and keep; default: a new one
#   GPU_RUN_FAKE=1  rehearses the script on the fake driver of the tests: shows nothing about a GPU
#
# The script needs a C++ compiler, the CUDA toolkit's headers, Python 3 with pytest and numpy, Meson and ninja. It needs
# no network: tests/gpu/pack.sh fills .gpu/ with what such machines lack.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
. tests/support/tap.sh
open_output
trap 'rm -rf "$work"' EXIT
build=${BUILD:-$work/build}
python=python3
gpus=$(smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l) # the interface's tests go over every device
[ "$gpus" -gt 0 ] || gpus=1
deadline=$((SECONDS + ${GPU_SECONDS:-$((540 * gpus))} * ${patience:-1}))

# within SECONDS LOG COMMAND...: runs it in a session of its own, so that nothing of it lives longer than its time. What
# lived on would hold memory of the device, and the next rows measure that.
within() {
  local limit=$(($1 * ${patience:-1})) log_of=$2 left=$((deadline - SECONDS)) session status
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  [ "$limit" -gt 0 ] || return 75
  setsid timeout -k 5 "$limit" "$@" </dev/null >"$log_of" 2>&1 &
  session=$!
  wait "$session"
  status=$?
  if [ $status = 124 ] || [ $status = 137 ]; then echo "stopped after $limit s" >>"$log_of"; fi
  pkill -KILL -s "$session"
  return $status
}

# report NAME STATUS SECONDS LOG: the row of what within() ran; succeeds when the command did.
report() {
  local name=$1 status=$2 words stopped
  if [ "$status" = 75 ]; then
    row FAIL "$name" 0 "not run: no time was left"
    return 1
  fi
  words=$(counts "$4")
  cat "$4" >>"$log"
  if [ "$status" = 0 ]; then
    row PASS "$name" "$3" "$words"
    return 0
  fi
  stopped=$(grep -a '^stopped after' "$4")
  row FAIL "$name" "$3" "exit $status${stopped:+; $stopped}${words:+; $words}"
  grep -aE '^not ok|FAILED|[Ee]rror|Failure' "$4" | head -n 5 | cut -c 1-200 | sed 's/^/        /'
  return 1
}

# step NAME SECONDS COMMAND...: one row; succeeds when the command does within its time.
step() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  wanted "$name" || case $name in configure | build | *'came along' | 'GoogleTest from'*) ;; *) return 0 ;; esac
  printf '\n===== %s: %s\n' "$name" "$*" >>"$log"
  within "$limit" "$work/step.log" "$@"
  report "$name" $? $((SECONDS - begin)) "$work/step.log"
}

build_step() { step "$@"; }

finish() {
  write_summary run.sh "$(c++ --version 2>/dev/null | head -n 1); $(python3 --version 2>&1)" \
    "${GPU_ONLY:+GPU_ONLY='$GPU_ONLY' }" \
    "$((${#rows[@]} - failed)) of ${#rows[@]} rows passed"
  [ $failed = 0 ]
  exit
}

# --- the machine ----------------------------------------------------------------------------------------------
# Managed memory beyond what is free can hang a GPU: nothing here takes over 1 GiB, and nothing starts with less than 4
# free.
ask_machine 4096 || finish

# --- the tools that came along --------------------------------------------------------------------------------
command -v swig >/dev/null || take_wheels .gpu/wheels/swig-*.whl
if [ -d .gpu/googletest ] && ! echo '#include <gtest/gtest.h>' | c++ -std=c++20 -xc++ -E - >/dev/null 2>&1; then
  mkdir -p "$work/gtest"
  step 'GoogleTest from its source' 120 bash -ec '
    for name in gtest-all gtest_main; do
      c++ -std=c++20 -O1 -I.gpu/googletest/include -I.gpu/googletest -c .gpu/googletest/src/$name.cc -o "$0/$name.o" &
    done
    wait
    ar rcs "$0/libgtest.a" "$0/gtest-all.o"
    ar rcs "$0/libgtest_main.a" "$0/gtest_main.o"' "$work/gtest"
  # Meson finds it as the compiler does.
  export CPLUS_INCLUDE_PATH=$root/.gpu/googletest/include LIBRARY_PATH=$work/gtest
fi
take_headers
take_zlib # gmm-bench reads compressed traces
for tool in c++ meson ninja python3 swig; do
  command -v $tool >/dev/null || row FAIL "the tool $tool" 0 'not found'
done

# --- the build --------------------------------------------------------------------------------------------------
options=(-Ddebug=true -Dpython=enabled -Djava=disabled -Dcsharp=disabled)
[ -z "$fake" ] || options+=(-Doptimization=0)
if [ ! -f "$build/build.ninja" ]; then step 'configure' 60 meson setup "$build" "${options[@]}" || finish; fi
# Only what runs below.
mapfile -t targets < <(ninja -C "$build" -t targets all | sed -n 's/: .*//p' | grep -vE '\.p/|\.symbols$' |
  grep -E -e '^(bindings/python/|lib/preload/lib|tests/api/|examples/tour-c$|tests/unit/cuda_backend_test$)' \
    -e '^tests/(support/fake_cuda/lib|(pause_faults|ipc_lifetimes|bench/gmm-bench)$)')
step 'build' 200 ninja -C "$build" -j "$(nproc)" "${targets[@]}" || finish

export GMM_BACKEND=cuda
if [ -n "$fake" ]; then
  export LD_LIBRARY_PATH=$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export FAKE_CUDA_MEMORY=${FAKE_CUDA_MEMORY:-$((64 << 30))} # the traces want more than the fake has by itself
  export FAKE_CUDA_DEVICES=${FAKE_CUDA_DEVICES:-2}
fi

# program NAME SECONDS PATH ARGUMENT...: a row also when the build does not have it.
program() {
  local name=$1 limit=$2 path=$3
  shift 3
  if [ -x "$path" ]; then
    step "$name" "$limit" "$path" "$@"
  else
    row FAIL "$name" 0 "not built: ${path#"$build"/}"
  fi
}

# --- the tests --------------------------------------------------------------------------------------------------
program 'backend suite' 90 "$build/tests/unit/cuda_backend_test" --gtest_color=no
# beside NAME SECONDS COMMAND...: a row of together(), which waits for all of them.
names=()
beside() {
  local name=$1 limit=$2 number=${#names[@]}
  shift 2
  wanted "$name" || return 0
  names+=("$name")
  while [ "$(jobs -rp | wc -l)" -ge "${AT_ONCE:-$((2 + gpus))}" ]; do wait -n; done
  (
    begin=$SECONDS
    within "$limit" "$work/$number.log" "$@"
    echo "$? $((SECONDS - begin))" >"$work/$number.end"
  ) &
}

together() {
  local number status seconds
  wait
  for number in "${!names[@]}"; do
    read -r status seconds <"$work/$number.end"
    printf '\n===== %s\n' "${names[number]}" >>"$log"
    report "${names[number]}" "$status" "$seconds" "$work/$number.log"
  done
}

python_path=$build/bindings/python${PYTHONPATH:+:$PYTHONPATH}
# Several at once: their own counts are what they check. What fills the device, or counts what is free on it, comes
# after them.
alone=() rest=() found=
for path in "$build"/tests/api/*; do
  name=${path##*/}
  case $name in *.p | *.def | gmm_hpp_throwing) continue ;; esac # the cases of the last are in gmm_hpp_throwing_20
  [ -x "$path" ] || continue
  found=1
  case $name in
    conformance_foreign | conformance_limits | conformance_pause | conformance_watch) alone+=("$path") ;;
    conformance_ipc) # the longest of all
      for ((i = 0; i < gpus; ++i)); do
        beside "interface: $name$([ "$gpus" = 1 ] || echo " $i")" $((150 * gpus)) env CHECK_DEVICE=$i "$path"
      done
      ;;
    conformance_ipc* | gmm_hpp*) beside "interface: $name" $((150 * gpus)) "$path" ;;
    *) rest+=("$path") ;;
  esac
done
[ -n "$found" ] || ! wanted interface || row FAIL 'interface' 0 'not built: tests/api'
for path in "${rest[@]}"; do beside "interface: ${path##*/}" $((150 * gpus)) "$path"; done
wait
for path in "${alone[@]}"; do AT_ONCE=1 beside "interface: ${path##*/}" $((150 * gpus)) "$path"; done
together
# Faults of pause and resume that a device survives; a part of it fills the device from a second process.
program 'pause faults' 60 "$build/tests/pause_faults"

traces=("$root"/tests/bench/traces/streams_mixed.trace.gz)
program 'tour in C' 60 "$build/examples/tour-c" "${traces[@]}"
if [ -f examples/python/tour.py ]; then
  step 'tour in Python' 90 env PYTHONPATH="$python_path" python3 examples/python/tour.py "${traces[@]}"
else
  row FAIL 'tour in Python' 0 'not there: examples/python/tour.py'
fi
# Many of its tests start processes, which wait for each other in the driver: alone, it takes a third of the time.
if [ ! -f tests/bindings/python/run.py ]; then
  row FAIL 'Python tests' 0 'not there: tests/bindings/python/run.py'
elif wanted 'Python tests' &&
  step 'Python tests' $((180 * gpus)) env PYTHONPATH="$python_path" \
    ${fake:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$build/tests/support/fake_cudart"} python3 tests/bindings/python/run.py &&
  ! grep -aqE '^ok .*\[.*cuda' "$work/step.log"; then
  row FAIL 'Python tests on CUDA' 0 'the CUDA backend did not open in Python'
fi

# A process takes longer to start CUDA the more GPUs there are.
step 'sharing between processes' $((100 * gpus)) env WITHOUT_INTERFACE=1 IPC_AT_ONCE=$((64 / gpus)) \
  tests/gpu/ipc_check.sh "$build"

# The drop-ins need PyTorch, and no fake driver is enough for it. Each measures what is free on the first device that it
# sees, so a second GPU takes every other one.
if [ -z "$fake" ] && python3 -c 'import torch' 2>/dev/null; then
  names=()
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  drop_in() {
    local lane=$((${#names[@]} % (gpus < 2 ? 1 : 2)))
    [ $lane != 0 ] || wait
    AT_ONCE=2 beside "$1" 150 env CUDA_VISIBLE_DEVICES="${visible[lane]:-$lane}" "${@:2}"
  }
  check() {
    drop_in "PyTorch: $1" env PYTHONPATH="$python_path" \
      LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" python3 "tests/gpu/$1.py"
  }
  check memory_saver_check
  drop_in 'preload library' tests/gpu/preload_check.sh "$build"
  check colocated_loop
  check vllm_check
  together
fi

# --- what is left behind ----------------------------------------------------------------------------------------
memory_came_back
finish
