#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm on a machine with a GPU and runs there what it does with the driver's own Vulkan and OpenGL, headless:
# memory both ways, memory of images and textures, timeline and binary semaphores by descriptors, and the engine of the
# examples, whose pictures are compared with the host's. Ends with a table, also in $OUT/summary.txt.
#
# Usage: tests/gpu/engines.sh
#   OUT=FOLDER          where summary.txt, log.txt and pictures go; default tests/gpu/out
#   GPU_SECONDS=N       how long the whole may take; default 240
#   GPU_ONLY=WORDS      only the rows whose names have one of these words, by blanks
#   BUILD=FOLDER        a build folder to use and keep; default: a new one
#   GPU_RUN_FAKE=1      rehearses the script on the fake driver of the tests: shows nothing about a GPU
#
# Needs what tests/gpu/run.sh needs. .gpu/, which tests/gpu/pack.sh fills, brings the headers and the loaders of Vulkan
# and EGL, and a compiler of shaders. The driver's part of them (libGLX_nvidia.so.0 or libEGL_nvidia.so.0) comes with
# the driver alone. A container has it if NVIDIA_DRIVER_CAPABILITIES names graphics. Without it the rows of Vulkan and
# OpenGL are SKIP and say so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/gpu/machine.sh
. tests/support/tap.sh
open_output 240
finish() { finish_with engines.sh "$(c++ --version | head -n 1)"; }

# --- the machine --------------------------------------------------------------------------------------------------
ask_machine 2048 || finish

# The driver's part of Vulkan, and a description of it for the loader where the machine has none.
find_driver() {
  local library
  compgen -G '/usr/share/vulkan/icd.d/nvidia*.json' >/dev/null && return 0
  compgen -G '/etc/vulkan/icd.d/nvidia*.json' >/dev/null && return 0
  for library in libGLX_nvidia.so.0 libEGL_nvidia.so.0; do
    ldconfig -p | grep -q "$library" || continue
    printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s", "api_version": "1.3.0"}}\n' "$library" \
      >"$work/nvidia_icd.json"
    export VK_DRIVER_FILES=$work/nvidia_icd.json VK_ICD_FILENAMES=$work/nvidia_icd.json
    return 0
  done
  return 1
}
without=
if [ -z "$fake" ] && ! find_driver; then
  without="neither libGLX_nvidia.so.0 nor libEGL_nvidia.so.0 is here: the driver was installed without graphics"
fi
if ! ldconfig -p | grep -q 'libvulkan\.so\.1'; then
  if [ -f .gpu/vulkan/libvulkan.so.1 ]; then
    export GMM_TEST_VULKAN=$root/.gpu/vulkan/libvulkan.so.1
  else
    without=${without:-"there is no libvulkan.so.1: tests/gpu/pack.sh takes it along (Debian: libvulkan1)"}
  fi
fi
if ! echo '#include <vulkan/vulkan.h>' | cc -E - >/dev/null 2>&1; then
  if [ -d .gpu/vulkan/include ]; then
    export CPATH=$root/.gpu/vulkan/include${CPATH:+:$CPATH}
  else
    without=${without:-"there is no vulkan/vulkan.h: tests/gpu/pack.sh takes it along (Debian: libvulkan-dev)"}
  fi
fi
if [ -n "$without" ]; then
  row SKIP 'Vulkan' 0 "$without"
  row SKIP 'OpenGL' 0 "$without"
  finish
fi

# EGL: its loader, its headers, and a description of the driver's part where the machine has none.
find_egl() {
  if ! ldconfig -p | grep -q 'libEGL\.so\.1 '; then
    if [ ! -f .gpu/opengl/libEGL.so.1 ]; then
      without_opengl="there is no libEGL.so.1: tests/gpu/pack.sh takes it along (Debian: libegl1)"
      return
    fi
    export GMM_TEST_EGL=$root/.gpu/opengl/libEGL.so.1
    export LD_LIBRARY_PATH=$root/.gpu/opengl${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  if ! printf '#include <%s>\n' EGL/eglext.h GL/glcorearb.h GL/glext.h | cc -E - >/dev/null 2>&1; then
    if [ ! -d .gpu/opengl/include ]; then
      without_opengl="there is no EGL/eglext.h: tests/gpu/pack.sh takes it along (Debian: libegl-dev libgl-dev)"
      return
    fi
    export CPATH=$root/.gpu/opengl/include${CPATH:+:$CPATH}
  fi
  if [ -n "$fake" ] || [ -n "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] ||
    compgen -G '/usr/share/glvnd/egl_vendor.d/*nvidia*.json' >/dev/null ||
    compgen -G '/etc/glvnd/egl_vendor.d/*nvidia*.json' >/dev/null; then
    return
  fi
  if ! ldconfig -p | grep -q 'libEGL_nvidia\.so\.0'; then
    without_opengl="there is no libEGL_nvidia.so.0: the driver was installed without EGL"
    return
  fi
  echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' >"$work/10_nvidia.json"
  export __EGL_VENDOR_LIBRARY_FILENAMES=$work/10_nvidia.json
}
without_opengl=
find_egl

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
