# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over lib/, one case a group of files.

Usage: tidy_test.py SOURCE_ROOT BUILD_ROOT
With TEST_LINT=changed it is skipped where lib/ does not differ from the main branch.

Files that are compiled alike are read as one translation unit, because most of the time goes into headers. Where that
unit does not compile, since two files use one name, its files are read one by one.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def git(root, *words):
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def is_unchanged(root):
    """Whether what clang-tidy reads is as on the main branch. Where git does not know, it is not."""
    read = ("--", "lib", "include", ".clang-tidy", "tests/unit/tidy_test.py")
    bases = [git(root, "merge-base", "HEAD", branch) for branch in ("origin/main", "main", "HEAD")]
    base = next(filter(None, bases), None)
    return base is not None and git(root, "diff", "--name-only", base, *read) == "" \
        and git(root, "ls-files", "--others", "--exclude-standard", *read) == ""


def flags_of(build):
    """The arguments that each source is compiled with, as far as they matter to another compiler."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        kept, skip = [], False
        for word in shlex.split(entry["command"])[1:]:
            if skip:
                skip = False
            elif word in ("-o", "-MF", "-MQ", "-c", "-include"):
                skip = True
            elif word == "-isystem" or re.match(r"-(I|D|U|W|std=|isystem|pthread|f(no-)?(exceptions|rtti|PIC))", word):
                kept.append(word)
            elif kept and kept[-1] == "-isystem":
                kept.append(word)
        path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        flags = entry["directory"], tuple(word for word in kept if not word.endswith(".p"))
        for source in sources_of(path):
            found.setdefault(source, flags)
    return found


def sources_of(path):
    """The files that Meson has the compiler read as one, or the file itself."""
    if not re.search(r"-unity\d+\.cpp$", path.name) or not path.is_file():
        return [path]
    return [pathlib.Path(name).resolve() for name in re.findall(r"#include<(.*)>", path.read_text(encoding="utf-8"))]


def groups_of(sources, flags):
    """The files that are compiled alike."""
    alike = {}
    for source in sources:
        alike.setdefault(flags.get(source), []).append(source)
    return [(files, flag) for flag, files in alike.items()]


def tidy(root, build, source, flag):
    # GCC's command line is read: clang does not know all of its warnings.
    command = ["clang-tidy", "--quiet", f"--config-file={root / '.clang-tidy'}",
               "--extra-arg=-Wno-unknown-warning-option"]
    where, words = flag or (build, None)
    rest = ["-p", str(build), str(source)] if words is None else [str(source), "--", "-x", "c++", *words]
    return subprocess.run([*command, *rest], capture_output=True, text=True, check=False, cwd=where)


def check_group(root, build, folder, number, group):
    files, flag = group
    if len(files) > 1:
        unit = pathlib.Path(folder) / f"{number}.cpp"
        unit.write_text("".join(f'#include "{file}"  // NOLINT(bugprone-suspicious-include)\n' for file in files))
        done = tidy(root, build, unit, flag)
        if "[clang-diagnostic-error" not in done.stdout:
            return [(files, done)]
    return [([file], tidy(root, build, file, flag)) for file in files]


def main():
    root, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    if shutil.which("clang-tidy") is None:
        tap.skip("clang-tidy", "clang-tidy is not installed")
        tap.finish()
    if os.environ.get("TEST_LINT") == "changed" and is_unchanged(root):
        tap.skip("clang-tidy", "lib/ and include/ are as on the main branch")
        tap.finish()
    flags, sources = flags_of(build), sorted((root / "lib").rglob("*.cpp"))

    # Other tests run on the other half of the processors.
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        groups = enumerate(groups_of(sources, flags))
        jobs = [pool.submit(check_group, root, build, folder, number, group) for number, group in groups]
        for job in jobs:
            for files, done in job.result():
                name = ", ".join([str(files[0].relative_to(root)), *(file.name for file in files[1:])])
                tap.check(done.returncode == 0, name, (done.stdout + done.stderr).splitlines()[:30])
    tap.finish()


main()
