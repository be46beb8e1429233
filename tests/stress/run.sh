#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the stress test under the thread sanitizer, seed after seed, on the host backend and on the fake CUDA driver in
# turn.
#
# Usage: tests/stress/run.sh [SECONDS [SEED]]
#   SECONDS  how long in all; default 3600
#   SEED     the only seed; by default each run takes one from the clock and prints it
# BUILD names an existing build folder. By default the script makes build-thread. The output of failed runs stays in
# stress-failures/ of the build folder.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/support/setup.sh

seconds=${1:-3600} seed=${2:-0} each=60
build=${BUILD:-build-thread}
[ "$seconds" -lt $((2 * each)) ] && each=$(((seconds + 1) / 2))

setup_required || exit 1
if [ -z "${BUILD:-}" ]; then
  setup_stress "$build" || exit 1
  setup_stress_environment
fi
backends=host
[ -e "$build/tests/support/fake_cuda/libcuda.so.1" ] && backends+=" cuda"
export LD_LIBRARY_PATH=$PWD/$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

failures=$build/stress-failures passed=0 failed=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
  for backend in $backends; do
    output=$(mktemp)
    if GMM_BACKEND=$backend "$build/tests/stress/stress" "$seed" "$each" >"$output" 2>&1; then
      passed=$((passed + 1))
      echo "ok, $backend, $(sed -n '1s/# //p' "$output"): $(sed -n 's/^# \(.* rounds .*\)/\1/p' "$output")"
      rm -f "$output"
    else
      failed=$((failed + 1))
      mkdir -p "$failures"
      name=$failures/$backend-$(sed -n '1s/# seed //p' "$output").txt
      mv "$output" "$name"
      echo "NOT OK, $backend: $name"
      head -n 12 "$name"
    fi
  done
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
