#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two builds in different folders, without a compiler cache, give the same bytes. The first JDK on the PATH is one of
# version 8, which writes its version to stderr: the build goes on without Java.
# Usage: reproducible_test.sh SOURCE_ROOT MESON...
set -eu
root=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1
mkdir "$folder/jdk8"
printf '#!/bin/sh\necho javac 1.8.0_422 >&2\n' | tee "$folder/jdk8/javac" >"$folder/jdk8/jar"
chmod +x "$folder"/jdk8/*
for place in one another/deeper; do
  mkdir -p "$folder/$place"
  for part in LICENSE meson.build meson_options.txt include lib bindings; do
    cp -R "$root/$part" "$folder/$place/$part"
  done
  # With the names of files in it: debug information, as much of it as has names. With the assertions of libstdc++,
  # which some distributions and, without optimisation, GCC 15 switch on: they must not need libstdc++.
  PATH=$folder/jdk8:$PATH "$@" setup "$folder/$place/made-in-${place%%/*}" "$folder/$place" \
    -Doptimization=0 -Ddebug=false -Dc_args=-g1 '-Dcpp_args=-g1 -D_GLIBCXX_ASSERTIONS' -Dtests=false \
    -Dpython=disabled -Djava=auto -Dcsharp=disabled \
    >"$folder/log" 2>&1 &&
    "$@" compile -C "$folder/$place/made-in-${place%%/*}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
done
different=0
cd "$folder/one/made-in-one"
for file in lib/libgmm.a lib/libgmm.so.*.*.* lib/preload/libgmm_preload.so.*.*.* lib/cli/gmm lib/cli/gmm.1; do
  [ -f "$file" ] || [ "$file" != lib/libgmm.a ] || { echo "$file was not built" >&2; exit 1; }
  case $file in *.p) continue ;; esac
  if cmp "$file" "$folder/another/deeper/made-in-another/$file"; then
    echo "the same: $file"
  else
    different=1
  fi
done
exit $different
