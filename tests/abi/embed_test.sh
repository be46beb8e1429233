#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/embed builds with gmm as its subproject, linked statically, and runs. gmm builds the library alone there,
# installs nothing unless asked, and makes no warning an error.
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

fail() { echo "$*" >&2; exit 1; }
grep -- '-c [^ ]*subprojects/gmm/' "$folder/build/compile_commands.json" >"$folder/commands"
[ -s "$folder/commands" ] || fail "no command compiles gmm"
if grep -v -- '-Wno-error ' "$folder/commands" | grep -- -Werror; then fail "warnings of gmm are errors"; fi
[ "$("$@" introspect --tests "$folder/build")" = '[]' ] || fail "gmm's tests are there"
"$@" introspect --targets "$folder/build" | grep -o '"name": "[^"]*"' | sort | uniq | tr '\n' ' ' >"$folder/targets"
[ "$(cat "$folder/targets")" = '"name": "frames" "name": "gmm" "name": "gmm_engine" ' ] ||
  fail "more is built: $(cat "$folder/targets")"
"$@" install -C "$folder/build" --no-rebuild --destdir "$folder/nothing" >"$folder/log" 2>&1 || cat "$folder/log" >&2
[ ! -e "$folder/nothing" ] || fail "installed: $(find "$folder/nothing")"
"$@" configure "$folder/build" -Dgmm:install=true >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
"$@" compile -C "$folder/build" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
"$@" install -C "$folder/build" --no-rebuild --destdir "$folder/asked" >"$folder/log" 2>&1 || cat "$folder/log" >&2
[ -n "$(find "$folder/asked" -name libgmm.a)" ] || fail "-Dgmm:install=true installs no library"
