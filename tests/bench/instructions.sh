#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Counts the instructions of one cached alloc and free by callgrind: the difference of two runs, so that starting up
# cancels out.
#
# Usage: tests/bench/instructions.sh [--profile] [GMM_BENCH]      default: build/tests/bench/gmm-bench
#   --profile  also where they are spent, by function
# Prints a table in Markdown. Needs valgrind. The time of a pair follows the machine; this follows the code alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=
if [ "${1:-}" = --profile ]; then
  profile=1
  shift
fi
bench=${1:-build/tests/bench/gmm-bench}
if ! command -v valgrind >/dev/null; then
  echo "instructions.sh: valgrind is not installed (apt-get install valgrind)" >&2
  exit 3
fi
if [ ! -x "$bench" ]; then
  echo "instructions.sh: there is no $bench: build it first (meson compile -C build)" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What gmm-bench would start itself anew for.
export GLIBC_TUNABLES=glibc.rtld.optional_static_tls=32768 GMM_BACKEND=host
few=2000 many=12000

# count SUBJECT KIND SIZE PAIRS
count() {
  valgrind --tool=callgrind --callgrind-out-file="$work/$1-$2-$3-$4.out" "$bench" pair --subject "$1" \
    ${2:+--kind "$2"} \
    --size "$3" --samples 1 --iterations "$4" --json >"$work/rows" 2>"$work/log" || {
    cat "$work/log" >&2
    exit 1
  }
  sed -n 's/^summary: //p; s/^totals: //p' "$work/$1-$2-$3-$4.out" | head -n 1
}

# Measured and warm-up pairs of the second run that the first does not have.
pairs=$(((many + many / 16) - (few + few / 16)))
echo "| subject | kind | size | instructions a pair |"
echo "| --- | --- | --- | --- |"
row() {
  local first second
  first=$(count "$1" "$2" "$3" $few)
  second=$(count "$1" "$2" "$3" $many)
  awk -v d="$((second - first))" -v p="$pairs" -v s="$1" -v k="${2:--}" -v z="$3" \
    'BEGIN { printf "| %s | %s | %s | %.1f |\n", s, k, z, d / p }'
}
for size in 1K 1M 4M; do
  for kind in vmm device host; do
    row gmm $kind $size
    row gmm-heap $kind $size
  done
done
for peer in mimalloc jemalloc malloc; do row "$peer" '' 1K; done

if [ -n "$profile" ]; then
  echo
  echo "gmm, kind vmm, 1 KiB, by function (instructions of $((many + many / 16)) pairs and of starting up):"
  echo
  callgrind_annotate --threshold=100 "$work/gmm-vmm-1K-$many.out" | awk -v p=$((many + many / 16)) '
    /file:function/ { on = 1; next }
    on && /^ *[0-9]/ {
      n = $1; gsub(",", "", n); if (n / p < 0.9) exit
      sub(/^[^)]*\) */, ""); printf "    %6.1f  %s\n", n / p, $0
    }'
fi
