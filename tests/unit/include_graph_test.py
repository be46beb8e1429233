# SPDX-License-Identifier: Apache-2.0
"""Reads every #include under lib/ and include/ and fails on an edge that the table below does not allow.

Usage: include_graph_test.py SOURCE_ROOT
"""

import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# The modules of the engine, and those that each may include beside itself, base and backend.h. An entry with a slash is
# one header. A heap charges quotas, which know nothing of heaps: limits/quota.h includes base only. A free ends what
# the backup keeps of a block, so the store lies below the heap. Snapshots name tags.
ROOMS = {
    "space": (),
    "heap": ("space", "backup", "limits/quota.h"),
    "limits": ("heap", "space"),
    "range": ("heap", "space"),
    "backup": ("space",),
    "watch": ("limits", "heap", "space"),
    "lease": (),
    "pause": ("backup", "limits", "watch", "heap", "space"),
    "ipc": ("heap", "space"),
    "trace": ("limits", "heap", "space"),
    "context": ("space", "heap", "limits", "range", "backup", "watch", "lease", "pause", "ipc",
                "trace"),
}
# What the command prints, and what the preload library has a copy of inside.
TABLE_OF_VARIABLES = ("base/environment.def", "base/environment.h")
# The preload library has a copy of these inside too: its locks have ranks. Its hooks are functions of CUDA's driver.
IN_PRELOAD = ("base/lock.h", "backend/cuda/driver_api.h")
# The server has a copy of base inside, and of the parts of the engine that it shares with its clients.
SERVER_MAY = ("engine/lease/messages.h", "engine/ipc/directory.h", "engine/ipc/peer_user.h")
# Made by the build, in the build folder.
GENERATED = ("help.h", "find_zeros_ptx.h")
# What the engine, the interface and the portable part of base may include in angle brackets: headers of the C++
# standard that every system has, and xxhash in one place.
STANDARD = set("""algorithm array atomic bit cerrno cinttypes climits cstdarg cstddef cstdint cstdio cstdlib cstring
    functional initializer_list limits new type_traits utility""".split())
EXTRA = {("engine/backup/checksum.cpp", "xxhash.h"), ("base/lock.cpp", "execinfo.h"),
         ("engine/trace/format.h", "stdint.h")}
FORMAT_OF_TRACES = ("cli", "engine/trace/format.h")  # in C, for the writer and the reader
CONCRETE_BACKENDS = ("host", "cuda", "sycl")
FACTORY = "engine/context/factory.cpp"


def objection(source, target):
    """Why `source` may not include `target` (both relative to lib/, or include/gmm/...); None when it may."""
    if target.startswith("include/"):
        return None  # the public types are everybody's
    if source.startswith("include/"):
        return "a public header includes public headers only"
    layer, wanted = source.split("/")[0], target.split("/")[0]
    if source.startswith("cli/serve/") and (wanted == "base" or target in SERVER_MAY):
        return None
    if layer in ("cli", "preload"):
        if (layer, target) == FORMAT_OF_TRACES:
            return None
        if target in TABLE_OF_VARIABLES or (layer == "preload" and target in IN_PRELOAD):
            return None
        return None if wanted == layer else f"{layer} uses the public interface only"
    if wanted == "base":
        return None
    if layer == "base":
        return "base depends on nothing"
    if layer == "backend":
        if target == "backend/backend.h":
            return None
        own = source.split("/")[1]
        if own in CONCRETE_BACKENDS and target.startswith(f"backend/{own}/"):
            return None
        return "a backend knows backend.h, base and itself"
    if layer == "api":
        return None if wanted in ("engine", "api") else "the interface calls the engine only"
    if layer != "engine":
        return f"no rule for the folder {layer}"
    if wanted == "backend":
        if target == "backend/backend.h" or source == FACTORY:
            return None
        return f"only {FACTORY} names a concrete backend"
    if wanted != "engine":
        return f"the engine does not know {wanted}"
    here, there = source.split("/")[1], target.split("/")[1]
    if here not in ROOMS:
        return f"no rule for the room {here}"
    if here == there or there in ROOMS[here] or target[len("engine/"):] in ROOMS[here]:
        return None
    return f"the room {here} does not know {there}"


def sources(root):
    for top in ("include", "lib"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".hh", ".hpp", ".c", ".cpp", ".inc"):
                yield path


def edges(root):
    """(source, target, text) of every include of the project's own files; target None when there is no such file."""
    for path in sources(root):
        source = str(path.relative_to(root))
        source = source[len("lib/"):] if source.startswith("lib/") else source
        for quote, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if name in GENERATED:
                continue
            if quote == "<":
                if name.startswith("gmm/"):
                    yield source, f"include/{name}" if (root / "include" / name).is_file() else None, name
                continue
            if (root / "lib" / name).is_file():
                yield source, name, name
            elif (path.parent / name).is_file():
                yield source, str((path.parent / name).resolve().relative_to((root / "lib").resolve())), name
            else:
                yield source, None, name


