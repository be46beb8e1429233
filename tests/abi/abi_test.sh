#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the library's binary interface with the stored one: functions may be added, nothing else may change.
# Usage: abi_test.sh SOURCE_ROOT LIBGMM_SO
# To renew the baseline, after a change that is wanted: abi_test.sh --renew SOURCE_ROOT LIBGMM_SO
set -eu
renew=
if [ "$1" = --renew ]; then
  renew=1
  shift
fi
root=$1
library=$2
machine=$(uname -m)
baseline=$root/tests/abi/baseline/libgmm-$machine.abi.xml

skip() {
  echo "$*"
  exit 77
}
command -v abidw >/dev/null || skip "abidw (abigail-tools) is not installed"
readelf -SW "$library" | grep -q '\.debug_info' || skip "$library has no debug information: configure with -Ddebug=true"

describe() { # LIBRARY OUTPUT
  abidw --headers-dir "$root/include" --drop-private-types --no-show-locs --no-comp-dir-path --no-corpus-path \
    --type-id-style hash "$1" --out-file "$2"
}

if [ -n "$renew" ]; then
  mkdir -p "$root/tests/abi/baseline"
  describe "$library" "$baseline"
  echo "$baseline renewed"
  exit 0
fi
[ -f "$baseline" ] || skip "there is no baseline for $machine"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
describe "$library" "$folder/now.abi.xml"
compare() { # OLD NEW
  abidiff --suppressions "$root/tests/abi/abi_suppressions.ini" --no-added-syms "$1" "$2"
}
compare "$baseline" "$folder/now.abi.xml" || {
  echo "the binary interface changed: see above; if it is wanted, run tests/abi/abi_test.sh --renew" >&2
  exit 1
}

# The comparison can fail: a library without one function, and one whose function takes something else.
grep -v "name='gmm_free'" "$folder/now.abi.xml" >"$folder/less.abi.xml"
if compare "$baseline" "$folder/less.abi.xml" >/dev/null; then
  echo "a missing function was not noticed" >&2
  exit 1
fi
