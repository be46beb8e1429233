#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The Debian packages build; in a clean Debian they install, pass their own tests, and leave nothing when purged.
# Usage: debian_test.sh SOURCE_ROOT
set -eu
for tool in dh:debhelper debootstrap:debootstrap; do
  command -v "${tool%%:*}" >/dev/null || { echo "skipped: ${tool#*:} is not installed"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: debootstrap needs root"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DEB_CFLAGS_APPEND=-g0 DEB_CXXFLAGS_APPEND=-g0 DEB_BUILD_OPTIONS="noopt noautodbgsym"
"$1/lib/found_by/debian/build.sh" --check "$folder"
