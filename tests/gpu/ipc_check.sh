#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sharing between processes on a GPU: handles of each kind, descriptors, events, the death of either side with the
# device's memory counted, many processes at once, and `gmm-bench ipc`. Lines "ok" and "not ok"; exit code 1 when one
# was not.
#
# Usage: tests/gpu/ipc_check.sh BUILD [OUTPUT]
#   BUILD               a build folder with tests/api/conformance_ipc*, tests/ipc_lifetimes and tests/bench/gmm-bench
#   OUTPUT              where the benchmark's rows go; default: stdout only
#   WITHOUT_INTERFACE=1 leaves out the programs of tests/api, which run.sh runs too
#   GPU_RUN_FAKE=1  rehearses on the fake driver of the tests: shows nothing about a GPU
set -uo pipefail
[ $# -ge 1 ] || { sed -n '3,10s/^# \?//p' "$0"; exit 2; }
build=$(cd "$1" && pwd) || exit 2
output=${2:-/dev/null}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export GMM_BACKEND=cuda LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -z "${GPU_RUN_FAKE:-}" ] || export LD_LIBRARY_PATH=$build/tests/support/fake_cuda:$LD_LIBRARY_PATH
failed=0

# check NAME SECONDS COMMAND...: what it printed is shown when it fails.
check() {
  local name=$1 seconds=$2 begin=$EPOCHREALTIME
  shift 2
  if timeout -k 2 "$seconds" "$@" >"$work/log" 2>&1 && ! grep -q '^not ok' "$work/log"; then
    seconds=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    echo "ok - $name ($seconds, $(grep -c '^ok' "$work/log") parts, $(grep -c '# SKIP' "$work/log") skipped)"
    grep '^# figure' "$work/log" | sed 's/^/  /'
  else
    failed=1
    echo "not ok - $name"
    grep -aE '^not ok|^#|rror|ended' "$work/log" | head -n 12 | cut -c 1-220 | sed 's/^/    /'
  fi
}

if [ -z "${WITHOUT_INTERFACE:-}" ]; then
  check 'memory of each kind, revocation' 120 "$build/tests/api/conformance_ipc"
  check 'events: a stream waits on the device' 30 "$build/tests/api/conformance_ipc_events"
  check 'descriptors, the legacy handle, pid namespaces' 40 "$build/tests/api/conformance_ipc_reach"
fi
check 'either side killed, device memory counted' 40 "$build/tests/ipc_lifetimes"
if timeout -k 2 120 "$build/tests/bench/gmm-bench" ipc --backend cuda --samples 60 --iterations 150 --blocks 4 \
  --threads "${IPC_AT_ONCE:-64}" \
  --kind vmm,device --json >"$work/rows" 2>"$work/log"; then
  echo "ok - gmm-bench ipc"
  cat "$work/rows" >>"$output"
  python3 - "$work/rows" <<'ROWS'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    wanted = "over", "lost", "cycles", "processes", "resident_bytes_more", "descriptors_more"
    more = {name: row[name] for name in row if name in wanted}
    print(f"  {row['operation']:26} {row['kind']:7} {row['subject']:4} {row['ns'] / 1000:10.2f} us  {more}")
ROWS
else
  failed=1
  echo "not ok - gmm-bench ipc"
  head -n 12 "$work/log" | cut -c 1-220 | sed 's/^/    /'
fi
exit $failed
