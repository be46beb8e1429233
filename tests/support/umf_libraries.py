#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the library of Intel's Unified Memory Framework from PyPI: libumf.so.1, and libhwloc.so.15, which it needs.

    umf_libraries.py FOLDER

libumf looks for libhwloc beside itself. pip would put both into an environment's lib/ and bring 10 MB more.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# The wheel of tcmlib has libhwloc.
WHEELS = {"umf==1.*": "libumf.so.1", "tcmlib==1.*": "libhwloc.so.15"}


def main():
    out, found = pathlib.Path(sys.argv[1]), {}
    with tempfile.TemporaryDirectory() as name:
        for package, library in WHEELS.items():
            folder = pathlib.Path(name) / library
            done = subprocess.run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q",
                                   "--no-deps", "--only-binary=:all:", "-d", folder, package], check=False)
            if done.returncode != 0:
                return 1
            with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
                member = next((path for path in wheel.namelist() if path.endswith("/" + library)), None)
                if member is None:
                    print(f"umf_libraries.py: the wheel of {package} has no {library}", file=sys.stderr)
                    return 1
                found[library] = wheel.read(member)
    out.mkdir(parents=True, exist_ok=True)
    for library, contents in found.items():
        (out / library).write_bytes(contents)
    return 0


sys.exit(main())
