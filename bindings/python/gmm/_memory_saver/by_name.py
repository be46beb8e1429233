# SPDX-License-Identifier: Apache-2.0
"""gmm under the name torch_memory_saver, for programs that import that package.

A folder in front of Python's path has the package and the preload library under the names that programs look for. All
of it are links, so that a process that loads the library by two names has one library.
"""
import argparse
import hashlib
import importlib.metadata
import os
import pathlib
import re
import shlex
import stat
import sys

from gmm._core import compiled
from gmm._memory_saver import preload

NAME = "torch_memory_saver"
PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "_named" / NAME
#: The release whose interface the package has.
VERSION = importlib.metadata.PathDistribution(PACKAGE).version
#: The file names of upstream's wheel: programs build these paths by hand.
LIBRARIES = tuple(f"{NAME}_hook_mode_{mode}{suffix}.abi3.so"
                  for mode in ("preload", "torch") for suffix in ("", "_cu12", "_cu13"))


def make_folder(folder=None):
    """Makes the folder for Python's path, or renews it. Returns its path.

    folder: its place. None: below $XDG_CACHE_HOME/gmm or ~/.cache/gmm, one folder for each installation of gmm.
    """
    library = pathlib.Path(preload.find_library()).resolve()
    if folder is None:
        key = hashlib.sha256(f"{PACKAGE}\n{library}\n{VERSION}".encode()).hexdigest()[:16]
        folder = compiled.cache() / f"{NAME}-{key}"
    folder = pathlib.Path(os.path.abspath(folder))
    if any(letter in str(folder) for letter in ": "):
        raise RuntimeError(f"gmm: {folder} has a blank or colon, which LD_PRELOAD cannot hold; "
                           "name another folder with --folder")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid not in (os.geteuid(), 0) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RuntimeError(f"gmm: other users can write to {folder}, whose files would run in your programs; "
                               "name a folder of your own with --folder")
        # The library looks for libgmm, by its soname, in the folder of the name by which it was loaded.
        path = compiled.loaded("libgmm.so")
        soname = re.match(r"libgmm\.so(\.\d+)?", os.path.basename(path))[0]
        for name, target in {NAME: PACKAGE, f"{NAME}-{VERSION}.dist-info": PACKAGE,
                             **dict.fromkeys(LIBRARIES, library), soname: path}.items():
            link, made = folder / name, folder / f".{name}.{os.getpid()}"
            if not link.is_symlink() or os.readlink(link) != str(target):
                made.unlink(missing_ok=True)
                made.symlink_to(target)
                os.replace(made, link)  # another process never finds a part of it
    except OSError as error:
        raise RuntimeError(f"gmm: the folder {folder} cannot be made: {error}; "
                           "name another one with --folder") from error
    return str(folder)


def main(arguments=None):
    """python -m gmm.memory_saver"""
    parser = argparse.ArgumentParser(prog="python -m gmm.memory_saver", description=(
        "Makes the name torch_memory_saver gmm's: for a command and every process that it starts, or, without a "
        "command, by a variable for the shell: eval \"$(python -m gmm.memory_saver)\"."))
    parser.add_argument("--folder", help="where the package's links lie; default: below ~/.cache/gmm")
    actions = parser.add_subparsers(dest="action", metavar="run COMMAND...")
    run = actions.add_parser("run", help="run a command")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    chosen = parser.parse_args(arguments)
    try:
        path = make_folder(chosen.folder)
    except RuntimeError as error:
        parser.exit(1, f"{error}\n")
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", path)]
    python_path = os.pathsep.join([path, *others])
    if chosen.action is None:
        print(f"export PYTHONPATH={shlex.quote(python_path)}")
        return
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("run needs a command")
    os.environ["PYTHONPATH"] = python_path
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        parser.exit(127 if isinstance(error, FileNotFoundError) else 126, f"{command[0]}: {error.strerror}\n")
