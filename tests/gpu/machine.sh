# SPDX-License-Identifier: Apache-2.0
# The machine, rows with their time, and what travels along. The scripts of this folder source it, in the root of the
# project.
# shellcheck shell=bash disable=SC2034,SC2154,SC2016 # the variables are the scripts'

# counts FILE: "N passed, N failed, N skipped" of output in the Test Anything Protocol; nothing without any.
counts() {
  awk '
    /^ok .*# SKIP/ { skipped++; next }
    /^ok / { passed++ }
    /^not ok / { failed++ }
    END { if (passed + failed + skipped) printf "%d passed, %d failed, %d skipped", passed, failed, skipped }' "$1"
}

# open_output SECONDS: $out, $log, $summary, $build, $python, $deadline, and $work, which goes at the end.
open_output() {
  root=$PWD
  out=${OUT:-$root/tests/gpu/out}
  mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
  log=$out/log.txt
  summary=$out/summary.txt
  work=$(mktemp -d) || exit 1
  trap 'rm -rf "$work"' EXIT
  build=${BUILD:-$work/build}
  python=${PYTHON:-python3}
  fake=${GPU_RUN_FAKE:-}
  patience=${fake:+8} # a rehearsal may run on a small machine
  deadline=$((SECONDS + ${GPU_SECONDS:-$1} * ${patience:-1}))
  rows=()
  failed=0
  most=2
  : >"$log"
}

# wanted NAME: whether $GPU_ONLY has a word of the name, or no word at all.
wanted() {
  local word
  [ -n "${GPU_ONLY:-}" ] || return 0
  for word in $GPU_ONLY; do [[ $1 != *"$word"* ]] || return 0; done
  return 1
}

# row RESULT NAME SECONDS WORDS
row() {
  rows+=("$(printf '%-4s  %-28s %4s s  %s' "$1" "$2" "$3" "$4")")
  echo "${rows[-1]}"
  [ "$1" != FAIL ] || failed=$((failed + 1))
}

# smi ARGUMENT...: nvidia-smi about the GPUs that the programs see. CUDA_VISIBLE_DEVICES=1 runs a script on one of two.
smi() { nvidia-smi ${CUDA_VISIBLE_DEVICES:+-i "$CUDA_VISIBLE_DEVICES"} "$@"; }

used_memory() { smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ sum += $1 } END { print sum }'; }

# ask_machine MIB: $gpu and $driver, and $used_before for memory_came_back. False when there is no GPU with so much
# memory free.
ask_machine() {
  local free
  if [ -n "$fake" ]; then
    gpu='none: the fake driver of the tests'
    driver='fake'
    return 0
  fi
  if [ "${GMM_BACKEND:-}" = hip ]; then
    gpu=$(rocm-smi --showproductname 2>>"$log" | sed -n 's/.*Card Series:[[:space:]]*//p' | tr '\n' ';')
    driver=ROCm\ $(cat "${ROCM_PATH:-/opt/rocm}/.info/version" 2>>"$log")
    [ -n "$gpu" ] && return 0
    row FAIL 'a GPU answers' 0 'rocm-smi shows none'
    return 1
  fi
  gpu=$(smi --query-gpu=name,memory.total --format=csv,noheader 2>>"$log" | tr '\n' ';')
  driver=$(smi --query-gpu=driver_version --format=csv,noheader 2>>"$log" | head -n 1)
  if [ -z "$gpu" ]; then
    gpu=none
    row FAIL 'a GPU answers' 0 'nvidia-smi shows none'
    return 1
  fi
  free=$(smi --query-gpu=memory.free --format=csv,noheader,nounits | sort -n | head -n 1)
  if [ "$free" -lt "$1" ]; then
    row FAIL 'free GPU memory' 0 "$free MiB; $1 are needed"
    return 1
  fi
  used_before=$(used_memory)
  return 0
}

# within SECONDS LOG COMMAND...: runs it in a session of its own, so that no process of it lives longer than its time
# and holds memory of the device that the next rows measure.
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
  local name=$1 status=$2 words stopped skipped result=PASS
  if [ "$status" = 75 ]; then
    row FAIL "$name" 0 'not run: no time was left'
    return 1
  fi
  { printf '\n===== %s\n' "$name" && cat "$4"; } >>"$log"
  words=$(counts "$4")
  skipped=$(tail -n 3 "$4" | grep -aE '^(skipped:|1\.\.0 # SKIP)' | cut -c 1-100) # the examples; TAP
  if [ "$status" = 77 ] || [ -n "$skipped" ]; then
    result=SKIP words=${skipped:-$(tail -n 1 "$4" | cut -c 1-100)}
  elif [ "$status" != 0 ]; then
    stopped=$(grep -a '^stopped after' "$4")
    result=FAIL words="exit $status${stopped:+; $stopped}${words:+; $words}"
  fi
  row $result "$name" "$3" "$words"
  while read -r line; do
    rows+=("        $line")
    echo "${rows[-1]}"
  done < <(
    [ $result != FAIL ] || grep -aE '^not ok|FAILED|[Ee]rror:' "$4" | head -n 6
    [ $result != PASS ] ||
      grep -aE '^ok .*[0-9] (GB/s|MiB|ms)|^# (step|gmm|torch|hand-over|pause|resume)[: ]' "$4" |
      cut -c 1-160 | head -n 8
  )
  [ $result != FAIL ]
}

