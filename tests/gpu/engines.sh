#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with a GPU and runs there what it does with the driver's own Vulkan and OpenGL, headless:
# memory both ways, memory of images and textures, timeline and binary semaphores by descriptors, and the engine of the
# examples, whose pictures are compared with the host's. Ends with a table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/engines.sh      README.md has the variables that the scripts read. Pictures go into $OUT too.
#
# Needs what tests/gpu/run.sh needs. .gpu/, which tests/gpu/pack.sh fills, brings the headers and the loaders of Vulkan
# and EGL, and a compiler of shaders. The driver's part of them (libGLX_nvidia.so.0 or libEGL_nvidia.so.0) comes with
# the driver alone. A container has it if NVIDIA_DRIVER_CAPABILITIES names graphics. Without it the rows of Vulkan and
# OpenGL are SKIP and say so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
open_output 240

# --- the machine --------------------------------------------------------------------------------------------------
ask_machine 2048 || finish

# described FILE VARIABLES LIBRARY...: a description of the driver's part of a loader, in $work, and the variables that
# name it to the loader.
described() {
  local file=$work/$1 variables=$2 variable library
  shift 2
  for library; do
    ldconfig -p | grep -qF "$library" || continue
    printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' "$library" \
      >"$file"
    for variable in $variables; do export "$variable=$file"; done
    return 0
  done
  missing="no $(printf '%s ' "$@")is here: the driver was installed without graphics"
  return 1
}

# brought LIBRARY FOLDER VARIABLE PACKAGES HEADER...: the loader and the headers of the machine, or those in .gpu.
brought() {
  local library=$1 folder=$root/.gpu/$2 variable=$3 packages=$4
  shift 4
  if ! ldconfig -p | grep -qF "$library "; then
    missing="there is no $library: tests/gpu/pack.sh takes it along (Debian: $packages)"
    [ -f "$folder/$library" ] || return 1
    export "$variable=$folder/$library" LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  if ! printf '#include <%s>\n' "$@" | cc -E - >/dev/null 2>&1; then
    missing="there is no $1: tests/gpu/pack.sh takes it along (Debian: $packages)"
    [ -d "$folder/include" ] || return 1
    export CPATH=$folder/include${CPATH:+:$CPATH}
  fi
}

missing=
if { [ -z "$fake" ] && ! described vulkan.json 'VK_DRIVER_FILES VK_ICD_FILENAMES' libGLX_nvidia.so.0 \
    libEGL_nvidia.so.0; } ||
  ! brought libvulkan.so.1 vulkan GMM_TEST_VULKAN 'libvulkan1 libvulkan-dev' vulkan/vulkan.h; then
  row SKIP 'Vulkan' 0 "$missing"
  row SKIP 'OpenGL' 0 "$missing"
  finish
fi
without_opengl=
if ! brought libEGL.so.1 opengl GMM_TEST_EGL 'libegl1 libegl-dev libgl-dev' EGL/eglext.h GL/glcorearb.h GL/glext.h ||
  { [ -z "$fake${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] &&
    ! described egl.json __EGL_VENDOR_LIBRARY_FILENAMES libEGL_nvidia.so.0; }; then
  without_opengl=$missing
fi

# examples/engine needs the loader to link, by pkg-config, and the compiler of shaders.
if ! pkg-config --exists vulkan 2>/dev/null && [ -d .gpu/vulkan ]; then
  printf 'Name: vulkan\nDescription: Vulkan\nVersion: 1.3.239\nLibs: -L%s -lvulkan\nCflags: -isystem%s\n' \
    "$work/vulkan" "$root/.gpu/vulkan/include" >"$work/vulkan.pc"
  mkdir "$work/vulkan"
  cp .gpu/vulkan/libvulkan.so.1 "$work/vulkan/"
  ln -s libvulkan.so.1 "$work/vulkan/libvulkan.so"
  export PKG_CONFIG_PATH=$work${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  export LD_LIBRARY_PATH=$work/vulkan${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
command -v glslangValidator >/dev/null || PATH=$root/.gpu/vulkan:$PATH

# --- the build ----------------------------------------------------------------------------------------------------
take_headers
take_zlib
options=(-Ddebug=true -Dpython=disabled -Djava=disabled -Dcsharp=disabled -Dbench=false -Dgtest=disabled)
[ -z "$fake" ] || options+=(-Doptimization=0)
[ -f "$build/build.ninja" ] || build_step 'configure' 60 meson setup "$build" "${options[@]}" || finish
targets=(tests/vulkan/vulkan_test)
[ -n "$without_opengl" ] || targets+=(tests/opengl/opengl_test)
ninja -C "$build" -t targets all | grep -q '^examples/engine/engine:' && targets+=(examples/engine/engine)
[ -z "$fake" ] || targets+=(tests/support/fake_cuda/libcuda.so.1)
build_step 'build' 150 ninja -C "$build" -j "$(nproc)" "${targets[@]}" || finish
[ -z "$fake" ] || export LD_LIBRARY_PATH=$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# --- the tests ----------------------------------------------------------------------------------------------------
export GMM_BACKEND=cuda
alone 'Vulkan' 60 "$build/tests/vulkan/vulkan_test"
if [ -n "$without_opengl" ]; then
  row SKIP 'OpenGL' 0 "$without_opengl"
else
  alone 'OpenGL' 60 "$build/tests/opengl/opengl_test"
fi
if [ ! -x "$build/examples/engine/engine" ]; then
  row SKIP 'engine' 0 'not built: pkg-config finds no vulkan, or there is no glslangValidator'
elif wanted engine && alone 'engine' 60 "$build/examples/engine/engine" "$out" &&
  ! grep -q '^skipped:' "$work/step.log"; then
  rows+=("        $(grep -m 1 ' computed ' "$work/step.log")")
  alone "engine's pictures" 30 python3 tests/vulkan/pictures_test.py "$out"
fi
memory_came_back
finish
