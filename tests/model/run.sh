#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random programs against the model, in the build folder build/ (or $BUILD).
# Usage: tests/model/run.sh host|cuda [OPTION OF run.py...]
set -euo pipefail
case ${1:-} in
  host | cuda) export GMM_BACKEND=$1 ;;
  *)
    sed -n '4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${BUILD:-$root/build}
python=$root/.deps/venv/bin/python
[ -x "$python" ] || python=python3
export LD_LIBRARY_PATH=$build/tests/support/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONDONTWRITEBYTECODE=1
exec "$python" "$root/tests/model/run.py" --library "$build/lib/libgmm.so" \
  --helper "$build/tests/model/model_helper.so" "$@"
