# SPDX-License-Identifier: Apache-2.0
"""The samples of the documents compile and run as they stand there, on the host backend; links and options exist.
tests/clean_room.sh runs the commands.

Usage: documents_test.py ROOT BUILD PYTHON
A language that the build has not, or a package that is not here, skips its samples.
"""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

root, build, python = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
JAR, ASSEMBLY = build / "bindings" / "java" / "gmm.jar", build / "bindings" / "csharp" / "Gmm.dll"
PACKAGE = build / "bindings" / "python"
#: The names that the samples take from the reader's own program.
NAMES = """
import gmm
context = gmm.Context()
buffer, obj = context.alloc(1 << 16, gmm.Kind.HOST, dedicated=True), bytes(8)
"""
#: A sample that says one of these needs a GPU or several processes: tests/bindings/interop tests what it shows.
GPU = (".cuda", "set_enabled_uvm", "gmm.memory_saver", "gmm.nccl", "gmm.job")
ENVIRONMENT = {**os.environ, "GMM_BACKEND": "host", "LD_LIBRARY_PATH": f"{build / 'lib'}:{ASSEMBLY.parent}",
               "PATH": f"{build / 'lib' / 'cli'}:{os.environ['PATH']}", "PYTHONPATH": str(PACKAGE)}


def run(*commands):
    """Runs the commands in the sample's folder, one after the other. Returns what they printed, and the last code."""
    for command in commands:
        done = subprocess.run([str(word) for word in command], cwd=folder, env=ENVIRONMENT, capture_output=True,
                              text=True, timeout=120, check=False)
        if done.returncode != 0:
            break
    return done


def in_c(sample):
    if "int main" not in sample:
        return "it is a part of a program, as tests/opengl has it"
    (folder / "sample.c").write_text(sample)
    return run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", root / "include", "sample.c", "-o", "sample",
                "-L", build / "lib", "-lgmm"], ["./sample"])


def in_python(sample):
    interpreter = python
    if not (PACKAGE / "gmm" / "__init__.py").exists():
        return "the build has no Python"
    if any(word in sample for word in GPU):
        return "it needs a GPU or several processes"
    if "torch" in sample:
        interpreter, sample = root / ".deps" / "torch" / "bin" / "python", "import torch\n" + sample
        if not (root / ".deps" / "torch" / "ready").exists():  # the set-up may still fetch it
            return "PyTorch is not here"
    (folder / "sample.py").write_text(sample if "import gmm" in sample else NAMES + sample)
    return run([interpreter, "sample.py"])


def in_java(sample):
    if not JAR.exists():
        return "the build has no Java"
    imports, rest = re.match(r"((?:import [^\n]*\n)*)(.*)", sample, re.DOTALL).groups()
    (folder / "Sample.java").write_text(
        f"{imports}class Sample {{ public static void main(String[] words) throws Exception {{\n{rest}\n}} }}\n")
    return run(["java", "-cp", JAR, "Sample.java"])


def in_csharp(sample):
    if not ASSEMBLY.exists():
        return "the build has no C#"
    imports, rest = re.match(r"((?:using [^\n(]*\n)*)(.*)", sample, re.DOTALL).groups()
    (folder / "Sample.cs").write_text(f"{imports}class Sample {{ static void Main() {{\n{rest}\n}} }}\n")
    shutil.copy(ASSEMBLY, folder)
    return run(["mcs", "-r:Gmm.dll", "Sample.cs"], ["mono", "Sample.exe"])


RUN = {"c": in_c, "python": in_python, "java": in_java, "csharp": in_csharp}
seen = set()
for page in itertools.chain.from_iterable(map(root.glob, ("*.md", "docs/*.md", "bindings/*/*.md", "examples/*/*.md"))):
    document = str(page.relative_to(root))
    found = re.findall(r"^```(\w+)(?: [\w.]+)?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    for number, (language, sample) in enumerate([block for block in found if block[0] in RUN], 1):
        name = f"{document}, sample {number} in {language}"
        seen.add(language)
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            done = RUN[language](sample)
        if isinstance(done, str):
            tap.skip(name, done)
        else:
            tap.check(done.returncode == 0 and (document != "README.md" or done.stdout == "7\n"), name,
                      done.stdout + done.stderr)
tap.check(seen == set(RUN), "the pages have samples in each language", sorted(seen))

text = (root / "README.md").read_text(encoding="utf-8")
gone = [f"README.md: {target}" for target in re.findall(r"^\./(\S+)", text, re.MULTILINE)
        if not os.access(root / target, os.X_OK)]
for top in ("", "docs", "lib", "bindings", "tests", "examples"):
    for page in (root / top).glob("*.md" if top == "" else "**/*.md"):
        gone += [f"{page.relative_to(root)}: {target}"
                 for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
                 if not (page.parent / target).exists()]
tap.check(not gone, "what the pages point at is there", gone)
options = set(re.findall(r"option\('(\w+)'", (root / "meson_options.txt").read_text(encoding="utf-8")))
text = (root / "docs/building.md").read_text(encoding="utf-8")
unknown = [name for name in re.findall(r"`-D(\w+)=", text) if name not in options | {"default_library", "NAME"}]
tap.check(not unknown, "the options that docs/building.md names exist", unknown)

name = "docs/build.sh makes a site without warnings, whose search finds guides and functions"
needed = (PACKAGE / "gmm", JAR.with_name("gmm-javadoc.jar"), ASSEMBLY, root / ".deps/site/ready")
if not shutil.which("doxygen") or not all(path.exists() for path in needed):
    tap.skip(name, "it needs the bindings, javadoc, doxygen and .deps/site")
else:
    with tempfile.TemporaryDirectory() as site:
        done = subprocess.run([root / "docs/build.sh", site], env={**ENVIRONMENT, "BUILD": str(build)},
                              capture_output=True, text=True, check=False)
        words = pathlib.Path(site, "searchindex.js").read_text(encoding="utf-8") if done.returncode == 0 else ""
    gone = [word for word in ("gmm_alloc", "gmm::context_ref::alloc", "alloc() (gmm.context method)", "Context.alloc",
                              "PauseOptions.retain", "Gmm.GmmContext.Alloc", "Gmm.GmmPauseOptions.Retain",
                              "Vulkan, OpenGL and EGL") if f'"{word}"' not in words]
    tap.check(not gone, name, [done.stdout, done.stderr, *gone])
tap.finish()
