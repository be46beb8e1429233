#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds gmm, and runs the tour in C, C++, Python, Java and C#, the ring of frames, programs
# that share a device by leases, one whose weights outlive it, and the engine, which draws by Vulkan. Each runs as soon
# as it is built. It needs no GPU: without one the host backend runs, and the tour says so. The tours are recorded, and
# a page shows their memory.
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

# tour LANGUAGE REASON COMMAND...: an example whose processes write traces.
traces=$(mktemp -d) page=$PWD/build/examples/tours.html # a new configuration may clear build/
trap 'rm -rf "$traces"' EXIT
tour() {
  GMM_TRACE=$traces/$1-%p example "$@"
}

# Makes the page of all tours that ran. The traces of their second processes are smaller, and come last.
show_tours() {
  local files language
  mapfile -t files < <(ls -S "$traces"/*)
  build/lib/cli/gmm trace --view html --output "$page" "${files[@]}" || return
  for language in "${ran[@]}"; do
    grep -qF "\"$traces/$language-" "$page" || { echo "the page lacks the tour in $language" && return 1; }
  done
}

python=("env" "PYTHONPATH=build/bindings/python" "$setup_venv/bin/python")

# build PLACE...: these folders of the source, unless they are built.
build() {
  mapfile -t targets < <(setup_targets build "$@")
  [ ${#targets[@]} = 0 ] || setup_build build "${targets[@]}" || give_up "the build failed: see above"
}

tours_in_c() {
  setup_build build examples/tour-c examples/tour-cpp || give_up "the build failed: see above"
  rm -f "$page"
  tour C '' build/examples/tour-c
  tour C++ '' build/examples/tour-cpp
}

[ -f build/build.ninja ] || cat <<'END'
On a fresh Debian this fetches 280 MB of packages. With 2 processors the tour in C then runs after about a minute, and
all is done after about 3. It takes 2 GB of disk.
END
setup_say "looking for compilers, Meson and ninja"
setup_may_install || setup_together setup_required setup_options setup_vulkan
setup_required || give_up "the build cannot start without them"
if [ ! -f build/build.ninja ]; then # the first tours need no other language
  setup_python || true
  setup_configure build -Ddebug=true -Dwerror=true -Dpython=disabled -Djava=disabled -Dcsharp=disabled \
    "${setup_native[@]}" || give_up "Meson could not configure build/: see above"
  tours_in_c
fi
setup_together setup_options setup_vulkan
setup_options
setup_others vulkan
setup_configure build "${setup_options[@]}" || give_up "Meson could not configure build/: see above"
[ ${#ran[@]}${#failed[@]} != 00 ] || tours_in_c

no_python=${setup_skipped[python]:-} no_java=${setup_skipped[java]:-} no_csharp=${setup_skipped[csharp]:-}
[ -n "$no_python" ] || build bindings/python/
tour Python "$no_python" "${python[@]}" examples/python/tour.py
[ -n "$no_java" ] || build bindings/java/ examples/java/
tour Java "$no_java" java -cp build/bindings/java/gmm.jar:build/examples/java/tour.jar Tour
[ -n "$no_csharp" ] || build bindings/csharp/ examples/csharp/
tour 'C#' "$no_csharp" env MONO_PATH=build/bindings/csharp mono build/examples/csharp/tour.exe
build
example "page of the tours" "${setup_skipped[cli]:-}" show_tours

# The ring: its producer is in Python, its consumers in Python and Java.
ring=()
[ -n "$no_java" ] ||
  ring=(--consumer 'java -cp build/bindings/java/gmm.jar:build/examples/ring/ring.jar RingConsumer')
example ring "$no_python" "${python[@]}" examples/ring/ring.py "${ring[@]}"
example turns "$no_python${setup_skipped[cli]:-}" "${python[@]}" examples/lease/turns.py
example keeper "$no_python${setup_skipped[cli]:-}" "${python[@]}" examples/keeper/engine.py
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
[ ! -f "$page" ] || echo "The tours' memory over time, their pauses, and who held the peak: $page"
[ ${#failed[@]} = 0 ]
