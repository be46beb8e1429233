#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fills .gpu/ with what a machine with a GPU and without network may lack. For tests/gpu/run.sh: SWIG as a wheel of
# PyPI, and GoogleTest's source from the distribution's package (Debian: googletest or libgtest-dev). For
# tests/gpu/bench.sh: the wheels of RMM's library, its logger and torch_memory_saver, the library of UMF, and this
# machine's mimalloc, zlib and xxhash. The benchmark says which peers it misses, so of those only the wheels
# are insisted on. For tests/gpu/engines.sh: the headers and loaders of Vulkan, EGL and OpenGL, and a compiler of
# shaders.
#
# Also for tests/gpu/run.sh: RMM's package of the same version. RMM_SUITE is the folder rmm/tests of its source.
# torch_memory_saver's own tests are in its repository only: TMS_SOURCE names a checkout or a git directory of it;
# without, pack.sh asks GitHub.
#
# Usage: [RMM_SUITE=FOLDER] [RMM_VERSION=26.2] [TMS_SOURCE=FOLDER] tests/gpu/pack.sh
#   RMM_VERSION   of RMM, default: the newest; it needs a .gpu/wheels without wheels of another one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p .gpu/wheels

# fetch FILES NAME
fetch() {
  ls .gpu/wheels/"$1"-*.whl >/dev/null 2>&1 && return
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --platform manylinux_2_24_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux_2_28_x86_64 -d .gpu/wheels "$2" || {
    echo "tests/gpu/pack.sh: pip could not fetch the wheel of $2; it needs the network." >&2
    exit 1
  }
}
fetch swig swig
fetch librmm_cu13 "librmm-cu13${RMM_VERSION:+==$RMM_VERSION.*}"
rmm_version=$(printf '%s\n' .gpu/wheels/librmm_cu13-*.whl | sed -n 's/.*librmm_cu13-\([0-9.]*\)-.*/\1/p' | sort -V |
  tail -n 1)
fetch rmm_cu13 "rmm-cu13==$rmm_version"
fetch rapids_logger "rapids-logger$(unzip -p ".gpu/wheels/librmm_cu13-$rmm_version-"*.whl '*/METADATA' |
  sed -n 's/^Requires-Dist: rapids-logger//p')"
fetch torch_memory_saver 'torch-memory-saver==0.0.10'

if [ -n "${RMM_SUITE:-}" ]; then
  [ -f "$RMM_SUITE/test_device_buffer.py" ] || {
    echo "tests/gpu/pack.sh: there is no test_device_buffer.py in RMM_SUITE=$RMM_SUITE." >&2
    exit 1
  }
  rm -rf .gpu/rmm-suite
  cp -rL "$RMM_SUITE" .gpu/rmm-suite
fi

tms_source=${TMS_SOURCE:-}
if [ -z "$tms_source" ] && [ ! -d .gpu/torch_memory_saver/test ]; then
  tms_source=$(mktemp -d)
  # shellcheck disable=SC2064 # expanded now
  trap "rm -rf '$tms_source'" EXIT
  git clone -q --depth 1 https://github.com/fzyzcjy/torch_memory_saver "$tms_source" 2>/dev/null || {
    echo "tests/gpu/pack.sh: warning: no tests of torch_memory_saver: github.com is out of reach; set TMS_SOURCE" >&2
    tms_source=
  }
fi
if [ -n "$tms_source" ]; then
  rm -rf .gpu/torch_memory_saver
  mkdir -p .gpu/torch_memory_saver
  git -C "$tms_source" archive HEAD test | tar -x -C .gpu/torch_memory_saver
  git -C "$tms_source" rev-parse HEAD >.gpu/torch_memory_saver/revision
fi

# library NAME PACKAGE: as the benchmark opens it.
mkdir -p .gpu/lib .gpu/zlib
library() {
  local path
  path=$(ldconfig -p | sed -n "s/^\t$1 .*x86-64.* => //p" | head -n 1)
  if [ -n "$path" ]; then
    cp -L "$path" ".gpu/lib/$1"
  else
    echo "tests/gpu/pack.sh: warning: no $1 here (Debian: $2); the benchmark will miss it" >&2
  fi
}
library libmimalloc.so.2 libmimalloc-dev
[ -f .gpu/lib/libumf.so.1 ] || python3 tests/support/umf_libraries.py .gpu/lib ||
  echo "tests/gpu/pack.sh: warning: pip could not fetch umf and tcmlib; the benchmark will miss UMF" >&2
