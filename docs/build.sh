#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the site: the guides, the reference of C, C++, Python, Java and C#, and one search over all of it.
#
# Usage: docs/build.sh [FOLDER]      default: build/site
#
# Installs what is missing and builds the bindings first. BUILD=FOLDER takes that finished build and installs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/setup.sh
site=$(realpath -m "${1:-build/site}")
if [ -z "${BUILD:-}" ]; then
  setup_required && setup_options && setup_site && setup_configure build "${setup_options[@]}" ||
    { echo "The site cannot be made: $setup_reason" >&2 && exit 1; }
  mapfile -t targets < <(setup_targets build bindings/)
  setup_build build "${targets[@]}"
fi
bindings=$(realpath "${BUILD:-build}")/bindings
python=$setup_deps/site/bin/python
style=$(echo "$setup_deps"/site/lib/python3*/site-packages/doxygen_awesome_css/doxygen-awesome.css)
export site style

setup_say "the reference of C, C++, C# and Java"
mkdir -p "$site"/c{,sharp}
part=c language='C and C++' sources=include/gmm filter="sed '/namespace GMM_HPP_POLICY/d'" doxygen docs/Doxyfile
# doxygen 1.9 takes the body of such a constructor for more of its initializers.
part=csharp language='C#' sources="bindings/csharp/src $bindings/csharp/generated/values" \
  filter="sed 's/ : base(.*) => .*/ { }/'" doxygen docs/Doxyfile
"$python" -m zipfile -e "$bindings/java/gmm-javadoc.jar" "$site/java"
sed -i 's|id="projectname">gmm|id="projectname"><a href="../index.html">gmm</a>|' "$site"/c{,sharp}/*.html
sed -i 's|id="navbar-top-firstrow".*|&<li><a href="../../../index.html">gmm</a></li>|' "$site"/java/io/gmm/*.html

setup_say "the guides and the reference of Python"
PYTHONPATH=$bindings/python "$python" -m sphinx -q -E -W --keep-going -d "$site/.doctrees" -c docs . "$site"
cp "$site/README.html" "$site/index.html"
echo "The site is $site/index.html"
