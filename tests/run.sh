#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm and runs all its tests. Ends with one line: N passed, N failed, N skipped.
#
# Usage: tests/run.sh [--sanitize] [TEST...]
#   --sanitize  all that CI runs: tests/README.md has the list
#   TEST        only these tests of Meson, and only what they need is built
#
# Installs missing packages first (tests/support/setup.sh). SETUP_VERSIONS=oldest runs the tests "python with ..." with
# the oldest versions of the other libraries. TEST_IN_ROOM=1 leaves out of the release build what a clean room runs in
# one, and the sanitizers here.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

sanitize=
only=()
for word in "$@"; do
  case $word in
    --sanitize) sanitize=1 ;;
    -*)
      sed -n '3,11s/^# \{0,1\}//p' "$0" >&2
      exit 2
      ;;
    *) only+=("$word") ;;
  esac
done

. tests/support/setup.sh

[ -n "$sanitize" ] || export TEST_LINT=${TEST_LINT:-changed}

# Many tests wait for another process or a clock, so more of them run than there are processors.
processes=$((($(nproc) * 3 + 1) / 2))
summary=() # results and files of results, for tests/support/summary.py
phases=()  # where the time went

# phase WORDS: begins a phase, whose time is measured.
phase() {
  local now cpu
  now=${EPOCHREALTIME/,/.}
  times >"$setup_deps/times"
  cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, t, /[ms]/); sum += t[1] * 60 + t[2] } print sum }' \
    "$setup_deps/times")
  if [ -n "${phase_words:-}" ]; then
    phases+=(--phase "$(awk "BEGIN { print $now - $phase_began \":\" $cpu - $phase_cpu }"):$phase_words")
  fi
  phase_words=$1 phase_began=$now phase_cpu=$cpu
}

finish() {
  phase ''
  setup_say "results"
  python3 tests/support/summary.py "${phases[@]}" "${summary[@]}"
  exit $?
}

give_up() {
  echo "$*" >&2
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}

