#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every command behind the figures. Writes the rows into tests/bench/results, the figures into README.md and
# tests/bench/README.md, and the pictures beside it.
#
# Usage: tests/bench/figures.sh [host|cuda] [BUILD]      default: host build
#   PEERS=DIR   where gmm_bench_*.so are; default: beside gmm-bench
#   QUICK=1     few and short samples, to try it
#   ONLY=NAMES  only the commands whose names begin so, by commas: pause. The rest stays as it was
#   ROWS=FILE   rows made on another machine, as `figures.py run` or tests/gpu/bench.sh wrote them: nothing is run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
backend=${1:-host}
build=${2:-build}
. tests/support/setup.sh
rows=tests/bench/results/$backend.json
if [ -n "${ROWS:-}" ]; then
  cp "$ROWS" "$rows.new"
else
  if [ ! -x "$build/tests/bench/gmm-bench" ]; then
    echo "figures.sh: there is no $build/tests/bench/gmm-bench: build it first" \
      "(meson setup $build && meson compile -C $build)" >&2
    exit 2
  fi
  setup_peers || echo "   without mimalloc, jemalloc or UMF: $setup_reason"
  export LD_LIBRARY_PATH=$setup_deps/umf${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  setup_tool valgrind valgrind || echo "   without valgrind: $setup_reason"
  python3 tests/bench/figures.py run --backend "$backend" --bench "$build/tests/bench/gmm-bench" \
    ${PEERS:+--peers "$PEERS"} ${QUICK:+--quick} ${ONLY:+--only "$ONLY"} -o "$rows.new"
fi
if [ -n "${ONLY:-}" ] && [ -f "$rows" ]; then
  python3 tests/bench/figures.py merge "$rows" "$rows.new" -o "$rows"
  rm "$rows.new"
else
  mv "$rows.new" "$rows"
fi
python3 tests/bench/figures.py write
python=python3
if ! python3 tests/bench/plot.py --check; then
  setup_python matplotlib || { echo "no picture: $setup_reason"; exit 0; }
  python=$setup_venv/bin/python
fi
written="README.md, tests/bench/README.md, $rows"
for bench in pair latency pause; do
  # On the host backend a pause copies nothing, so its picture would compare calls of the system.
  if [ "$backend-$bench" = host-pause ] || ! grep -q "\"bench\": \"$bench\"" "$rows"; then continue; fi
  "$python" tests/bench/plot.py --bench $bench "$rows" -o "tests/bench/$bench-$backend.svg"
  written+=", tests/bench/$bench-$backend.svg"
done
echo "written: $written"
