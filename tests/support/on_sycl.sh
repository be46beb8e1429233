#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# on_sycl.sh PROTOCOL PROGRAM [ARGUMENT...]: runs a test on the SYCL backend, with the dpctl of .deps/sycl on its CPU
# device. setup_environments of setup.sh installs that optional environment in the background. The script therefore
# looks for it when the test starts. Without it the script skips the test with the reason, by PROTOCOL: tap, gtest or
# exit (Meson's status 77).
root=$(cd "$(dirname "$0")/../.." && pwd)
deps=$root/.deps/sycl
protocol=$1
shift

skip() {
  case $protocol in
    tap) printf 'ok 1 - %s on SYCL # SKIP %s\n1..1\n' "$(basename "$1")" "$2" ;;
    *) echo "skipped: $2" ;;
  esac
  [ "$protocol" = tap ] || exit 77
  exit 0
}

[ -f "$deps/ready" ] || skip "$1" "no environment .deps/sycl (see .deps/environments.log)"
GMM_SYCL_LIBRARY=$(echo "$deps"/lib/python3*/site-packages/dpctl/libDPCTLSyclInterface.so)
OCL_ICD_FILENAMES=$deps/lib/libintelocl.so
ONEAPI_DEVICE_SELECTOR=opencl:cpu
GMM_BACKEND=sycl
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$deps/lib # for libOpenCL.so.1, which the runtime looks for by name
export LD_LIBRARY_PATH GMM_SYCL_LIBRARY OCL_ICD_FILENAMES ONEAPI_DEVICE_SELECTOR GMM_BACKEND
"$deps/bin/python" -m dpctl -f 2>/dev/null | grep -q 'opencl:cpu' || skip "$1" "dpctl of .deps/sycl sees no CPU device"
# The OpenCL runtime keeps its objects to the process's end, and a search for leaks would find only those.
[ -z "${ASAN_OPTIONS:-}" ] || export ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0"
exec "$@"
