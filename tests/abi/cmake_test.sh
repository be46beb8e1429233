#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/embed builds by CMake and runs: with the installed library, shared and static, and by FetchContent.
# Usage: cmake_test.sh SOURCE_ROOT BUILD_ROOT MESON...
set -eu
root=$1
build=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "$*" >&2; exit 1; }
quiet() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }; }
runs() { GMM_BACKEND=host "$1" | grep -x 'frames: ok' || fail "$1 does not run"; }
needs() { readelf -d "$1" | grep 'NEEDED.*libgmm'; }
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
export CMAKE_BUILD_PARALLEL_LEVEL=2

echo "find_package"
"$@" install -C "$build" --no-rebuild --destdir "$folder/root" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
config=$(find "$folder/root" -name gmm-config.cmake)
[ -n "$config" ] || fail "gmm-config.cmake was not installed"
version=$(sed -n 's/^set(PACKAGE_VERSION "\([0-9]*\.[0-9]*\).*/\1/p' "${config%.cmake}-version.cmake")
mkdir "$folder/found"
cat >"$folder/found/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(found LANGUAGES C CXX)
find_package(gmm $version REQUIRED)
find_package(gmm REQUIRED)
add_executable(shared "$root/tests/abi/static_link.c")
target_link_libraries(shared PRIVATE gmm::gmm)
add_executable(static "$root/tests/abi/static_link.c")
target_link_libraries(static PRIVATE gmm::gmm_static)
add_executable(frames "$root/examples/embed/frames.cpp")
target_compile_features(frames PRIVATE cxx_std_17)
target_compile_options(frames PRIVATE -fno-exceptions -fno-rtti)
target_link_libraries(frames PRIVATE gmm::gmm)
END
quiet cmake -S "$folder/found" -B "$folder/found/build" -Dgmm_DIR="${config%/*}"
quiet cmake --build "$folder/found/build"
"$folder/found/build/shared"
"$folder/found/build/static"
runs "$folder/found/build/frames"
needs "$folder/found/build/shared" >/dev/null || fail "gmm::gmm is not the shared library"
if needs "$folder/found/build/static"; then fail "gmm::gmm_static is not the archive"; fi
sed -i 's/find_package(gmm [0-9.]*/find_package(gmm 99.0/' "$folder/found/CMakeLists.txt"
if cmake -S "$folder/found" -B "$folder/found/build" >"$folder/log" 2>&1 || ! grep -q '99\.0' "$folder/log"; then
  fail "version 99 is found"
fi

echo "FetchContent"
# A strict project: its warnings are errors, and those of gmm's sources are not. GCC alone has -Wuseless-cast.
cat >"$folder/strict.cmake" <<'END'
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wuseless-cast>)
endif()
set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
END
quiet cmake -S "$root/examples/embed" -B "$folder/fetched" -DCMAKE_DISABLE_FIND_PACKAGE_gmm=ON \
  -DCMAKE_PROJECT_frames_INCLUDE="$folder/strict.cmake"
quiet cmake --build "$folder/fetched"
runs "$folder/fetched/frames"
quiet cmake --build "$folder/fetched" --target gmm # the shared library too
nm -D --defined-only "$(find "$folder/fetched" -name 'libgmm.so.[0-9]')" | grep ' gmm_[a-z_]*' | wc -l >"$folder/count"
[ "$(cat "$folder/count")" -gt 50 ] || fail "the shared library has $(cat "$folder/count") functions"

echo "an exported library with gmm inside"
mkdir "$folder/exported"
cat >"$folder/exported/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(exported LANGUAGES C CXX)
add_subdirectory("$root" gmm)
add_library(inside STATIC "$root/tests/abi/static_link.c")
target_link_libraries(inside PUBLIC gmm::gmm_static)
install(TARGETS inside EXPORT inside)
install(EXPORT inside DESTINATION lib/cmake/inside)
END
quiet cmake -S "$folder/exported" -B "$folder/exported/build" -DGMM_INSTALL=ON
