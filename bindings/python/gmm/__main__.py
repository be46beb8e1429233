# SPDX-License-Identifier: Apache-2.0
"""python -m gmm: the command gmm. In a wheel it lies inside the package, beside the library that it needs."""
import os
import pathlib
import shutil
import sys


def main():
    """Becomes the command, with this process's arguments."""
    command = pathlib.Path(__file__).resolve().parent / "_bin" / "gmm"
    found = command if command.exists() else shutil.which("gmm")
    if found is None:
        sys.exit(f"gmm: there is no {command}: this package was built without zlib's header, which the command needs; "
                 "install it (zlib1g-dev) and build the package again")
    os.execv(found, ["gmm", *sys.argv[1:]])


if __name__ == "__main__":
    main()
