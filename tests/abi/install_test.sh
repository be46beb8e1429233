#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program builds against the files of `meson install` by pkg-config, shared and static, and runs; so does
# examples/embed by its Makefile.
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
cc -std=c11 "$root/tests/abi/static_link.c" $(pkg-config --static --cflags --libs gmm) -o "$folder/static"
if readelf -d "$folder/static" | grep NEEDED | grep -E 'libgmm|stdc\+\+|gcc_s|libcuda'; then
  echo "pkg-config --static does not link the archive alone, with the C library" >&2
  exit 1
fi
"$folder/static"

# make finds a gmm that PKG_CONFIG_PATH names, also where the path has a blank.
gmm="$folder/my gmm"
mv "$folder$(PKG_CONFIG_SYSROOT_DIR='' pkg-config --variable=prefix gmm)" "$gmm"
unset PKG_CONFIG_SYSROOT_DIR
find "$gmm" -name 'gmm*.pc' -exec sed -i "s|^prefix=.*|prefix=$folder/my\\\\ gmm|" {} +
mkdir "$folder/embed"
cp "$root"/examples/embed/Makefile "$root"/examples/embed/*.cpp "$folder/embed"
PKG_CONFIG_PATH=$(dirname "$(find "$gmm" -name gmm.pc)")
export PKG_CONFIG_PATH
for way in SHARED=1 0; do
  # shellcheck disable=SC2086
  make -s -C "$folder/embed" CXXFLAGS=-O0 ${way%0}
  GMM_BACKEND=host "$folder/embed/frames" | grep -x 'frames: ok'
  if [ "$(readelf -d "$folder/embed/frames" | grep -c 'NEEDED.*libgmm')" != "${way#SHARED=}" ]; then
    echo "make $way links the other library" >&2
    exit 1
  fi
  make -s -C "$folder/embed" clean
done
