#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fills .gpu/ with what a machine with a GPU and without network may lack. For tests/gpu/run.sh: SWIG as a wheel of
# PyPI. For tests/gpu/bench.sh: the wheels of RMM's library, its logger and torch_memory_saver, the library of UMF, and
# this machine's mimalloc, zlib and xxhash. The benchmark says which peers it misses, so of those only the wheels are
# insisted on. For tests/gpu/engines.sh: the headers and loaders of Vulkan, EGL and OpenGL, and a compiler of shaders.
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

warn() { echo "tests/gpu/pack.sh: warning: $*" >&2; }
fail() {
  echo "tests/gpu/pack.sh: $*" >&2
  exit 1
}

# fetch FILES NAME
fetch() {
  local platforms=(--platform=manylinux_2_{17,24,27,28}_x86_64 --platform=manylinux2014_x86_64)
  ls .gpu/wheels/"$1"-*.whl >/dev/null 2>&1 && return
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${platforms[@]}" -d .gpu/wheels "$2" ||
    fail "pip could not fetch the wheel of $2; it needs the network."
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
  [ -f "$RMM_SUITE/test_device_buffer.py" ] || fail "there is no test_device_buffer.py in RMM_SUITE=$RMM_SUITE."
  rm -rf .gpu/rmm-suite
  cp -rL "$RMM_SUITE" .gpu/rmm-suite
fi

tms_source=${TMS_SOURCE:-}
if [ -z "$tms_source" ] && [ ! -d .gpu/torch_memory_saver/test ]; then
  tms_source=$(mktemp -d)
  # shellcheck disable=SC2064 # expanded now
  trap "rm -rf '$tms_source'" EXIT
  git clone -q --depth 1 https://github.com/fzyzcjy/torch_memory_saver "$tms_source" 2>/dev/null || {
    warn 'no tests of torch_memory_saver: github.com is out of reach; set TMS_SOURCE'
    tms_source=
  }
fi
if [ -n "$tms_source" ]; then
  rm -rf .gpu/torch_memory_saver
  mkdir -p .gpu/torch_memory_saver
  git -C "$tms_source" archive HEAD test | tar -x -C .gpu/torch_memory_saver
  git -C "$tms_source" rev-parse HEAD >.gpu/torch_memory_saver/revision
fi

# library NAME FOLDER: the system's library, under its name.
library() {
  local path
  path=$(ldconfig -p | sed -n "s/^\t$1 .*x86-64.* => //p" | head -n 1)
  [ -n "$path" ] && mkdir -p "$2" && cp -L "$path" "$2/$1"
}

# headers FOLDER PATTERN HEADER...: the files with these names that the compiler reads for the headers. The pattern has
# the folders that they keep, and is a name without one.
headers() {
  local folder=$1 pattern=$2 path paths below
  shift 2
  # shellcheck disable=SC1003 # a backslash and a blank
  paths=$(printf '#include <%s>\n' "$@" | cc -xc -DEGL_NO_PLATFORM_SPECIFIC_TYPES -M - 2>/dev/null |
    tr -s ' \\' '\n' | grep -E "$pattern") || return
  while read -r path; do
    below=$(basename "$(dirname "$path")")/
    [[ $pattern == */ ]] || below=
    mkdir -p "$folder/$below" && cp -L "$path" "$folder/$below"
  done <<<"$paths"
}

# For tests/gpu/bench.sh, which says what it misses.
library libmimalloc.so.2 .gpu/lib || warn 'no libmimalloc.so.2 here (Debian: libmimalloc-dev)'
[ -f .gpu/lib/libumf.so.1 ] || python3 tests/support/umf_libraries.py .gpu/lib ||
  warn 'pip could not fetch umf and tcmlib; the benchmark will miss UMF'
if headers .gpu/zlib '/(zlib|zconf)\.h$' zlib.h && [ -f "$(cc -print-file-name=libz.a)" ]; then
  cp -L "$(cc -print-file-name=libz.a)" .gpu/zlib/
else
  warn 'no zlib here (Debian: zlib1g-dev); the benchmark needs it where it is built'
fi
headers .gpu/include '/(xxhash|xxh3)\.h$' xxhash.h ||
  warn 'no xxhash.h here (Debian: libxxhash-dev); checksums of backups will be missing'

# For tests/gpu/engines.sh.
if headers .gpu/vulkan/include '/(vulkan|vk_video)/' vulkan/vulkan.h && library libvulkan.so.1 .gpu/vulkan; then
  [ ! -x /usr/bin/glslangValidator ] || cp -L /usr/bin/glslangValidator .gpu/vulkan/
else
  warn 'no Vulkan here (Debian: libvulkan-dev); tests/gpu/engines.sh will skip it'
fi
if ! headers .gpu/opengl/include '/(EGL|GL|KHR)/' EGL/egl.h EGL/eglext.h GL/glcorearb.h GL/glext.h ||
  ! library libEGL.so.1 .gpu/opengl || ! library libGLdispatch.so.0 .gpu/opengl; then
  warn 'no OpenGL here (Debian: libegl-dev libgl-dev); tests/gpu/engines.sh will skip it'
fi

du -sh .gpu | cut -f 1
# As much as is usually carried.
[ "$(du -sm .gpu | cut -f 1)" -lt 60 ] || warn '.gpu has grown past 60 MiB'
