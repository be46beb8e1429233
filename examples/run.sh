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

# example NAME REASON COMMAND...: runs an example, unless there is a reason to skip it. It may also say "skipped:".
example() {
  local name=$1 reason=$2 said=build/examples/said.txt
  shift 2
  if [ -n "$reason" ]; then
    setup_say "$name is skipped: $reason"
    skipped+=("$name")
    return
  fi
  setup_say "$name"
  "$@" | tee "$said"
  if [ "${PIPESTATUS[0]}" != 0 ]; then
    failed+=("$name")
  elif grep -q '^skipped:' "$said"; then
    skipped+=("$name")
  else
    ran+=("$name")
  fi
}

setup_say "looking for compilers, Meson and ninja"
setup_required || give_up "the build cannot start without them"
setup_options
setup_configure build "${setup_options[@]}" || give_up "Meson could not configure build/: see above"
mapfile -t targets < <(setup_targets build)
setup_build build "${targets[@]}" || give_up "the build failed: see above"

python=("env" "PYTHONPATH=build/bindings/python" "$setup_venv/bin/python")
no_python=${setup_skipped[python]:-} no_java=${setup_skipped[java]:-}
example C '' build/examples/tour-c
example C++ '' build/examples/tour-cpp
example Python "$no_python" "${python[@]}" examples/python/tour.py
example Java "$no_java" java -cp build/bindings/java/gmm.jar:build/examples/java/tour.jar Tour
example 'C#' "${setup_skipped[csharp]:-}" env MONO_PATH=build/bindings/csharp mono build/examples/csharp/tour.exe

# The ring: its producer is in Python, its consumers in Python and Java.
ring=()
[ -n "$no_java" ] ||
  ring=(--consumer 'java -cp build/bindings/java/gmm.jar:build/examples/ring/ring.jar RingConsumer')
example ring "$no_python" "${python[@]}" examples/ring/ring.py "${ring[@]}"
example turns "$no_python" "${python[@]}" examples/lease/turns.py
no_vulkan=${setup_skipped[vulkan]:-}
[ -x build/examples/engine/engine ] || no_vulkan=${no_vulkan:-the build found no Vulkan or glslangValidator}
example engine "$no_vulkan" env GMM_STRICT_HOST=1 build/examples/engine/engine build/examples/engine

# With other libraries, where tests/support/setup.sh has made their environments (tests/run.sh does). Each example names
# a library that it lacks.
if [ -z "$no_python${EXAMPLES_SHORT:-}" ] && compgen -G '.deps/*/ready' >/dev/null; then
  example "those with other libraries" '' "${python[@]}" tests/bindings/python/run.py \
    tests/bindings/interop/test_examples.py
fi

printf 'examples/run.sh: ran %s; skipped %s; failed %s\n' "${ran[*]:-none}" "${skipped[*]:-none}" "${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
