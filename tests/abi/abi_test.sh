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
  abidw --suppressions "$root/tests/abi/abi_private.ini" --exported-interfaces-only --no-show-locs --no-comp-dir-path \
    --no-corpus-path --no-elf-needed --type-id-style hash "$1" |
    # wherever it was built
    sed -e "s# path='$root/# path='#" -e "s# path='\(\.\./\)\{1,\}\(${root#/}/\)\{0,1\}# path='#" >"$2"
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

# The comparison can fail: on a function that is gone, on a field put in front of others, and on another result.
now=$folder/now.abi.xml
number=$(sed -n "s/.*<var-decl name='live_bytes' type-id='\([^']*\)'.*/\1/p" "$now" | head -n 1)
field="<data-member access='public' layout-offset-in-bits='0'>"
field=$field"<var-decl name='planted' type-id='$number' visibility='default'/></data-member>"
sed "s/'gmm_free'/'gmm_freed'/g" "$now" >"$folder/gone.abi.xml"
sed "/<class-decl name='gmm_stats_info'/a $field" "$now" >"$folder/inserted.abi.xml"
sed "/<function-decl name='gmm_free'/,/<.function-decl>/s/<return type-id='[^']*'/<return type-id='$number'/" "$now" \
  >"$folder/returned.abi.xml"
for planted in gone inserted returned; do
  if compare "$baseline" "$folder/$planted.abi.xml" >/dev/null; then
    echo "a planted change was not noticed: $planted" >&2
    exit 1
  fi
done
