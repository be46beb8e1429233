# SPDX-License-Identifier: Apache-2.0
# Installs the missing prerequisites of a build of gmm. tests/run.sh, tests/gpu/run.sh and examples/run.sh source it.
# shellcheck shell=bash
#
# apt-get brings packages of Debian 12 and 13 or Ubuntu 24.04, as root or with sudo. Python's packages come from PyPI
# into .deps/. The script never asks for an installed package, so later runs work without a network. Each function that
# brings something fails with setup_reason set to why it cannot be had.

setup_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
setup_deps=$setup_root/.deps
setup_venv=$setup_deps/venv
setup_log=$setup_deps/install.log
setup_reason=
setup_updated=
setup_planning= # set while setup_packages only notes the names
setup_missing=()
setup_quiet=${setup_quiet:-} # set where nobody watches: no lines of progress
setup_options=()
setup_python_modules=() # those that tests need
setup_native=() # makes Meson take the Python of .deps/venv; a reconfiguration cannot change it
# The reports of sanitizers need lines and no variables. These compile in four fifths of the time of full information.
setup_lines=(-Ddebug=false -Dc_args=-g1 -Dcpp_args=-g1)
declare -A setup_skipped=()
mkdir -p "$setup_deps"
# Meson takes ccache where it is there; without these it does not store results of a precompiled header.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
# Results of one clone serve another.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$setup_root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

# An ordinary user's PATH lacks ldconfig and debootstrap.
PATH=$PATH:/usr/sbin:/sbin

setup_say() { printf '== %s\n' "$*"; }

# setup_logged LOG COMMAND...: the command's output goes into the log, whose last line is shown every 15 s.
setup_logged() {
  local log=$1 result=0 ticker=
  shift
  if [ -z "$setup_quiet" ]; then
    while sleep 15 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
      printf '   %(%T)T  %.100s\n' -1 "$(tail -n 1 "$log")"
    done &
    ticker=$!
  fi
  "$@" >>"$log" 2>&1 || result=$?
  [ -z "$ticker" ] || { kill "$ticker" && wait "$ticker"; } 2>/dev/null || true
  return $result
}

setup_may_install() {
  [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }
}

setup_as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs packages; fails with setup_reason.
setup_packages() {
  if [ -n "$setup_planning" ]; then
    setup_missing+=("$@")
    return 0
  fi
  if ! command -v apt-get >/dev/null || ! setup_may_install; then
    setup_reason="$* cannot be installed: that needs apt-get, and root or sudo"
    return 1
  fi
  local apt=(setup_as_root env DEBIAN_FRONTEND=noninteractive apt-get)
  if [ -z "$setup_updated" ]; then
    setup_say "reading the list of packages (apt-get update)"
    setup_logged "$setup_log" "${apt[@]}" update || true # an old list may do
    setup_updated=1
  fi
  setup_say "installing $* ($(apt-get install --print-uris -qq --no-install-recommends "$@" 2>/dev/null |
    awk '{ bytes += $3 } END { printf "%d", bytes / 1e6 }') MB to fetch; log: .deps/install.log)"
  if ! setup_logged "$setup_log" "${apt[@]}" install -y --no-install-recommends "$@"; then
    setup_reason="apt-get could not install $* (see .deps/install.log)"
    return 1
  fi
}

# setup_together FUNCTION...: installs the packages that these functions miss by one call, or says which command does,
# once. The functions themselves then find them.
setup_together() {
  local missing
  # shellcheck disable=SC2030 # the subshell is a plan
  missing=$(setup_planning=1 && for function in "$@"; do $function; done >/dev/null 2>&1
    printf '%s\n' "${setup_missing[@]}" | sort -u | xargs)
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086 # packages are separated by blanks
  if setup_may_install; then
    setup_packages $missing
  elif [ -z "${setup_told:-}" ]; then
    setup_told=1
    setup_say "packages are missing, and only root can install them. This command does:"
    echo "sudo apt-get install -y --no-install-recommends $missing"
  fi
}

