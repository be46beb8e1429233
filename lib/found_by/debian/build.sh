#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages of this tree, without files that git does not know: the library, its files for development,
# and the commands.
#
# Usage: lib/found_by/debian/build.sh [--check [--base BASE]] FOLDER
#   FOLDER   where the packages go
#   --check  also makes a clean Debian in a chroot (debootstrap, as root), installs the packages there and runs their
#            tests, as autopkgtest would
#   --base   the chroot is a copy of the folder BASE, which debootstrap makes once a month
# Needs debhelper and what debian/control names. DEB_BUILD_OPTIONS=noopt is for a quick try.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
check='' base=''
[ "${1:-}" != --check ] || { check=1; shift; }
[ "${1:-}" != --base ] || { base=${2:-}; shift 2; }
[ $# = 1 ] || { sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

abi=$(sed -n "s/^abi_version = '\([^']*\)'.*/\1/p" "$root/meson.build")
version=$(sed -n "s/^  version: '\([^']*\)'.*/\1/p" "$root/meson.build")
mkdir "$work/gmm"
commit=$(git -C "$root" stash create)
git -C "$root" archive "${commit:-HEAD}" -- \
  CHANGELOG.md LICENSE README.md meson.build meson_options.txt include lib bindings |
  tar -x -C "$work/gmm"
cp -R "$work/gmm/lib/found_by/debian" "$work/gmm/debian"
cd "$work/gmm"
rm debian/build.sh
sed "s/@ABI@/$abi/g" debian/control.in >debian/control
rm debian/control.in
mv debian/libgmm.install "debian/libgmm$abi.install"
cat >debian/changelog <<END
gmm (${version/rc/\~rc}) unstable; urgency=medium

  * See CHANGELOG.md.

 -- The gmm authors <gmm-authors@lists.invalid>  $(git -C "$root" log -1 --format=%aD)
END
dpkg-buildpackage -b -us -uc
rm -f "$out"/*.deb
cp "$work"/*.deb "$out"
ls -l "$out"/*.deb
[ -n "$check" ] || exit 0

chroot=$work/chroot
# shellcheck disable=SC1091
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
clean_debian() { debootstrap --variant=minbase --include=gcc,libc6-dev,pkg-config "$suite" "$1"; }
if [ -z "$base" ]; then
  clean_debian "$chroot"
else
  if [ -z "$(find "$base/ready-$suite" -mtime -30 2>/dev/null)" ]; then
    rm -rf --one-file-system "$base"
    clean_debian "$base"
    touch "$base/ready-$suite"
  fi
  cp -a "$base/." "$chroot"  # also where BASE is a link
fi
mkdir "$chroot/packages"
cp "$out"/*.deb "$chroot/packages"
cp -R "$work/gmm/debian/tests" "$chroot/packages"
inside() { chroot "$chroot" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive HOME=/root "$@"; }
inside sh -c 'rm -f /packages/*dbgsym*
  apt-get install -y --no-install-recommends /packages/*.deb'
# gmm reads /proc.
mount -t proc proc "$chroot/proc" 2>/dev/null || mount --rbind /proc "$chroot/proc" ||
  echo "there is no /proc in the chroot"
trap 'umount -l "$chroot/proc" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
failed=0
for test in build command; do
  if inside "/packages/tests/$test"; then echo "passed: $test"; else echo "FAILED: $test"; failed=1; fi
done
inside dpkg -P gmm-tools libgmm-dev "libgmm$abi"
[ -z "$(find "$chroot/usr" -name '*gmm*' -not -path '*/share/doc/*')" ] || { echo "FAILED: files stay"; failed=1; }
exit $failed
