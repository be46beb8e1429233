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

LIBRARIES = ("/libumf.so.1", "/libhwloc.so.15")  # of the wheels of umf and tcmlib

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps",
                    "--only-binary=:all:", "-d", folder, "umf==1.*", "tcmlib==1.*"], check=True)
    wheels = [zipfile.ZipFile(path) for path in pathlib.Path(folder).glob("*.whl")]
    found = {name: wheel.read(name) for wheel in wheels for name in wheel.namelist() if name.endswith(LIBRARIES)}
if len(found) != len(LIBRARIES):
    sys.exit(f"umf_libraries.py: the wheels have only {', '.join(found) or 'neither library'}")
out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
for name, contents in found.items():
    (out / pathlib.Path(name).name).write_bytes(contents)