# alone NAME SECONDS COMMAND...: one row; succeeds when the command does within its time.
alone() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  wanted "$name" || return 0
  within "$limit" "$work/step.log" "$@"
  report "$name" $? $((SECONDS - begin)) "$work/step.log"
}

# build_step NAME SECONDS COMMAND...: a row in any case.
build_step() { GPU_ONLY='' alone "$@"; }

# beside NAME SECONDS COMMAND...: one row, of a command that runs beside others, at most $most. together() waits for all
# of them and writes their rows.
names=()
beside() {
  local name=$1 limit=$2 number=${#names[@]}
  shift 2
  wanted "$name" || return 0
  names+=("$name")
  while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do wait -n; done
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
    report "${names[number]}" "$status" "$seconds" "$work/$number.log"
  done
  names=()
}

# memory_came_back: the row of what is left behind.
memory_came_back() {
  local used_after
  [ -n "${used_before:-}" ] || return 0
  sleep 1
  used_after=$(used_memory)
  if [ "$used_after" -le $((used_before + 64)) ]; then
    row PASS 'GPU memory came back' 1 "$used_before MiB used before, $used_after after"
  else
    row FAIL 'GPU memory came back' 1 "$used_before MiB used before, $used_after after"
  fi
}

# take_wheels WHEEL...: those that are there, into a folder that Python and PATH find, by the build_step() of the
# script.
take_wheels() {
  local wheel there=()
  for wheel in "$@"; do [ ! -f "$wheel" ] || there+=("$wheel"); done
  [ ${#there[@]} != 0 ] || return 0
  build_step 'wheels that came along' 60 "$python" -m pip install -q --no-index --no-deps --no-cache-dir \
    --target "$work/site" "${there[@]}"
  export PATH=$work/site/bin:$PATH PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
}

# take_zlib: where the compiler finds none. Meson looks for both: the description, and what the compiler finds by
# itself.
take_zlib() {
  if [ ! -d .gpu/zlib ] || echo '#include <zlib.h>' | c++ -xc++ -E - >/dev/null 2>&1; then return 0; fi
  # shellcheck disable=SC2016 # pkg-config's variables
  printf 'prefix=%s\nName: zlib\nDescription: zlib\nVersion: %s\nLibs: -L${prefix} -lz\nCflags: -I${prefix}\n' \
    "$root/.gpu/zlib" \
    "$(sed -n 's/^#define ZLIB_VERSION "\(.*\)"/\1/p' .gpu/zlib/zlib.h)" >"$work/zlib.pc"
  export PKG_CONFIG_PATH=$work${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH} CPATH=$root/.gpu/zlib${CPATH:+:$CPATH} \
    LIBRARY_PATH=$root/.gpu/zlib${LIBRARY_PATH:+:$LIBRARY_PATH}
}

# take_headers: what the machine's Python and drivers lack for the build.
take_headers() { [ ! -d .gpu/include ] || export CPATH=$root/.gpu/include${CPATH:+:$CPATH}; }

# finish: the table, on stdout and in $summary, and the end.
finish() {
  local name=${0##*/}
  {
    if [ -n "$fake" ]; then
      echo '*** REHEARSAL ON THE FAKE DRIVER: NO GPU WAS USED. THIS SAYS NOTHING ABOUT A GPU. ***'
    fi
    echo "gmm tests/gpu/$name"
    echo "GPU:      $gpu"
    echo "driver:   $driver"
    echo "date:     $(date -u '+%Y-%m-%d %H:%M UTC')"
    echo "system:   $(uname -sr); $(nproc) cores; $(c++ --version | head -n 1); $("$python" --version 2>&1)"
    echo "revision: $(git rev-parse --short HEAD 2>/dev/null || echo 'not a checkout')"
    echo "command:  ${fake:+GPU_RUN_FAKE=1 }${GPU_ONLY:+GPU_ONLY='$GPU_ONLY' }tests/gpu/$name"
    echo
    printf '%s\n' "${rows[@]}"
    echo
    echo "$(grep -c '^PASS' < <(printf '%s\n' "${rows[@]}")) passed, $failed failed," \
      "$(grep -c '^SKIP' < <(printf '%s\n' "${rows[@]}")) skipped, $SECONDS s in all"
    if [ -n "$fake" ]; then echo '*** REHEARSAL ON THE FAKE DRIVER: NO GPU WAS USED. ***'; fi
  } | tee "$summary"
  [ "$failed" = 0 ]
  exit
}
