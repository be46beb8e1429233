#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs commands as a newcomer does: in a minimal Debian that debootstrap makes, in a clone of HEAD, as an ordinary user
# who installs packages by sudo, with the limits of a login. The machine lends its network and its certificates.
#
# Usage: tests/clean_room.sh [SUITE [COMMAND...]]
#   SUITE         bookworm (default) or trixie
#   COMMAND       one or more, each run in the clone; default: both commands of the README, one after the other
#   ROOM=FOLDER   where the room is made and stays; default: a new one in /var/tmp that goes at the end. It takes 15 GB.
#
# Needs root or sudo. Runs all commands and ends with the result of the first that failed, or with 77 where no package
# server answers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck disable=SC1091,SC2154 # setup_* are its variables
. tests/support/setup.sh
suite=${1:-bookworm}
shift $(($# > 0))
[ $# -gt 0 ] || set -- ./examples/run.sh ./tests/run.sh

setup_tool debootstrap debootstrap || {
  echo "tests/clean_room.sh: SKIPPED: $setup_reason" >&2
  exit 77
}
room=${ROOM:-}
if [ -z "$room" ]; then
  room=$(mktemp -d /var/tmp/gmm-room-XXXXXX)
  chmod 755 "$room" # it becomes the root folder of the user
  # shellcheck disable=SC2064 # expanded now
  trap "setup_as_root rm -rf --one-file-system '$room'" EXIT
fi
mkdir -p "$room"
room=$(cd "$room" && pwd)
if [ ! -x "$room/usr/bin/git" ]; then
  setup_say "making a minimal Debian ($suite) in $room"
  if ! setup_as_root debootstrap --variant=minbase --include=ca-certificates,sudo,git "$suite" "$room" \
    >"$setup_deps/room.log" 2>&1; then
    tail -n 3 "$setup_deps/room.log" >&2
    echo "tests/clean_room.sh: SKIPPED: debootstrap could not make Debian $suite (see .deps/room.log)" >&2
    exit 77
  fi
fi
git bundle create -q "$setup_deps/room.bundle" HEAD
printf '%s\n' "$@" >"$setup_deps/room.commands"

# Runs as root with mounts and processes of its own, so that nothing of the room stays.
# shellcheck disable=SC2016 # expanded inside
setup_as_root unshare --mount --pid --ipc --uts --fork --kill-child bash -euc '
  room=$1 deps=$2
  mount --make-rprivate /
  mount -t proc proc "$room/proc"
  mount -t sysfs -o ro sysfs "$room/sys"
  mount -t tmpfs -o mode=755 tmpfs "$room/dev"
  for node in null zero full random urandom tty; do
    touch "$room/dev/$node"
    mount --bind "/dev/$node" "$room/dev/$node"
  done
  mkdir "$room/dev/shm" "$room/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$room/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$room/dev/pts"
  ln -s pts/ptmx "$room/dev/ptmx"
  ln -s /proc/self/fd "$room/dev/fd"
  for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%%:*}" "$room/dev/${number#*:}"; done
  cp -L /etc/resolv.conf /etc/hosts "$room/etc/"
  certificates=/etc/ssl/certs/ca-certificates.crt
  [ ! -f "$certificates" ] || cp -L "$certificates" "$room$certificates"
  rm -rf "$room/home/newcomer"
  chroot "$room" bash -ec "id newcomer >/dev/null 2>&1 || useradd --shell /bin/bash newcomer
    install -d -o newcomer -g newcomer /home/newcomer
    echo \"newcomer ALL=(root) NOPASSWD: ALL\" >/etc/sudoers.d/newcomer"
  cp "$deps/room.bundle" "$deps/room.commands" "$room/tmp/"
  ulimit -Sn 1024
  ulimit -Ss 8192
  ulimit -Sl 8192 2>/dev/null || true  # where the machine itself allows less
  exec chroot "$room" setpriv --reuid newcomer --regid newcomer --init-groups --inh-caps=-all \
    env -i HOME=/home/newcomer USER=newcomer LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
    ${PIP_CERT:+PIP_CERT=$PIP_CERT} \
    bash -ec "cd && git -c advice.detachedHead=false clone -q /tmp/room.bundle gmm && cd gmm
      while read -r command <&3; do
        echo \"== clean room: \$command\"
        bash -c \"\$command\" </dev/null || result=\${result:-\$?}
      done 3</tmp/room.commands
      exit \${result:-0}"
' bash "$room" "$setup_deps"
