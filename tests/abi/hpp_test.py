# SPDX-License-Identifier: Apache-2.0
"""gmm/gmm.hpp has every function and field of the C headers, and compiles without one warning.

Usage: hpp_test.py SOURCE_ROOT LIBGMM_SO LIBCHECK_A PROGRAM...     (PROGRAM: tests/api/gmm_hpp_test.cpp, a policy each)

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

WARNINGS = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wundef", "-Wold-style-cast", "-Werror"]
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
# Fields that gmm.hpp sets itself: `flags` only where it must be 0.
OWN = {"struct_size", "reserved"}


def run(*command, **more):
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, **more)


def structs(text):
    """Name to fields and body of every struct in a text."""
    text = re.sub(r"/\*.*?\*/", lambda m: " must_be_0 " if "must be 0" in m[0] else " ", text, flags=re.DOTALL)
    found = {}
    for name, body in re.findall(r"^(?:typedef )?struct (\w+) \{(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = []
        for line in re.sub(r"\[\[nodiscard\]\].*", "", body, flags=re.DOTALL).split(";"):
            line = re.sub(r"\bmust_be_0\b", "", line)
            match = re.search(r"(\w+)\s*(?:\[\w+\])?\s*(?:=.*)?$", line.strip(), re.DOTALL)
            if match:
                fields.append(match[1])
        zero = "flags" in fields and re.search(r"\bflags;\s*must_be_0", body) is not None
        found[name] = ([field for field in fields if field not in OWN and not (zero and field == "flags")], body)
    return found


def called_by(program):
    """Functions of gmm that a program calls."""
    return set(re.findall(r"\bU (gmm_\w+)", run("nm", "-D", "--undefined-only", program).stdout))


def check_text(root):
    names = set(interface.functions(root / "include/gmm"))
    text = (root / "include/gmm/gmm.hpp").read_text(encoding="utf-8")
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    used = set(re.findall(r"\b(gmm_\w+)\b(?=[(),>])", code)) & names
    tap.check(used == names, f"gmm.hpp calls the {len(names)} functions of the headers", sorted(names ^ used))

    own = structs(text)
    lines = []
    for header in sorted((root / "include/gmm").glob("*.h")):
        for name, (fields, _) in structs(header.read_text(encoding="utf-8")).items():
            if name.endswith("_desc") and name != "gmm_scope_desc":
                here, body = own.get(name[len("gmm_"):], ([], ""))
                if here != fields:
                    lines.append(f"{name}: {', '.join(fields)}; in gmm.hpp: {', '.join(here)}")
                made = re.search(r"return \{(.*?)\};", body, re.DOTALL)
                order = re.findall(r"\b\w+\b", made[1]) if made else []
                if [word for word in order if word in fields] != fields:
                    lines.append(f"{name}: c() makes {' '.join(order)}")
    tap.check(not lines, "the descriptors of gmm.hpp have the fields of C in their order", lines)
    planted = structs("typedef struct gmm_x_desc {\n  uint32_t struct_size;\n  uint32_t flags; /**< must be 0 */\n"
                      "  void *a;\n  uint64_t b[3];\n} gmm_x_desc;\n")
    tap.check(planted["gmm_x_desc"][0] == ["a", "b"], "the fields of a struct are seen", [str(planted)])


def check_compilers(root, library, check, folder):
    source = pathlib.Path(folder) / "source.cpp"
    source.write_text(USER)
    for compiler in ("g++", "clang++"):
        if shutil.which(compiler) is None:
            tap.skip(f"gmm.hpp with {compiler}", f"{compiler} is not installed")
            continue
        for way in WAYS:
            done = run(compiler, *way, *WARNINGS, *MORE_WARNINGS[compiler], "-fsyntax-only",
                       "-I", root / "include", source)
            tap.check(done.returncode == 0, f"gmm.hpp with {compiler} {' '.join(way)}", done.stderr.splitlines())
    # The library is built by one compiler; a program may be built by another.
    if shutil.which("clang++") is not None and library is not None:
        program = pathlib.Path(folder) / "program"
        done = run("clang++", "-std=c++20", *PLAIN, "-O0", "-Wall", "-Wextra", "-Werror", "-I", root / "include",
                   root / "tests/api/gmm_hpp_test.cpp", check, library, "-ldl", "-lpthread",
                   f"-Wl,-rpath,{library.resolve().parent}", "-o", program)
        tap.check(done.returncode == 0, "its test builds with clang++", done.stderr.splitlines())
        if done.returncode == 0:
            done = run(program, env=dict(os.environ, GMM_BACKEND="host"), timeout=240)
            tap.check(done.returncode == 0, "its test passes with clang++", done.stdout.splitlines())


def main():
    root, library, check, *programs = map(pathlib.Path, sys.argv[1:])
    check_text(root)
    names = set(interface.functions(root / "include/gmm"))
    policies = set()
    for program in programs:
        lost = names - called_by(program)
        tap.check(not lost, f"{program.name} calls every function", sorted(lost))
        symbols = run("nm", "-C", "--defined-only", program).stdout
        spaces = set(re.findall(r"\bgmm::(\w+)::", symbols))
        tap.check(len(spaces) == 1 and spaces <= {"throwing", "returning"},
                  f"{program.name} has the names of one policy", sorted(spaces))
        policies |= spaces
    tap.check(policies == {"throwing", "returning"}, "both policies are tested", sorted(policies))
    with tempfile.TemporaryDirectory() as folder:
        check_compilers(root, library if library.is_file() else None, check, folder)
    tap.finish()


main()