phase "installing"
[ -f build/build.ninja ] || [ ${#only[@]} != 0 ] || cat <<'END'
The first run takes about 10 minutes with 2 processors, and 15 GB of disk, most of it for other libraries from PyPI.
END
setup_say "looking for compilers, Meson and ninja"
tools=(man:man-db make:make cmake:cmake clang:clang clang-format:clang-format clang-tidy:clang-tidy)
[ -z "$sanitize" ] || tools+=(dh:debhelper debootstrap:debootstrap chromium-headless-shell:chromium-headless-shell
  x86_64-w64-mingw32-g++:g++-mingw-w64-x86-64-posix aarch64-linux-gnu-g++:g++-aarch64-linux-gnu
  qemu-aarch64:qemu-user doxygen:doxygen)
setup_tools() {
  local tool
  for tool in "${tools[@]}"; do
    setup_needs "command -v ${tool%%:*}" "${tool#*:}" || echo "   without ${tool%%:*}: $setup_reason"
  done
}
setup_python_modules=(pytest numpy mypy prometheus_client)
setup_together setup_required setup_tools setup_gtest setup_mimalloc setup_options 'setup_others vulkan opengl mpi'
setup_required || give_up "The tests cannot run without them."
setup_tools
# Beside the rest, as unpacking takes a processor for a minute.
[ -z "$sanitize" ] || { setup_quiet=1 setup_debian || echo "   without a clean Debian: $setup_reason"; } &
[ -z "$sanitize" ] || setup_oldest_cuda_header || echo "   without cuda.h of CUDA 12.0: $setup_reason"
[ -z "$sanitize" ] || setup_arm64 || echo "   without a Python of arm64: $setup_reason"
setup_wheels || echo "   without the python wheel: $setup_reason"
setup_gtest || summary+=(--skipped "the unit tests in C++: $setup_reason")
setup_peers || echo "   without mimalloc or UMF: $setup_reason"
setup_options
setup_others cuda_headers hip_headers vulkan opengl mpi
[ -n "${setup_skipped[csharp]:-}" ] || setup_dotnet || echo "   without a .NET runtime: $setup_reason"
wait
[ ${#only[@]} != 0 ] || setup_environments ${sanitize:+setup_site} ||
  echo "   without PyTorch, Numba, CuPy, JAX and dpctl: $setup_reason"
for name in "${!setup_skipped[@]}"; do summary+=(--skipped "$name: ${setup_skipped[$name]}"); done

# test_in FOLDER WORDS MESON_TEST_OPTION...
test_in() {
  local folder=$1 words=$2 log=results-${#summary[@]} chosen ran
  shift 2
  phase "testing in $folder/"
  setup_say "testing in $folder/ ($words)"
  rm -f "$folder/meson-logs/$log.json"
  meson test -C "$folder" --print-errorlogs --timeout-multiplier 4 --num-processes "$processes" --logbase "$log" "$@"
  summary+=("$folder/meson-logs/$log.json")
  # Meson may end early and call that a success.
  chosen=$(meson test -C "$folder" --list --no-rebuild "$@" 2>/dev/null | grep -c ' / ')
  ran=$(wc -l <"$folder/meson-logs/$log.json")
  [ "$ran" = "$chosen" ] || summary+=(--failed "$folder/ ($words): only $ran of $chosen tests ran")
}

# begin_behind NAME COMMAND...: starts the command in the background, as tests leave processors idle while they wait.
declare -A behind=()
begin_behind() {
  local name=$1
  shift
  setup_quiet=1 "$@" >"$setup_deps/behind-$name.log" 2>&1 &
  behind[$name]=$!
}

# end_behind NAME WORDS: waits for it, prints its output and returns its result. Its processor seconds count here.
end_behind() {
  local result
  phase "$2: the rest"
  setup_say "$2"
  wait "${behind[$1]}"
  result=$?
  cat "$setup_deps/behind-$1.log"
  return $result
}

# test_behind NAME FOLDER WORDS MESON_TEST_OPTION...: tests the folder that the job has built.
test_behind() {
  local name=$1 folder=$2 words=$3
  shift 3
  if end_behind "$name" "building $folder/"; then
    test_in "$folder" "$words" "$@"
  else
    summary+=(--failed "the build in $folder/ ($words)")
  fi
}

# unhurried JOB COMMAND...: of a background job. Tests go first, and so does an earlier job, if there is one.
unhurried() {
  local earlier=$1
  shift
  renice -n 19 -p "$BASHPID" >/dev/null 2>&1
  while [ -n "$earlier" ] && kill -0 "$earlier" 2>/dev/null; do sleep 1; done
  "$@"
}

# gcc warns of variables as uninitialised that only the sanitizer's own code makes so: no werror. Nothing runs the
# examples and the preloaded library in this build, so only the tests' prerequisites are built.
build_sanitized() {
  setup_configure build-sanitize -Dlock_checks=true -Dbench=false "${setup_lines[@]}" -Doptimization=1 \
    -Db_ndebug=false -Db_sanitize=address,undefined -Db_lundef=false -Dcpp_args=-D_GLIBCXX_ASSERTIONS -Dwerror=false \
    -Dpython=disabled -Djava=disabled -Dcsharp=disabled && setup_build build-sanitize -j "$(nproc)" meson-test-prereq
}

# One build serves all dependencies, as no source looks at two of them together. Each source is compiled alone here, so
# it includes what it needs. The tests are those that a library's absence changes: checksums of kept contents, and the
# command. Without GoogleTest Meson leaves out the unit tests alone.
without=build-without-optional-libraries
without_tests=('conformance_context on host' symbols 'include graph' documents 'conformance_backup on host'
  'conformance_pause on host' 'fault_undo on host')
build_without() {
  setup_configure "$without" -Doptimization=0 -Dwerror=true -Dbench=false -Dpython=disabled -Djava=disabled \
    -Dcsharp=disabled -Dxxhash=disabled -Dcli=disabled -Dgtest=disabled -Dunity_library=false -Ddebug=false &&
    setup_build "$without" -j "$(nproc)" tests/api/conformance_{context,backup,pause} tests/api/fault_undo
}

# note_examples WORDS COMMAND...: the command runs ./examples/run.sh, or waits for it.
note_examples() {
  local words=$1
  shift
  if "$@"; then
    summary+=(--passed "examples/run.sh, $words")
  else
    summary+=(--failed "examples/run.sh, $words")
  fi
}

if [ ${#only[@]} != 0 ]; then
  phase "configuring build/"
  if setup_configure build "${setup_options[@]}"; then
    if [ -n "${SETUP_VERSIONS:-}" ] && setup_environments; then wait "$setup_environments_job"; fi
    test_in build "some" "${only[@]}"
  else
    summary+=(--failed "configuring build/")
  fi
  finish
fi

# A user may run the README's two commands in either order: examples/run.sh runs in its short form before the tests,
# and whole after them.
in_release=()
if [ -n "$sanitize" ]; then
  # One after the other, so that there is always a compilation for a processor that the tests leave idle.
  begin_behind sanitize unhurried '' build_sanitized
  begin_behind thread unhurried "${behind[sanitize]}" setup_stress build-thread
  begin_behind without unhurried "${behind[thread]}" build_without
  # examples/run.sh runs the examples. Each failing call belongs to the sanitizers, whose assertions and leak checks see
  # more.
  in_release=(--no-suite examples --no-suite failures)
  if [ -n "${TEST_IN_ROOM:-}" ]; then
    for suite in api unit stress preload; do in_release+=(--no-suite "$suite"); done
  fi
  phase "examples/run.sh, before the tests"
  note_examples "before the tests" env EXAMPLES_SHORT=1 ./examples/run.sh
fi

phase "configuring build/"
if setup_configure build "${setup_options[@]}"; then
  phase "building build/"
  if setup_build build; then
    # Tests with other libraries run last while those libraries are on their way, and else among the rest: no processor
    # idles at the end of two phases.
    others=()
    if [ -n "${setup_environments_job:-}" ] && kill -0 "$setup_environments_job" 2>/dev/null; then
      others=(--no-suite interop --no-suite sycl)
    fi
    test_in build "release" --no-rebuild "${others[@]}" "${in_release[@]}"
    if [ -n "${setup_environments_job:-}" ]; then
      phase "waiting for PyPI"
      setup_say "waiting for libraries from PyPI"
      wait "$setup_environments_job" || echo "   not all of it came (see .deps/environments.log)"
    fi
    if [ ${#others[@]} != 0 ]; then
      test_in build "with other libraries" --no-rebuild --suite interop --suite sycl "${in_release[@]}"
    fi
  else
    summary+=(--failed "the build in build/ (release)")
  fi
else
  summary+=(--failed "configuring build/")
fi

if [ -n "$sanitize" ]; then
  export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:allocator_may_return_null=1}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
  test_behind sanitize build-sanitize "address and undefined behaviour sanitizer" \
    --no-rebuild --no-suite structure --no-suite abi --no-suite languages
  # The other order of the two commands: build/ is now what tests/run.sh configured. The tours take one processor.
  begin_behind examples ./examples/run.sh
  setup_stress_environment
  test_behind thread build-thread "stress under the thread sanitizer" --no-rebuild --num-processes 2 \
    --suite stress
  grep -sho '"# seed [0-9]*' build-thread/meson-logs/results-*.json
  test_behind without "$without" "without optional libraries" "${without_tests[@]}"
  # The module's own threads on a Python without a GIL.
  if setup_free_threaded; then
    phase "configuring build-free-threaded/"
    printf "[binaries]\npython3 = '%s'\npython = '%s'\n" "$setup_free_python" "$setup_free_python" \
      >"$setup_deps/free-threaded.ini"
    if PATH=$setup_venv/bin:$PATH setup_configure build-free-threaded --native-file "$setup_deps/free-threaded.ini" \
      -Doptimization=0 -Dbench=false -Dpython=enabled -Djava=disabled -Dcsharp=disabled; then
      # The package's files are no dependencies of a test.
      mapfile -t package < <(ninja -C build-free-threaded -t targets all |
        sed -n 's/^\(bindings\/python\/[^:]*\): .*/\1/p')
      setup_build build-free-threaded "${package[@]}"
      PATH=$setup_venv/bin:$PATH test_in build-free-threaded "free-threaded Python" 'python threads'
    else
      summary+=(--failed "configuring build-free-threaded/")
    fi
  else
    summary+=(--skipped "free-threaded Python: $setup_reason")
  fi

  note_examples "after the tests" end_behind examples "examples/run.sh, after the tests"
fi
finish
