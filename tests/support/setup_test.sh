#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A build folder made without an optional dependency uses it once it is installed, as when examples/run.sh makes build/
# and tests/run.sh installs more.
# Usage: setup_test.sh SOURCE_ROOT
set -uo pipefail
cd "$1" || exit 1
. tests/support/setup.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
setup_deps=$folder # where the log goes
number=0

check() { # WORDS COMMAND...
  local words=$1
  shift
  number=$((number + 1))
  if "$@" >&2; then echo "ok $number - $words"; else echo "not ok $number - $words"; fi
}

with_xxhash() { grep -q -- -DGMM_WITH_XXHASH "$folder/build/build.ninja"; }
without_xxhash() { ! with_xxhash; }

if ! echo '#include <xxhash.h>' | cc -E - >/dev/null 2>&1; then
  echo "1..0 # SKIP xxhash.h is not installed"
  exit 0
fi
echo "1..6"
options=(-Ddefault_library=static -Dtests=false -Dcli=disabled -Dpython=disabled -Djava=disabled
  -Dcsharp=disabled)
# A header that cannot be included hides the one of the system.
mkdir "$folder/hidden"
echo '#error hidden' >"$folder/hidden/xxhash.h"
export CPATH=$folder/hidden
check "a folder is configured" setup_configure "$folder/build" "${options[@]}"
check "it is without xxhash" without_xxhash
unset CPATH
check "the folder is configured again" setup_configure "$folder/build" "${options[@]}"
check "it is with xxhash" with_xxhash
check "it is configured with -Dxxhash=disabled" setup_configure "$folder/build" "${options[@]}" -Dxxhash=disabled
check "it is without xxhash again" without_xxhash
