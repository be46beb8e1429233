#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages of this tree, without files that git does not know: the library, its files for development,
# and the commands.
#
# Usage: lib/found_by/debian/build.sh [--check] FOLDER
#   FOLDER   where the packages go
#   --check  also installs the packages in a copy of .deps/debian, a clean Debian that debootstrap makes (as root), and
#            runs their tests there, as autopkgtest would
# Needs debhelper and what debian/control names. DEB_BUILD_OPTIONS=noopt is for a quick try.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
check=
[ "${1:-}" != --check ] || { check=1; shift; }
[ $# = 1 ] || { sed -n '3,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
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

# shellcheck disable=SC1091,SC2154 # setup_* are its variables
. "$root/tests/support/setup.sh"
setup_debian || { echo "$setup_reason" >&2; exit 1; }
chroot=$work/chroot
cp -a "$setup_deps/debian/." "$chroot" # also where it is a link
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
