# SPDX-License-Identifier: Apache-2.0
"""Each public header alone, without one warning, with every compiler that is here: in C as C11 and C++17, and gmm.hpp
in each of its ways. gmm.hpp calls every function of the C headers.

Usage: headers_test.py SOURCE_ROOT LIBGMM_SO LIBCHECK_A PROGRAM...     (PROGRAM: tests/api/gmm_hpp_test.cpp, a policy
each; LIBGMM_SO none: the library has a sanitizer)

A program has only the inline functions that it uses. So its undefined symbols show that the test uses every function.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import interface  # noqa: E402
import tap  # noqa: E402

WARNINGS = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wundef", "-Werror", "-fsyntax-only"]
C11 = ["-x", "c", "-std=c11", "-Wstrict-prototypes"]
CPP = ["-x", "c++", "-Wold-style-cast"]
PLAIN = ["-fno-exceptions", "-fno-rtti"]
# Further warnings that a user's project may enable, by compiler.
MORE_WARNINGS = {"g++": ["-Wuseless-cast", "-Wnon-virtual-dtor"], "clang++": ["-Wnon-virtual-dtor"]}
# Templates are looked at where they are used.
USER = """
#include <gmm/gmm.hpp>
#include <gmm/gmm.hpp>
#include <chrono>
#include <vector>
gmm::outcome<void> use(gmm::context_ref context, gmm::cpu_heap_ref heap, const gmm::result<int> &held);
gmm::outcome<void> use(gmm::context_ref context, gmm::cpu_heap_ref heap, const gmm::result<int> &held) {
  std::vector<int, gmm::allocator<int>> numbers(static_cast<std::size_t>(held.value()), heap);
  const gmm::buffer buffer(context.get(), numbers.data(), 100, gmm::native_stream(numbers.data()));
  const gmm::tag tag{gmm::tag_ref(context, 1)};
  static_cast<void>(gmm::tag::create(context, "tag"));
  static_cast<void>(gmm::trace::begin(context, "trace"));
  static_cast<void>(tag.push());
  static_cast<void>(buffer.as<int>().size());
  static_cast<void>(context.query());
  static_cast<void>(context.resume_wait_for(buffer.data(), 1, std::chrono::seconds(1)));
  static_cast<void>(context.pause_async());
  static_cast<void>(gmm::heap::create(context));
  static_cast<void>(gmm::stream::create(context));
  static_cast<void>(gmm::event::create(context));
  static_cast<void>(gmm::result<int>(held.value_or(3)).value_or(4));
#if GMM_HPP_PMR
  static_cast<void>(gmm::memory_resource(heap).allocate(7));
#endif
  return gmm::snapshot_ref().write([](std::string_view text) { return text.empty(); });
}
"""
WAYS = (["-std=c++17"], ["-std=c++17", *PLAIN], ["-std=c++20", "-DGMM_HPP_EXCEPTIONS=0", "-DGMM_HPP_PMR=0"])


def run(*command, **more):
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, **more)


def compiles(root, compiler, arguments, text):
    done = run(compiler, *WARNINGS, *arguments, "-I", root / "include", "-", input=text)
    return done.returncode == 0, done.stderr.splitlines()


def check_compilers(root, headers):
    for compiler, arguments in (("gcc", C11), ("clang", C11), ("g++", [*CPP, "-std=c++17"]),
                                ("clang++", [*CPP, "-std=c++17"])):
        if shutil.which(compiler) is None:
            tap.skip(f"headers with {compiler}", f"{compiler} is not installed")
            continue
        for header in headers:
            # Twice: the include guard. A use of size_t or bool would fail here, as nothing else is included.
            text = f"#include <gmm/{header}>\n" * 2 + "extern int unused;\n"
            passed, lines = compiles(root, compiler, arguments, text)
            tap.check(passed, f"{header} with {compiler}", lines)
        text = "#include <gmm/gmm.h>\nint f(int a);\nint f(int a) { int b; return 0; }\n"
        tap.check(not compiles(root, compiler, arguments, text)[0], f"a planted warning is an error for {compiler}")
        for way in WAYS if compiler in MORE_WARNINGS else ():
            passed, lines = compiles(root, compiler, [*CPP, *way, *MORE_WARNINGS[compiler]], USER)
            tap.check(passed, f"gmm.hpp with {compiler} {' '.join(way)}", lines)


def check_other_compiler(root, library, check):
    """The library is built by one compiler; a program may be built by another."""
    if shutil.which("clang++") is None or not library.is_file():
        return
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program"
        done = run("clang++", "-std=c++20", *PLAIN, "-O0", "-Wall", "-Wextra", "-Werror", "-I", root / "include",
                   root / "tests/api/gmm_hpp_test.cpp", check, library, "-ldl", "-lpthread",
                   f"-Wl,-rpath,{library.resolve().parent}", "-o", program)
        tap.check(done.returncode == 0, "the test of gmm.hpp builds with clang++", done.stderr.splitlines())
        if done.returncode == 0:
            done = run(program, env=dict(os.environ, GMM_BACKEND="host"), timeout=240)
            tap.check(done.returncode == 0, "it passes with clang++", done.stdout.splitlines())


def main():
    root, library, check, *programs = map(pathlib.Path, sys.argv[1:])
    policies = set()
    for program in programs:
        called = set(re.findall(r"\bU (gmm_\w+)", run("nm", "-D", "--undefined-only", program).stdout))
        lost = set(interface.functions(root / "include/gmm")) - called
        tap.check(not lost, f"{program.name} calls every function", sorted(lost))
        symbols = run("nm", "-C", "--defined-only", program).stdout
        spaces = set(re.findall(r"\bgmm::(\w+)::", symbols))
        tap.check(len(spaces) == 1, f"{program.name} has the names of one policy", sorted(spaces))
        policies |= spaces
    tap.check(policies == {"throwing", "returning"}, "both policies are tested", sorted(policies))
    headers = sorted(path.name for path in (root / "include/gmm").glob("*.h"))
    umbrella = (root / "include/gmm/gmm.h").read_text(encoding="utf-8")
    lines = [name for name in headers if name != "gmm.h" and f"#include <gmm/{name}>" not in umbrella]
    tap.check(not lines, "gmm.h includes every header", lines)
    plain = run("cc", "-E", "-DGMM_PLAIN", "-I", root / "include", root / "include/gmm/gmm.h").stdout.splitlines()
    lines = [line for line in plain if "gmm_" in line and "__attribute__" in line]
    tap.check(len(plain) > 1000 and not lines, "GMM_PLAIN leaves out attributes", lines)
    check_compilers(root, headers)
    check_other_compiler(root, library, check)
    tap.finish()


main()