# setup_needs CHECK PACKAGES...: installs the packages behind each command that fails.
# shellcheck disable=SC2206 # packages are separated by blanks
setup_needs() {
  local missing=()
  for (( ; $# > 0; )); do
    eval "$1" >/dev/null 2>&1 || missing+=($2)
    shift 2
  done
  [ ${#missing[@]} = 0 ] || setup_packages "${missing[@]}"
}

# setup_has HEADER...: in this order.
setup_has() { printf '#include <%s>\n' "$@" | cc -E - >/dev/null 2>&1; }

# A Python of at least 3.9 with its headers and venv; the first of: $PYTHON, python3, Debian's.
setup_find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 /usr/bin/python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" - 2>/dev/null <<'CHECK'; then
import ensurepip, os, sys, sysconfig, venv
sys.exit(not (sys.version_info >= (3, 9) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))
CHECK
      setup_python_found=$candidate
      return 0
    fi
  done
  return 1
}

# setup_python MODULE...: setup_venv=.deps/venv with these modules of PyPI.
setup_python() {
  if ! setup_find_python; then
    setup_packages python3 python3-dev python3-venv || return 1
    if ! setup_find_python; then
      setup_reason="no python3 of 3.9 or newer with its headers and venv was found"
      return 1
    fi
  fi
  [ -z "$setup_planning" ] || return 1
  if ! "$setup_venv/bin/python" -c '' 2>/dev/null; then
    setup_say "making a Python environment in .deps/venv"
    rm -rf "$setup_venv"
    if ! "$setup_python_found" -m venv "$setup_venv" >>"$setup_log" 2>&1; then
      setup_reason="python -m venv failed (see .deps/install.log)"
      return 1
    fi
  fi
  printf "[binaries]\npython3 = '%s'\npython = '%s'\n" "$setup_venv/bin/python" "$setup_venv/bin/python" \
    >"$setup_deps/python.ini"
  setup_native=(--native-file "$setup_deps/python.ini")
  local module missing=()
  for module in "$@"; do
    "$setup_venv/bin/python" -c "import $module" 2>/dev/null || missing+=("$module")
  done
  [ ${#missing[@]} = 0 ] && return 0
  setup_say "installing from PyPI into .deps/venv: ${missing[*]}"
  setup_pip "${missing[*]}" "${missing[@]}"
}

# setup_pip WHAT WORD...: `pip install` with these words; fails with setup_reason.
setup_pip() {
  local what=$1
  shift
  setup_logged "$setup_log" "$setup_venv/bin/python" -m pip install --disable-pip-version-check -q "$@" && return 0
  setup_reason="pip could not fetch $what (see .deps/install.log; it needs the network)"
  return 1
}

# setup_environment NAME PACKAGE...: .deps/NAME, a Python environment of its own with these packages. Slow: some are
# large.
setup_environment() {
  local folder=$setup_deps/$1 wanted
  shift
  wanted=$(printf '%s\n' "$@")
  [ "$(cat "$folder/ready" 2>/dev/null)" = "$wanted" ] && return 0
  rm -rf "$folder"
  # A slow network must not hold up the tests that need none of it.
  "$setup_python_found" -m venv "$folder" &&
    timeout 420 "$folder/bin/python" -m pip install --disable-pip-version-check --no-cache-dir -q "$@" &&
    echo "$wanted" >"$folder/ready"
}

# setup_addition NAME PACKAGE: into the environment .deps/NAME, which is complete without it.
setup_addition() {
  local folder=$setup_deps/$1
  [ ! -f "$folder/ready" ] || [ -f "$folder/ready-$2" ] && return 0
  timeout 420 "$folder/bin/python" -m pip install --disable-pip-version-check --no-cache-dir -q "$2" &&
    touch "$folder/ready-$2"
}

# kvcached's Python code in .deps/kvcached. gmm.kvcached stands in for its module in C++, which needs CUDA's compiler.
setup_kvcached() {
  local folder=$setup_deps/kvcached
  [ ! -d "$folder" ] && [ -f "$setup_deps/torch/ready" ] && mkdir "$folder" || return 0
  timeout 120 "$setup_deps/torch/bin/python" -m pip download --disable-pip-version-check -q --no-deps \
    --no-build-isolation --no-binary kvcached -d "$folder" kvcached==0.1.6 &&
    tar -xzf "$folder"/*.gz -C "$folder" --strip-components=1 || rm -rf "$folder"
}

# The README's table has the same versions. numba-cuda 0.30.0 does not start with Numba 0.68, and does not go with
# cuda-core 1.0.
setup_oldest_environments() {
  setup_environment oldest pytest numpy 'numba-cuda[cu13]==0.30.0' 'numba==0.64.*' 'cuda-bindings==13.0.*' \
    'cupy-cuda13x==14.0.0' 'rmm-cu13==26.2.0' 'nvidia-cuda-crt==13.*' \
    'jax[cpu]==0.4.26'
  setup_environment oldest-cuda-core pytest numpy 'cuda-core[cu13]==1.0.0'
  setup_environment oldest-sycl pytest numpy 'dpctl==0.21.0' 'dpnp==0.19.0' 'intel-opencl-rt==2025.*'
  setup_environment oldest-torch pytest numpy 'torch==2.5.*'
}

# Python environments with the newest versions of other libraries, in the background: .deps/torch, .deps/interop,
# .deps/sycl, .deps/viewers, each complete when it has a file "ready"; dpnp comes into .deps/sycl later.
# SETUP_VERSIONS=oldest: the oldest versions that gmm supports, in .deps/oldest and .deps/oldest-*.
setup_environments() { # [FIRST]: the function of a further environment
  setup_python || return 1
  if [ "${SETUP_VERSIONS:-}" = oldest ]; then
    setup_say "fetching the oldest supported versions of PyTorch, CuPy, Numba, RMM, JAX, cuda.core and dpnp into .deps/"
    setup_oldest_environments >>"$setup_deps/environments.log" 2>&1 &
    setup_environments_job=$!
    return
  fi
  setup_say "fetching PyTorch, Numba, CuPy, JAX, dpctl and dpnp from PyPI into .deps/ in the background (10 GB on disk)"
  (
    ${1:-}
    # pypprof brings the definitions; its own needs are for profiles of Python.
    setup_environment viewers --no-deps perfetto protobuf six pypprof
    setup_environment interop pytest numpy 'numba-cuda[cu13]' cupy-cuda13x rmm-cu13 nvidia-cuda-crt 'jax[cpu]'
    # dpctl brings SYCL's runtime; intel-opencl-rt is its CPU device (on_sycl.sh names it to the runtime).
    setup_environment sycl pytest numpy dpctl intel-opencl-rt
    setup_environment torch pytest numpy torch
    setup_kvcached
    setup_addition sycl dpnp # it and MKL are large
  ) >>"$setup_deps/environments.log" 2>&1 &
  # shellcheck disable=SC2034 # tests/run.sh waits for it
  setup_environments_job=$!
}

# The tools that make wheels, and pytest for a Python of arm64.
setup_wheels() {
  setup_reason="pip could not fetch the tools of bindings/python/wheels.txt (see .deps/install.log)"
  # shellcheck disable=SC2046 # a name a line
  setup_python &&
    setup_logged "$setup_log" setup_environment wheels pytest $(grep -v '^#' "$setup_root/bindings/python/wheels.txt")
}

# The generators of docs/build.sh.
setup_site() {
  setup_reason="pip could not fetch Sphinx and its themes"
  setup_needs 'command -v doxygen' doxygen && setup_python &&
    setup_environment site sphinx myst-parser furo doxygen-awesome-css
}

# version_at_least HAVE WANTED
setup_version_at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# Compilers, Meson, ninja.
setup_required() {
  if ! setup_needs 'command -v cc && command -v c++' 'gcc g++' 'command -v pkg-config' pkg-config \
    'command -v readelf' binutils 'command -v meson || [ -x "$setup_venv/bin/meson" ]' meson \
    'command -v ninja || [ -x "$setup_venv/bin/ninja" ]' ninja-build 'setup_has stdlib.h' libc6-dev \
    'command -v python3' python3 '[ ! -f /etc/debian_version ] || command -v dpkg-architecture' dpkg-dev; then
    # Meson and ninja from PyPI will do. Meson asks dpkg-architecture for the folder of installed libraries alone.
    if ! command -v c++ >/dev/null || ! setup_python meson ninja 2>/dev/null; then
      echo "The packages that a build needs are missing: $setup_reason." >&2
      return 1
    fi
  fi
  if ! command -v meson >/dev/null || ! command -v ninja >/dev/null; then
    PATH=$setup_venv/bin:$PATH
  fi
  local version
  version=$(meson --version)
  if ! setup_version_at_least "$version" 1.0.1; then
    echo "A build needs Meson 1.0.1 or newer; this is $version." >&2
    return 1
  fi
}

setup_swig_version() {
  command -v swig >/dev/null && swig -version | sed -n 's/^SWIG Version //p'
}

# Debian's SWIG, or PyPI's: for users who may not install packages, and where modules of Debian's make Python's
# development mode warn.
setup_swig() {
  local reason=
  command -v swig >/dev/null || setup_packages swig || reason=$setup_reason
  if ! setup_version_at_least "$(setup_swig_version)" 4.4 &&
    { [ -n "$reason" ] || python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))'; }; then
    if ! setup_python swig; then
      setup_reason=${reason:-$setup_reason}
      return 1
    fi
    PATH=$setup_venv/bin:$PATH
  fi
  if ! setup_version_at_least "$(setup_swig_version)" 4.1; then
    setup_reason="SWIG 4.1 or newer is needed; this is $(setup_swig_version)"
    return 1
  fi
}

setup_language() {
  case $1 in
    python) setup_python "${setup_python_modules[@]}" && setup_swig ;;
    java) setup_needs 'command -v javac && command -v jar' default-jdk-headless && setup_swig ;;
    csharp) setup_needs 'command -v mcs' mono-mcs 'command -v mono' mono-runtime && setup_swig ;;
  esac
}

# setup_unpacked NAME PACKAGE: this package of PyPI alone, in .deps/NAME.
setup_unpacked() {
  [ ! -d "$setup_deps/$1" ] || return 0
  setup_python || return 1
  setup_say "fetching $2 from PyPI into .deps/$1 (log: .deps/install.log)"
  setup_pip "$2" --no-deps --target "$setup_deps/$1" "$2"
}

# A .NET runtime for the tests of C#, which run on Mono otherwise.
setup_dotnet() { setup_unpacked dotnet dotnetcore2; }

# A Python of 3.13 or newer that was built without a GIL: $PYTHON_FREE_THREADED, one on the PATH, or the one that uv
# fetches from GitHub (about 55 MB with uv itself). Meson 1.0 does not know Pythons that new, so PyPI's Meson comes too.
setup_free_threaded() {
  setup_python meson || return 1
  setup_find_free_threaded && return 0
  setup_python uv || return 1
  setup_say "fetching a free-threaded Python into .deps/free-threaded"
  getent hosts github.com >/dev/null && UV_PYTHON_INSTALL_DIR=$setup_deps/free-threaded timeout 90 \
    "$setup_venv/bin/uv" python install --no-bin 3.14t >>"$setup_log" 2>&1
  setup_find_free_threaded && return 0
  setup_reason="uv could not fetch a free-threaded Python (see .deps/install.log; it needs the network)"
  return 1
}

# Sets setup_free_python to one that has its headers.
setup_find_free_threaded() {
  local candidate
  for candidate in "${PYTHON_FREE_THREADED:-}" python3.14t python3.13t \
    "$setup_deps"/free-threaded/cpython-*/bin/python3.*t; do
    if [ -n "$candidate" ] && "$candidate" - 2>/dev/null <<'CHECK'; then
import os, sys, sysconfig
found = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
sys.exit(not (found and sysconfig.get_config_var("Py_GIL_DISABLED")))
CHECK
      setup_free_python=$(command -v "$candidate")
      return 0
    fi
  done
  return 1
}

# mimalloc and UMF; the benchmarks open them at run time. UMF comes from PyPI into .deps/umf.
setup_peers() {
  local result=0
  setup_mimalloc || result=1
  setup_umf || result=1
  return $result
}

setup_umf() {
  [ ! -f "$setup_deps/umf/libumf.so.1" ] || return 0
  setup_python || return 1
  setup_say "fetching UMF from PyPI into .deps/umf"
  "$setup_venv/bin/python" "$setup_root/tests/support/umf_libraries.py" "$setup_deps/umf" >>"$setup_log" 2>&1 &&
    return 0
  setup_reason="pip could not fetch umf and tcmlib (see .deps/install.log; it needs the network)"
  return 1
}

# A device without a GPU, and a compiler of shaders.
setup_vulkan() {
  setup_needs 'setup_has vulkan/vulkan.h' libvulkan-dev \
    'ls /usr/share/vulkan/icd.d/lvp_icd*.json' mesa-vulkan-drivers \
    'command -v glslangValidator' glslang-tools
}

# EGL loads Mesa's part by its description, and Mesa the device.
setup_opengl() {
  setup_needs 'setup_has EGL/eglext.h' libegl-dev \
    'setup_has GL/glcorearb.h GL/glext.h' libgl-dev \
    '[[ $(ldconfig -p) = *libEGL.so.1\ * ]]' libegl1 \
    'ls /usr/share/glvnd/egl_vendor.d/*mesa*.json' 'libegl-mesa0 libgl1-mesa-dri'
}

setup_mpi() { setup_needs 'command -v mpicc' libopenmpi-dev 'command -v mpirun' openmpi-bin; }

# cuda.h, from the toolkit or from PyPI. Nothing of CUDA is linked.
setup_cuda_headers() {
  [ -n "$("$setup_root/tests/support/find_cuda_headers.sh" "$setup_deps")" ] ||
    setup_unpacked cuda nvidia-cuda-runtime
}

# The oldest cuda.h that gmm's declarations must agree with, beside the one above.
setup_oldest_cuda_header() { setup_unpacked cuda12 'nvidia-cuda-runtime-cu12==12.0.*'; }

# HIP's headers of Debian, 170 kB, into .deps/hip. They are of 5.2 or 5.7; those of a newer release come with PyTorch.
setup_hip_headers() {
  [ ! -d "$setup_deps/hip" ] || return 0
  setup_say "fetching HIP's headers from Debian into .deps/hip"
  mkdir "$setup_deps/hip"
  if ! (cd "$setup_deps/hip" && apt-get download libamdhip64-dev && dpkg-deb -x libamdhip64-dev*.deb .) \
    >>"$setup_log" 2>&1; then
    rm -rf "$setup_deps/hip"
    setup_reason="apt-get could not fetch libamdhip64-dev (see .deps/install.log)"
    return 1
  fi
}

# Packages of another architecture are not installed: apt-get reads their list into a folder of its own.
setup_arm64() {
  local folder=$setup_deps/arm64 minor package
  [ ! -f "$folder/ready" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder/apt/partial" "$folder/apt/archives/partial" "$folder/packages"
  local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$folder/apt"
    -o "Dir::Cache=$folder/apt")
  setup_say "fetching a Python of arm64 from Debian into .deps/arm64"
  "${apt[@]}" update >>"$setup_log" 2>&1
  for minor in 11 12 13 14; do
    (cd "$folder/packages" && "${apt[@]}" download python3.$minor-minimal libpython3.$minor-{minimal,stdlib,dev} libc6 \
      zlib1g zlib1g-dev libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0) >>"$setup_log" 2>&1 && break
  done
  for package in "$folder"/packages/*.deb; do
    if ! dpkg-deb -x "$package" "$folder" >>"$setup_log" 2>&1; then
      setup_reason="apt-get could not fetch packages of arm64 (see .deps/install.log)"
      return 1
    fi
  done
  rm -rf "$folder/apt" "$folder/packages"
  touch "$folder/ready"
}

# A clean Debian, where the Debian packages are installed. It is made anew each month.
setup_debian() {
  local folder=$setup_deps/debian suite
  # shellcheck disable=SC1091
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  [ -z "$(find "$folder/ready-$suite" -mtime -30 2>/dev/null)" ] || return 0
  setup_say "making a minimal Debian ($suite) in .deps/debian"
  rm -rf --one-file-system "$folder"
  if ! setup_logged "$setup_log" \
    debootstrap --variant=minbase --include=gcc,libc6-dev,pkg-config "$suite" "$folder"; then
    setup_reason="debootstrap could not make a Debian (see .deps/install.log; it needs root and the network)"
    return 1
  fi
  touch "$folder/ready-$suite"
}

setup_gtest() { pkg-config --exists gtest || setup_packages libgtest-dev; }
# Not by grep -q, which ends before ldconfig: that counts as a failure under pipefail.
setup_mimalloc() { setup_needs '[[ $(ldconfig -p) = *libmimalloc.so* ]]' libmimalloc-dev; }

# setup_option NAME COMMAND...: -DNAME for Meson, enabled where the command succeeds.
setup_option() {
  local name=$1
  shift
  if "$@"; then
    setup_options+=("-D$name=enabled")
  else
    setup_options+=("-D$name=disabled")
    setup_skipped[$name]=$setup_reason
  fi
}
# setup_others NAME...: libraries that are no option of the build. Without one, its tests and examples are skipped.
setup_others() {
  local name
  for name in "$@"; do "setup_$name" || setup_skipped[$name]=$setup_reason; done
}

# Brings all of these. Sets setup_options for Meson, and setup_skipped[NAME]=REASON for each that is left out. Each
# optional dependency is named, found or not. So Meson never goes by the memory of an earlier configuration: where that
# contradicts an option, the configuration fails, and setup_configure() makes a new one.
setup_options() {
  setup_options=(-Ddebug=true -Dwerror=true)
  setup_option xxhash setup_needs 'setup_has xxhash.h' libxxhash-dev
  setup_option valgrind setup_needs 'setup_has valgrind/memcheck.h' valgrind
  setup_option cli setup_needs 'setup_has zlib.h' zlib1g-dev
  local language
  for language in python java csharp; do setup_option $language setup_language $language; done
  setup_options+=("${setup_native[@]}")
  for language in "${!setup_skipped[@]}"; do
    setup_say "going on without $language: ${setup_skipped[$language]}"
  done
}

# setup_configure FOLDER OPTION...: makes a build folder, or brings an old one up to date; packages that were installed
# since are used.
setup_configure() {
  local folder=$1 log=$setup_deps/configure-${1##*/}.log
  shift
  setup_say "configuring $folder/"
  if [ -f "$folder/build.ninja" ]; then
    meson setup --reconfigure "$folder" "$@" >"$log" 2>&1 && return 0
    meson setup --wipe "$folder" "$@" >"$log" 2>&1 && return 0
  else
    rm -rf "$folder"
    meson setup "$folder" "$@" >"$log" 2>&1 && return 0
  fi
  tail -n 20 "$log" >&2
  return 1
}

# setup_targets FOLDER [PLACE...]: prints all targets but those of tests/, or those of these folders of the source.
setup_targets() {
  meson introspect --targets "$1" | python3 -c '
import json, os, sys
root, build = map(os.path.realpath, sys.argv[1:3])
for target in json.load(sys.stdin):
    folder = os.path.dirname(os.path.relpath(target["defined_in"], root)) + "/"
    if target["build_by_default"] and (folder.startswith(tuple(sys.argv[3:])) if sys.argv[3:] else
                                       not folder.startswith("tests/")):
        print(*(os.path.relpath(name, build) for name in target["filename"]), sep="\n")
' "$setup_root" "$@"
}

# setup_build FOLDER [TARGET...]: compiles all or these. On a terminal ninja shows progress and errors. Elsewhere a log
# has all, and the errors alone are printed.
setup_build() {
  local log=.deps/build-${1##*/}.log
  if [ -t 1 ]; then
    setup_say "building in $1/"
    ninja -C "$@"
    return
  fi
  setup_say "building in $1/ (log: $log)"
  : >"$setup_root/$log"
  setup_logged "$setup_root/$log" ninja -C "$@" && return 0
  grep -vE '^\[[0-9]+/[0-9]+\]' "$setup_root/$log" | tail -n 60 >&2
  return 1
}

# setup_stress FOLDER: the stress test alone, under the thread sanitizer.
setup_stress() {
  local targets=(tests/stress/stress)
  setup_configure "$1" -Dlock_checks=true "${setup_lines[@]}" -Doptimization=1 -Db_ndebug=false -Db_sanitize=thread \
    -Db_lundef=false -Dwerror=false -Dpython=disabled -Djava=disabled -Dcsharp=disabled || return 1
  grep -q libcuda.so.1 "$1/build.ninja" && targets+=(tests/support/fake_cuda/libcuda.so.1)
  setup_build "$1" "${targets[@]}" || return 1
}

setup_stress_environment() {
  export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:history_size=5}
}