def system_part(root):
    """The files of base that know the operating system, as lib/meson.build lists them, and their inline headers."""
    build = root / "lib/meson.build"
    listed = build.read_text(encoding="utf-8") if build.is_file() else ""
    found = re.search(r"^system_sources = files\((.*?)^\)", listed, re.MULTILINE | re.DOTALL)
    return {"base/system_lock.h", "base/clock.h", *re.findall(r"'(base/\w+\.cpp)'", found.group(1) if found else "")}


def foreign_headers(root):
    """Headers of an operating system outside of base's system part and of the backends."""
    system = system_part(root)
    for path in sources(root):
        source = str(path.relative_to(root))
        source = source[len("lib/"):] if source.startswith("lib/") else source
        if source in system or source.split("/")[0] not in ("engine", "api", "base", "backend"):
            continue
        if source.startswith("backend/") and source.split("/")[1] in CONCRETE_BACKENDS:
            continue
        for quote, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if quote == "<" and not name.startswith("gmm/") and name not in STANDARD and (source, name) not in EXTRA:
                yield (f"{source} includes <{name}>, which not every system has: put what needs it behind a function "
                       "of base (lib/base/README.md)")


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


def problems(root):
    bad, graph, count = [], {}, 0
    for source, target, text in edges(root):
        count += 1
        if target is None:
            bad.append(f"{source} includes {text}: no such file")
            continue
        why = objection(source, target)
        if why:
            bad.append(f"{source} includes {target}: {why}")
        graph.setdefault(source, set()).add(target)
    bad += [f"includes go in a ring: {ring}" for ring in cycles(graph)]
    for path in sources(root):
        name = str(path.relative_to(root))
        if name.startswith("lib/backend/cuda/"):
            continue
        if re.search(r"#\s*include\s*[<\"]cuda", path.read_text(encoding="utf-8")):
            bad.append(f"{name} includes a header of CUDA: only lib/backend/cuda may")
    bad += foreign_headers(root)
    return bad, count


PLANTED = [  # file, the include in it, a word of the objection
    ("base/list.h", "engine/heap/heap.h", "base depends on nothing"),
    ("backend/host/memory.cpp", "backend/cuda/driver.h", "a backend knows"),
    ("backend/backend.h", "engine/heap/heap.h", "a backend knows"),
    ("engine/pause/pause.cpp", "engine/ipc/ipc.h", "the room pause does not know ipc"),
    ("engine/ipc/server.cpp", "engine/limits/limits.h", "the room ipc does not know limits"),
    ("engine/pause/pause.cpp", "engine/context/context.h", "does not know context"),
    ("engine/heap/heap.cpp", "engine/pause/pause.h", "the room heap does not know pause"),
    ("engine/heap/heap.cpp", "engine/limits/tag.h", "the room heap does not know limits"),
    ("engine/space/span.h", "engine/heap/heap.h", "the room space does not know heap"),
    ("engine/attic/old.h", "engine/space/span.h", "no rule for the room attic"),
    ("engine/context/context.cpp", "backend/host/memory.h", "names a concrete backend"),
    ("api/memory.cpp", "backend/backend.h", "the interface calls the engine only"),
    ("cli/main.cpp", "engine/heap/heap.h", "public interface only"),
    ("engine/heap/heap.h", "engine/heap/gone.h", "no such file"),
    ("engine/heap/heap.h", "engine/heap/ring.h", "in a ring"),
]


PLANTED_SYSTEM = [  # file, the header of a system in it, whether it is refused
    ("engine/heap/heap.cpp", "sys/mman.h", True),
    ("engine/ipc/broker.h", "pthread.h", True),
    ("api/event.cpp", "time.h", True),
    ("base/registry.cpp", "unistd.h", True),
    ("backend/backend.h", "fcntl.h", True),
    ("backend/host/memory.cpp", "sys/mman.h", False),
    ("base/os_memory.cpp", "sys/mman.h", False),
    ("engine/heap/heap.cpp", "cstring", False),
]


def finds_system(source, header):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        path = root / "lib" / source
        path.parent.mkdir(parents=True)
        (root / "lib/meson.build").write_text("system_sources = files(\n  'base/os_memory.cpp',\n)\n")
        path.write_text(f"#include <{header}>\n")
        return any(header in line for line in problems(root)[0])


def finds(source, target, words):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "include/gmm").mkdir(parents=True)
        for name in (target, source):
            path = root / "lib" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != "engine/heap/gone.h":
                path.write_text('#include "engine/heap/heap.h"\n' if name == "engine/heap/ring.h" else "")
        (root / "lib" / source).write_text(f'#include "{target}"\n')
        return any(words in line for line in problems(root)[0])


def main():
    root = pathlib.Path(sys.argv[1])
    for source, target, words in PLANTED:
        tap.check(finds(source, target, words), f"a planted edge is found: {source} to {target}")
    for source, header, refused in PLANTED_SYSTEM:
        tap.check(finds_system(source, header) == refused,
                  f"<{header}> in {source} is {'refused' if refused else 'allowed'}")
    bad, count = problems(root)
    tap.check(count > 20, "the project's own includes are seen", [f"only {count} of them"])
    tap.check(not bad, f"all {count} includes are allowed", bad)
    tap.finish()


main()
