#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds gmm with the Python and the compiler of other Debian releases, each in a chroot, and runs this folder's tests
# on what was installed: bullseye has Python 3.9 and GCC 10, forky has Python 3.14 and GCC 16. Then it makes the wheel
# for glibc 2.28 and tries it.
#
# Usage: tests/bindings/python/debian_pythons.sh [RELEASE:PYTHON...]    default: bullseye:python3.9 forky:python3.14
# Needs root, debootstrap and the network. The chroots stay in .deps/. Ends with a line for each release.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.." || exit 1
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "needs root and debootstrap" >&2; exit 2; }
[ $# != 0 ] || set -- bullseye:python3.9 forky:python3.14
mirror=http://deb.debian.org/debian
result=0
for given; do
  release=${given%%:*} python=${given#*:}
  root=.deps/$release
  if [ ! -f "$root/ready" ]; then
    rm -rf --one-file-system "$root"
    script=/usr/share/debootstrap/scripts/$release
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # younger than this debootstrap
    debootstrap --variant=minbase "$release" "$root" "$mirror" "$script" >"$root.log" 2>&1 &&
      chroot "$root" apt-get -q -y --no-install-recommends install "$python-venv" "$python-dev" g++ ca-certificates \
        zlib1g-dev libxxhash-dev git >>"$root.log" 2>&1 &&
      touch "$root/ready" || { echo "$release: no chroot (see $root.log)"; result=1; continue; }
  fi
  # This machine may trust more than Debian does.
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  cp /etc/resolv.conf "$root/etc/"
  rm -rf "$root/src" "$root/try"
  mkdir "$root/src"
  commit=$(git stash create)
  git archive "${commit:-HEAD}" | tar -x -C "$root/src"
  cat >"$root/try.sh" <<'END'
export HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt
unset PIP_FIND_LINKS
tests=/src/tests/bindings/python
cd /root || exit 1
rm -rf /try /wheels
"$1" -m venv /try && /try/bin/python -m pip install -q pytest numpy /src || exit
# The rest needs programs and fakes of the build.
GMM_BACKEND=host /try/bin/python $tests/run.py $tests/test_{array,calls,garbage,interchange,lifecycle}.py \
  $tests/test_{manners,multiprocessing,pause,reset,watch}.py || exit
"$1" /src/bindings/python/wheels.py --glibc 2.28 --folder /wheels "/usr/bin/$1" &&
  "$1" $tests/wheel_test.py /src /wheels/*
END
  # shellcheck disable=SC2016 # the inner shell's
  unshare --mount bash -c 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" \
    bash /try.sh "$1"' "$root" "$python" >"$root/try.log" 2>&1
  status=$?
  grep -aE '^not ok|^gmm-.*whl' "$root/try.log"
  echo "$release, $(chroot "$root" "$python" --version): exit $status," \
    "$(grep -ac '^ok ' "$root/try.log") cases passed or skipped, $(grep -ac '^not ok' "$root/try.log") failed" \
    "(see $root/try.log)"
  [ $status = 0 ] || result=1
done
exit $result
