# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder ask of the machine, and what they take along: read by them, in the root of the
# project. shellcheck shell=bash shellcheck disable=SC2034,SC2154 # the variables are the scripts': out, log, work,
# fake, python

# open_output: $out, $log, $summary and $work, which goes at the end.
open_output() {
  root=$PWD
  out=${OUT:-$root/tests/gpu/out}
  mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
  log=$out/log.txt
  summary=$out/summary.txt
  work=$(mktemp -d) || exit 1
  fake=${GPU_RUN_FAKE:-}
  patience=${fake:+8} # a rehearsal may run on a small machine
  rows=()
  failed=0
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

# memory_came_back: the row of what is left behind.
memory_came_back() {
  local used_after
  [ -z "$fake" ] || return 0
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

# write_summary NAME SYSTEM COMMAND LAST: the table, on stdout and in $summary. SYSTEM: lines about the machine's tools.
write_summary() {
  {
    if [ -n "$fake" ]; then
      echo '*** REHEARSAL ON THE FAKE DRIVER: NO GPU WAS USED. THIS SAYS NOTHING ABOUT A GPU. ***'
    fi
    echo "gmm tests/gpu/$1"
    echo "GPU:      $gpu"
    echo "driver:   $driver"
    echo "date:     $(date -u '+%Y-%m-%d %H:%M UTC')"
    echo "system:   $(uname -sr); $2"
    echo "revision: $(git rev-parse --short HEAD 2>/dev/null || echo 'not a checkout')"
    echo "command:  ${fake:+GPU_RUN_FAKE=1 }$3tests/gpu/$1"
    echo
    printf '%s\n' "${rows[@]}"
    echo
    echo "$4, $SECONDS s in all"
    if [ -n "$fake" ]; then echo '*** REHEARSAL ON THE FAKE DRIVER: NO GPU WAS USED. ***'; fi
  } | tee "$summary"
}
