#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fills .gpu/ with what a machine with a GPU and without network may lack for tests/gpu/run.sh: SWIG as a wheel of PyPI, and
# GoogleTest's source from the distribution's package (Debian: googletest or libgtest-dev).
#
# Usage: tests/gpu/pack.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p .gpu/wheels

if ! ls .gpu/wheels/swig-*.whl >/dev/null 2>&1; then
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
    -d .gpu/wheels swig || {
    echo "tests/gpu/pack.sh: pip could not fetch the wheel of swig; it needs the network." >&2
    exit 1
  }
fi

if [ ! -f .gpu/googletest/src/gtest-all.cc ]; then
  for source in /usr/src/googletest/googletest /usr/src/gtest; do
    [ -f "$source/src/gtest-all.cc" ] || continue
    mkdir -p .gpu/googletest
    cp -r "$source/src" .gpu/googletest/
    headers=$source/include
    [ -d "$headers/gtest" ] || headers=/usr/include
    mkdir -p .gpu/googletest/include
    cp -rL "$headers/gtest" .gpu/googletest/include/
    break
  done
  [ -f .gpu/googletest/src/gtest-all.cc ] || {
    echo "tests/gpu/pack.sh: no source of GoogleTest under /usr/src; install the package libgtest-dev." >&2
    exit 1
  }
fi
du -sh .gpu | cut -f 1
