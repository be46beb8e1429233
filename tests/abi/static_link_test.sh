#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The static library links into a plain C program by `cc` with threads and nothing else, and runs.
# Usage: static_link_test.sh SOURCE_ROOT LIBGMM_A CC...
set -eu
root=$1
library=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$@" -std=c11 -I "$root/include" "$root/tests/abi/static_link.c" "$library" -lpthread -o "$folder/program"
if readelf -d "$folder/program" | grep NEEDED | grep -E 'stdc\+\+|gcc_s|libcuda'; then
  echo "the program needs more than the C library" >&2
  exit 1
fi
"$folder/program"
