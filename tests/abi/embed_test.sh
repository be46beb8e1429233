#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/embed builds with gmm as its subproject, linked statically, and runs.
# Usage: embed_test.sh SOURCE_ROOT MESON...
set -eu
root=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$root"/examples/embed/meson.build "$root"/examples/embed/*.cpp "$folder"
mkdir "$folder/subprojects"
ln -s "$root" "$folder/subprojects/gmm"
# Without optimisation: whether it builds and runs is asked, not how fast.
"$@" setup "$folder/build" "$folder" -Doptimization=0 >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
"$@" compile -C "$folder/build" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
if readelf -d "$folder/build/frames" | grep NEEDED | grep libgmm; then
  echo "the program is not linked statically" >&2
  exit 1
fi
GMM_BACKEND=host "$folder/build/frames" | tee "$folder/out"
grep -qx 'frames: ok' "$folder/out"
