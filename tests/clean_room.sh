#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs commands as a newcomer does: in a minimal Debian that debootstrap makes, in a clone of HEAD, as an ordinary user
# who installs packages by sudo, with the limits of a login. The machine lends its network and its certificates.
#
# Usage: tests/clean_room.sh [SUITE [COMMAND...]]
#   SUITE         bookworm (default) or trixie
#   COMMAND       one or more, each run in the clone; default: the blocks "```sh" of README.md and the guides, in order.
#                 A block begins in the clone, and each line is a command. A block "```c NAME" is a file of that name.
#   ROOM=FOLDER   where the room is made and stays; default: a new one in /var/tmp that goes at the end. It takes 15 GB.
#
# Needs root or sudo. Runs all commands and ends with one line: N passed, N failed, N skipped. Without a package server
# it is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck disable=SC1091,SC2154 # setup_* are its variables
. tests/support/setup.sh
suite=${1:-bookworm}
shift $(($# > 0))

# end_early failed|skipped REASON
end_early() {
  local word=$1
  [ "$word" = skipped ] || word=FAILED
  printf '%-8s the clean room (Debian %s): %s\n' "$word" "$suite" "$2"
  [ "$word" = FAILED ] || { echo "0 passed, 0 failed, 1 skipped" && exit 0; }
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
}
setup_may_install || end_early failed "it needs root or sudo"
setup_needs 'command -v debootstrap' debootstrap || end_early skipped "$setup_reason"
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
  : >"$setup_deps/room.log"
  if ! setup_logged "$setup_deps/room.log" \
    setup_as_root debootstrap --variant=minbase --include=ca-certificates,sudo,git "$suite" "$room"; then
    tail -n 3 "$setup_deps/room.log" >&2
    ! grep -q "Failed getting release file" "$setup_deps/room.log" || end_early skipped "no package server answers"
    end_early failed "debootstrap could not make it (see .deps/room.log)"
  fi
fi
git bundle create -q "$setup_deps/room.bundle" HEAD
rm -rf "$setup_deps/room.files"
mkdir "$setup_deps/room.files"
if [ $# -gt 0 ]; then
  printf '%s\n' "$@" >"$setup_deps/room.commands"
else
  awk -v folder="$setup_deps/room.files" '
    /^```/ {
      file = file != "" ? "" : $2 != "" ? folder "/" $2 : $1 == "```sh" ? "/dev/stdout" : "/dev/null"
      if (file == "/dev/stdout") print "cd ~/gmm # " FILENAME
      next
    }
    file != "" { print > file }' README.md docs/*.md bindings/*/README.md examples/*/README.md \
    >"$setup_deps/room.commands"
fi

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
  rm -rf "$room/tmp/room.files"
  cp -r "$deps/room.bundle" "$deps/room.commands" "$deps/room.files" "$room/tmp/"
  ulimit -Sn 1024
  ulimit -Ss 8192
  ulimit -Sl 8192 2>/dev/null || true  # where the machine itself allows less
  exec chroot "$room" setpriv --reuid newcomer --regid newcomer --init-groups --inh-caps=-all \
    env -i HOME=/home/newcomer USER=newcomer LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
    ${PIP_CERT:+PIP_CERT=$PIP_CERT} \
    bash -c "cd && git -c advice.detachedHead=false clone -q /tmp/room.bundle gmm && cd gmm || exit 1
      cp -r /tmp/room.files/. .
      passed=0 failed=()
      while read command <&3; do # joins lines that end with a backslash
        echo \"== clean room, \$SECONDS s: \$command\"
        eval \"\$command\" </dev/null || { failed+=(\"\$command\"); continue; }
        [[ \$command = cd\ * ]] || passed=\$((passed + 1))
      done 3</tmp/room.commands
      for command in \"\${failed[@]}\"; do echo \"FAILED   clean room: \$command\"; done
      echo \"\$passed passed, \${#failed[@]} failed, 0 skipped\"
      [ \${#failed[@]} = 0 ]" 2>&1
' bash "$room" "$setup_deps"
