#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `meson install` writes: a program builds against it by pkg-config, shared and static, and runs.
# Usage: install_test.sh SOURCE_ROOT BUILD_ROOT MESON...
set -eu
root=$1
build=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$@" install -C "$build" --no-rebuild --destdir "$folder" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
pc=$(find "$folder" -name gmm.pc)
[ -n "$pc" ] || { echo "gmm.pc was not installed" >&2; exit 1; }
export PKG_CONFIG_PATH="${pc%/gmm.pc}" PKG_CONFIG_SYSROOT_DIR="$folder"
library=$(pkg-config --variable=libdir gmm)
case $library in "$folder"*) ;; *) library=$folder$library ;; esac
# shellcheck disable=SC2046
cc -std=c11 "$root/tests/abi/static_link.c" $(pkg-config --cflags --libs gmm) -o "$folder/shared"
readelf -d "$folder/shared" | grep -q 'libgmm\.so\.[0-9]' ||
  { echo "the program does not need the soname" >&2; exit 1; }
LD_LIBRARY_PATH=$library "$folder/shared"
# shellcheck disable=SC2046
cc -std=c11 "$root/tests/abi/static_link.c" "$library/libgmm.a" \
  $(pkg-config --static --cflags --libs gmm | sed 's/-lgmm//') \
  -o "$folder/static"
"$folder/static"
