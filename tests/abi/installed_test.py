# SPDX-License-Identifier: Apache-2.0
"""The files of `meson install`, as a packager looks at them: hardening, names, manual pages, where native code lies.

Usage: installed_test.py SOURCE_ROOT BUILD_ROOT MESON...
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def run(*command):
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)


def is_elf(path):
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


def weak_points(path):
    """Yields each protection that a linked file lacks."""
    header, dynamic, relocations = (run("readelf", "-W", flag, path).stdout for flag in ("-l", "-d", "-h"))
    if "GNU_RELRO" not in header or "NOW" not in dynamic:
        yield f"{path.name}: no full RELRO"
    stack = re.search(r"GNU_STACK.*\s(R\w+)\s", header)
    if stack is None or "E" in stack[1]:
        yield f"{path.name}: the stack is executable"
    if "TEXTREL" in dynamic:
        yield f"{path.name}: relocations in the text"
    if not re.search(r"Type:\s+DYN", relocations):
        yield f"{path.name}: it is at a fixed address"
    for rpath in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic):
        if any(not part.startswith("$ORIGIN") for part in rpath.split(":")):
            yield f"{path.name}: its rpath is {rpath}"


def native_code(share):
    """Native code in a folder for every machine, in archives too."""
    for path in sorted(share.rglob("*")):
        if is_elf(path):
            yield str(path.relative_to(share))
        elif path.suffix in (".jar", ".nupkg") and path.is_file():
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if archive.read(name)[:4] == b"\x7fELF":
                        yield f"{path.relative_to(share)}: {name}"


def main():
    root, build, meson = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        done = run(*meson, "install", "-C", build, "--no-rebuild", "--destdir", folder)
        tap.check(done.returncode == 0, "it installs", [*done.stdout.splitlines(), *done.stderr.splitlines()])
        linked = [path for path in sorted(top.rglob("*")) if is_elf(path)]
        names = [path.name for path in linked]
        tap.check({"libgmm.so", "libgmm_preload.so"} <= {re.sub(r"\.so[.\d]*$", ".so", name) for name in names},
                  "the libraries are there", names)
        bad = [line for path in linked for line in weak_points(path)]
        tap.check(not bad, "linked files are hardened", bad)
        library = next(path for path in linked if path.name.startswith("libgmm.so."))
        undefined = run("nm", "-D", "--undefined-only", library).stdout
        options = run(*meson, "introspect", "--buildoptions", build).stdout
        if re.search(r'"name": "hardening",[^{}]*"value": true', options) or '"hardening"' in options:
            tap.check("__stack_chk_fail" in undefined, "the stack is protected", undefined.splitlines())
        for path in linked:
            soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", path).stdout)
            if path.name.startswith(("libgmm.so", "libgmm_preload.so")) and "site-packages" not in str(path) \
                    and "dist-packages" not in str(path):
                tap.check(soname is not None and re.fullmatch(r"libgmm(_preload)?\.so\.\d+", soname[1]) is not None,
                          f"{path.name} has a versioned soname", [str(soname)])
        for share in top.rglob("share"):
            found = list(native_code(share))
            tap.check(not found, "folders for every machine have no native code", found)
        pages = list(top.rglob("doc/gmm/*"))
        wanted = {"LICENSE"} | ({"CHANGELOG.md"} if (root / "CHANGELOG.md").is_file() else set())
        tap.check({page.name for page in pages} == wanted, "LICENSE and CHANGELOG are installed", map(str, pages))
        manual = {path.name: path for path in top.rglob("man1/*")}
        command = next(iter(top.rglob("bin/gmm")), None)
        if command is None:
            tap.skip("manual pages", "the command was not built")
        else:
            # resume is in the page of pause, and top in that of ps
            words = ["", "info", "pause", "ps", "replay", "run", "serve", "snapshot", "trace"]
            tap.check(set(manual) == {"-".join(filter(None, ("gmm", word))) + ".1" for word in words},
                      "each command has a manual page", sorted(manual))
            for name, page in sorted(manual.items()):
                lint = run("man", "--warnings", "-l", page)
                if lint.returncode in (0, 1, 2, 3) and "not found" not in lint.stderr:
                    tap.check(lint.returncode == 0 and not lint.stderr, f"man reads {name}", lint.stderr.splitlines())
            environment = manual["gmm.1"].read_text(encoding="utf-8")
            tap.check("GMM_BACKEND" in environment and ".SH ENVIRONMENT" in environment, "gmm(1) has the variables")
    tap.finish()


main()
