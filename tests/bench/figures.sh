#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every command behind the figures, and puts these into measured.jsonl, both READMEs and the pictures.
#
# Usage: tests/bench/figures.sh [host|cuda] [BUILD]      default: host build
#   PEERS=DIR    where gmm_bench_*.so are; default: beside gmm-bench
#   TRACES=DIR   a folder of traces; default: tests/bench/traces
#   ONLY=NAMES   only the commands whose names begin so, by commas: pause. The other figures stay
#   ROWS=FILE    rows made on another machine, as `figures.py run` or tests/gpu/bench.sh wrote them: nothing is run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
backend=${1:-host}
build=${2:-build}
. tests/support/setup.sh
rows=${ROWS:-$build/figures-$backend.json}
if [ -z "${ROWS:-}" ]; then
  setup_peers || echo "   without mimalloc or UMF: $setup_reason"
  export LD_LIBRARY_PATH=$setup_deps/umf${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  python3 tests/bench/figures.py run --backend "$backend" --bench "$build/tests/bench/gmm-bench" -o "$rows" \
    ${PEERS:+--peers "$PEERS"} ${TRACES:+--traces "$TRACES"} ${ONLY:+--only "$ONLY"}
fi
python3 tests/bench/figures.py take "$rows"
