# SPDX-License-Identifier: Apache-2.0
"""The command gmm of a wheel: it lies inside the package, beside the library that it needs."""
import os
import pathlib
import sys


def main():
    """Becomes the command, with this process's arguments."""
    command = pathlib.Path(__file__).resolve().parent / "_bin" / "gmm"
    try:
        os.execv(command, ["gmm", *sys.argv[1:]])
    except FileNotFoundError:
        sys.exit(f"gmm: there is no {command}: this package was built without zlib's header, which the command needs; "
                 "install it (zlib1g-dev) and build the package again, or use python -m gmm")
