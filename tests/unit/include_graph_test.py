# SPDX-License-Identifier: Apache-2.0
"""Reads every #include under lib/ and include/ and fails on an edge that lib/README.md and the table of
lib/engine/README.md do not allow.

Usage: include_graph_test.py SOURCE_ROOT
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT = pathlib.Path(sys.argv[1])
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# The command prints it, and the preload library has a copy of it inside.
TABLE_OF_VARIABLES = ("base/environment.def", "base/environment.h")
# The preload library has a copy of these inside too: its locks have ranks. Its hooks are functions of CUDA's driver.
IN_PRELOAD = ("base/lock.h", "backend/gpu/driver_api.h")
# The server has a copy of base inside, and of the parts of the engine that it shares with its clients.
SERVER_MAY = ("engine/lease/messages.h", "engine/ipc/directory.h", "engine/ipc/keep_messages.h",
              "engine/ipc/peer_server.h", "engine/ipc/policy.h")
# Made by the build, in the build folder.
GENERATED = ("help.h", "page.h", "find_zeros_ptx.h")
# The engine, the interface and the portable part of base include these in angle brackets: headers of the C++ standard
# that every system has, and xxhash in one place.
STANDARD = set("""algorithm array atomic bit cerrno cinttypes climits cstdarg cstddef cstdint cstdio cstdlib cstring
    functional initializer_list limits new string_view tuple type_traits utility""".split())
EXTRA = {("engine/backup/checksum.cpp", "xxhash.h"), ("base/lock.cpp", "execinfo.h"),
         ("engine/trace/format.h", "stdint.h"), ("base/memory_tool.h", "valgrind/memcheck.h")}
# The format is in C, for the writer and the reader. The reader finds blocks by the library's table.
OF_TRACES = [("cli", "engine/trace/format.h"), ("cli", "base/hash_table.h"), ("cli", "base/vector.h"),
             ("cli", "base/utf8.h"), ("cli", "base/device_text.h"), ("cli", "base/call_stack.h"),
             ("cli", "base/text_writer.h")]
# The commands that ask a process have the copies of the server, and the messages.
CONTROL_MAY = (*SERVER_MAY, "engine/ipc/control_messages.h")
CONCRETE_BACKENDS = ("host", "gpu", "sycl")
FACTORY = "engine/context/factory.cpp"


def modules():
    """The table of lib/engine/README.md: {module: what it may include}. A name with a dot is a header."""
    page = (ROOT / "lib/engine/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]*)\|", page, re.MULTILINE)
    return {name: set(re.findall(r"`([\w./]+)`", allowed)) if allowed.strip() != "all" else {row[0] for row in rows}
            for name, allowed in rows}


MODULES = modules()


def objection(source, target):
    """Why `source` may not include `target` (both relative to lib/, or include/gmm/...); None when it may."""
    if target.startswith("include/"):
        return None  # the public types are everybody's
    if source.startswith("include/"):
        return "a public header includes public headers only"
    layer, wanted = source.split("/")[0], target.split("/")[0]
    if source.startswith("cli/serve/") and (wanted == "base" or target in SERVER_MAY):
        return None
    if source.startswith("cli/control/") and (wanted == "base" or target in CONTROL_MAY):
        return None
    if layer in ("cli", "preload"):
        if (layer, target) in OF_TRACES or target in TABLE_OF_VARIABLES:
            return None
        return None if wanted == layer or (layer == "preload" and target in IN_PRELOAD) \
            else f"{layer} uses the public interface only"
    if wanted == "base" or target == "backend/backend.h" and layer in ("backend", "engine"):
        return None
    if layer == "base":
        return "base depends on nothing"
    if layer == "backend":
        own = source.split("/")[1]
        return None if own in CONCRETE_BACKENDS and target.startswith((f"backend/{own}/", "backend/stream_table.h")) \
            else "a backend knows backend.h, stream_table.h, base and itself"
    if layer == "api":
        return None if wanted in ("engine", "api") else "the interface calls the engine only"
    if layer != "engine":
        return f"no rule for the folder {layer}"
    if wanted == "backend":
        return None if source == FACTORY else f"only {FACTORY} names a concrete backend"
    if wanted != "engine":
        return f"the engine does not know {wanted}"
    here, there = source.split("/")[1], target.split("/")[1]
    if here not in MODULES:
        return f"no rule for the module {here}"
    if here == there or {there, target[len("engine/"):]} & MODULES[here]:
        return None
    return f"the module {here} does not know {there}"


def is_foreign(source, header, system):
    """Whether a header in angle brackets belongs to an operating system, and the file is none that may know it."""
    layer, place = source.split("/")[0], source.split("/")[1]
    if source in system or layer not in ("engine", "api", "base", "backend") or place in CONCRETE_BACKENDS:
        return False
    return not header.startswith("gmm/") and header not in STANDARD and (source, header) not in EXTRA


def sources():
    """(path relative to lib/, or include/gmm/...; the includes) of every file."""
    for top in ("include", "lib"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".hh", ".hpp", ".c", ".cpp", ".inc"):
                yield path, str(path.relative_to(ROOT)).removeprefix("lib/"), \
                    INCLUDE.findall(path.read_text(encoding="utf-8"))


def resolve(path, quote, name):
    """The file that is meant, as objection() names it; None when there is none. '' for a header from elsewhere."""
    if name in GENERATED or (quote == "<" and not name.startswith("gmm/")):
        return ""
    if quote == "<":
        return f"include/{name}" if (ROOT / "include" / name).is_file() else None
    for place in (ROOT / "lib", path.parent):
        if (place / name).is_file():
            return str((place / name).resolve().relative_to((ROOT / "lib").resolve()))
    return None


def system_part():
    """The files of base that know the operating system, as lib/meson.build lists them, and their inline headers."""
    listed = re.search(r"^system_sources = files\((.*?)^\)", (ROOT / "lib/meson.build").read_text(encoding="utf-8"),
                       re.MULTILINE | re.DOTALL)
    return {"base/system_lock.h", "base/clock.h", *re.findall(r"'(base/\w+\.cpp)'", listed.group(1))}


def cycles(graph):
    """Headers that include each other in a ring."""
    found, state, stack = [], {}, []

    def visit(node):
        state[node] = 1
        stack.append(node)
        for following in sorted(graph.get(node, ())):
            if state.get(following) == 1:
                found.append(" -> ".join(stack[stack.index(following):] + [following]))
            elif following not in state:
                visit(following)
        stack.pop()
        state[node] = 2

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return found


def problems():
    bad, graph, count, system = [], {}, 0, system_part()
    for path, source, includes in sources():
        for quote, name in includes:
            target = resolve(path, quote, name)
            if quote == "<" and is_foreign(source, name, system):
                bad.append(f"{source} includes <{name}>, which not every system has: put what needs it behind a "
                           "function of base (lib/base/README.md)")
            if name.startswith("cuda") and not source.startswith("backend/gpu/"):
                bad.append(f"{source} includes a header of CUDA: only lib/backend/gpu may")
            if target == "":
                continue
            count += 1
            why = "no such file" if target is None else objection(source, target)
            if why:
                bad.append(f"{source} includes {name}: {why}")
            graph.setdefault(source, set()).add(target or name)
    return bad + [f"includes go in a ring: {ring}" for ring in cycles(graph)], count


PLANTED = [  # file, the include in it, a word of the objection
    ("base/list.h", "engine/heap/heap.h", "base depends on nothing"),
    ("backend/host/memory.cpp", "backend/gpu/driver.h", "a backend knows"),
    ("backend/backend.h", "engine/heap/heap.h", "a backend knows"),
    ("engine/pause/pause.cpp", "engine/ipc/ipc.h", "the module pause does not know ipc"),
    ("engine/pause/pause.cpp", "engine/context/context.h", "does not know context"),
    ("engine/heap/heap.cpp", "engine/limits/tag.h", "the module heap does not know limits"),
    ("engine/heap/heap.cpp", "engine/limits/quota.h", None),
    ("engine/context/context.cpp", "engine/ipc/ipc.h", None),
    ("engine/attic/old.h", "engine/space/span.h", "no rule for the module attic"),
    ("engine/context/context.cpp", "backend/host/memory.h", "names a concrete backend"),
    ("api/memory.cpp", "backend/backend.h", "the interface calls the engine only"),
    ("cli/main.cpp", "engine/heap/heap.h", "public interface only"),
    ("include/gmm/gmm.h", "base/list.h", "public headers only"),
]
PLANTED_SYSTEM = [  # file, the header of a system in it, whether it is refused
    ("engine/heap/heap.cpp", "sys/mman.h", True), ("api/stream.cpp", "time.h", True),
    ("base/registry.cpp", "unistd.h", True), ("backend/backend.h", "fcntl.h", True),
    ("backend/host/memory.cpp", "sys/mman.h", False), ("base/os_memory.cpp", "sys/mman.h", False),
    ("engine/heap/heap.cpp", "cstring", False),
]


def main():
    tap.check(len(MODULES) > 8, "the table of lib/engine/README.md is read", [str(MODULES)])
    wrong = [f"{source} to {target}: {objection(source, target)}" for source, target, words in PLANTED
             if words is None and objection(source, target) or words and words not in str(objection(source, target))]
    wrong += [f"<{header}> in {source}" for source, header, refused in PLANTED_SYSTEM
              if is_foreign(source, header, system_part()) != refused]
    tap.check(not wrong, "planted edges are judged", wrong)
    tap.check(cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b -> c -> b"], "a ring is found")
    bad, count = problems()
    tap.check(count > 20, "the project's own includes are seen", [f"only {count} of them"])
    tap.check(not bad, f"all {count} includes are allowed", bad)
    tap.finish()


main()
