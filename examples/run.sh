#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds gmm, and runs the tour in C, C++, Python, Java and C#, the ring of frames, programs
# that share a device by leases, and the engine, which draws by Vulkan. It needs no GPU: without one the host backend
# runs, and the tour says so.
#
# Usage: examples/run.sh
#
# EXAMPLES_SHORT=1 leaves out the examples with other libraries: tests/run.sh --sanitize runs this script twice, and the
# second run has all.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. tests/support/setup.sh

ran=()
skipped=()
failed=()

give_up() {
  echo "examples/run.sh stops: $*" >&2
  exit 1
}

# tour LANGUAGE COMMAND...
tour() {
  local language=$1
  shift
  setup_say "the tour in $language"
  if "$@"; then ran+=("$language"); else failed+=("$language"); fi
}

skip() { # LANGUAGE REASON
  setup_say "the tour in $1 is skipped: $2"
  skipped+=("$1")
}

setup_say "looking for compilers, Meson and ninja"
setup_required || give_up "the build cannot start without them"
setup_options
setup_configure build "${setup_options[@]}" || give_up "Meson could not configure build/: see above"
mapfile -t targets < <(setup_targets build)
setup_build build "${targets[@]}" || give_up "the build failed: see above"

tour C build/examples/tour-c
tour C++ build/examples/tour-cpp

if [ -n "${setup_skipped[python]:-}" ]; then
  skip Python "${setup_skipped[python]}"
else
  PYTHONPATH=build/bindings/python tour Python "$setup_venv/bin/python" examples/python/tour.py
fi
if [ -n "${setup_skipped[java]:-}" ]; then
  skip Java "${setup_skipped[java]}"
else
  tour Java java -cp build/bindings/java/gmm.jar:build/examples/java/tour.jar Tour
fi
if [ -n "${setup_skipped[csharp]:-}" ]; then
  skip 'C#' "${setup_skipped[csharp]}"
else
  MONO_PATH=build/bindings/csharp tour 'C#' mono build/examples/csharp/tour.exe
fi

# The ring: its producer is in Python, its consumers in Python and Java.
if [ -z "${setup_skipped[python]:-}" ]; then
  ring=()
  [ -n "${setup_skipped[java]:-}" ] ||
    ring=(--consumer 'java -cp build/bindings/java/gmm.jar:build/examples/ring/ring.jar RingConsumer')
  setup_say 'the ring of frames'
  if PYTHONPATH=build/bindings/python "$setup_venv/bin/python" examples/ring/ring.py "${ring[@]}"; then
    ran+=(ring)
  else
    failed+=(ring)
  fi
else
  skipped+=(ring)
fi

# Processes that use a device one after the other.
if [ -z "${setup_skipped[python]:-}" ]; then
  setup_say 'leases'
  if PYTHONPATH=build/bindings/python "$setup_venv/bin/python" examples/lease/turns.py; then
    ran+=(turns)
  else
    failed+=(turns)
  fi
else
  skipped+=(turns)
fi

# An engine that draws by Vulkan, also on a CPU.
if [ -n "${setup_skipped[vulkan]:-}" ] || [ ! -x build/examples/engine/engine ]; then
  setup_say "the engine is skipped: ${setup_skipped[vulkan]:-the build found no Vulkan or glslangValidator}"
  skipped+=(engine)
else
  setup_say 'the engine'
  if build/examples/engine/engine build/examples/engine | tee build/examples/engine/log.txt &&
    [ "${PIPESTATUS[0]}" = 0 ]; then
    if grep -q '^skipped:' build/examples/engine/log.txt; then skipped+=(engine); else ran+=(engine); fi
  else
    failed+=(engine)
  fi
fi

# With other libraries, where tests/support/setup.sh has made their environments (tests/run.sh does). Each example names
# a library that it lacks.
if [ -z "${setup_skipped[python]:-}${EXAMPLES_SHORT:-}" ] && compgen -G '.deps/*/ready' >/dev/null; then
  setup_say "the examples with other libraries"
  if PYTHONPATH=build/bindings/python "$setup_venv/bin/python" tests/bindings/python/run.py \
    tests/bindings/interop/test_examples.py; then
    ran+=("those with other libraries")
  else
    failed+=("those with other libraries")
  fi
fi

printf 'examples/run.sh: ran %s; skipped %s; failed %s\n' "${ran[*]:-none}" "${skipped[*]:-none}" "${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