# shellcheck disable=SC1003 # a backslash and a blank
zlib=$(echo '#include <zlib.h>' | cc -xc -M - 2>/dev/null | tr -s ' \\' '\n' | grep -E '/(zlib|zconf)\.h$' || true)
if [ -n "$zlib" ] && [ -f "$(cc -print-file-name=libz.a)" ]; then
  # shellcheck disable=SC2086 # several paths
  cp -L $zlib "$(cc -print-file-name=libz.a)" .gpu/zlib/
else
  echo "tests/gpu/pack.sh: warning: no zlib here (Debian: zlib1g-dev); the benchmark needs it where it is built" >&2
fi

xxhash=$(echo '#include <xxhash.h>' | cc -xc -M - 2>/dev/null | tr -s ' \\' '\n' | grep -E '/xxhash\.h$' || true)
if [ -n "$xxhash" ]; then
  mkdir -p .gpu/include
  cp -L "$(dirname "$xxhash")"/xx*hash*.h "$(dirname "$xxhash")"/xxh3.h .gpu/include/ 2>/dev/null ||
    cp -L "$xxhash" .gpu/include/
else
  echo "tests/gpu/pack.sh: warning: no xxhash.h here (Debian: libxxhash-dev); checksums of backups will be missing" >&2
fi

# For tests/gpu/engines.sh.
vulkan=$(echo '#include <vulkan/vulkan.h>' | cc -xc -M - 2>/dev/null | tr -s ' \\' '\n' |
  grep -E '/(vulkan|vk_video)/' || true)
loader=$(ldconfig -p | sed -n 's/^\tlibvulkan.so.1 .*x86-64.* => //p' | head -n 1)
if [ -n "$vulkan" ] && [ -n "$loader" ]; then
  mkdir -p .gpu/vulkan/include
  while read -r path; do
    mkdir -p ".gpu/vulkan/include/$(basename "$(dirname "$path")")"
    cp -L "$path" ".gpu/vulkan/include/$(basename "$(dirname "$path")")/"
  done <<<"$vulkan"
  cp -L "$loader" .gpu/vulkan/libvulkan.so.1
  [ ! -x /usr/bin/glslangValidator ] || cp -L /usr/bin/glslangValidator .gpu/vulkan/
else
  echo "tests/gpu/pack.sh: warning: no Vulkan here (Debian: libvulkan-dev); tests/gpu/engines.sh will skip it" >&2
fi

opengl=$(printf '#include <%s>\n' EGL/egl.h EGL/eglext.h GL/glcorearb.h GL/glext.h |
  cc -xc -DEGL_NO_PLATFORM_SPECIFIC_TYPES -M - 2>/dev/null | tr -s ' \\' '\n' | grep -E '/(EGL|GL|KHR)/' || true)
egl=$(ldconfig -p | sed -n 's/^\tlibEGL.so.1 .*x86-64.* => //p' | head -n 1)
dispatch=$(ldconfig -p | sed -n 's/^\tlibGLdispatch.so.0 .*x86-64.* => //p' | head -n 1)
if [ -n "$opengl" ] && [ -n "$egl" ] && [ -n "$dispatch" ]; then
  while read -r path; do
    mkdir -p ".gpu/opengl/include/$(basename "$(dirname "$path")")"
    cp -L "$path" ".gpu/opengl/include/$(basename "$(dirname "$path")")/"
  done <<<"$opengl"
  cp -L "$egl" .gpu/opengl/libEGL.so.1
  cp -L "$dispatch" .gpu/opengl/libGLdispatch.so.0
else
  echo "tests/gpu/pack.sh: warning: no OpenGL here (Debian: libegl-dev libgl-dev); engines.sh will skip it" >&2
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
# As much as is usually carried.
[ "$(du -sm .gpu | cut -f 1)" -lt 60 ] || echo "tests/gpu/pack.sh: warning: .gpu has grown past 60 MiB" >&2
