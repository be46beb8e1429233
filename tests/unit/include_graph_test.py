# SPDX-License-Identifier: Apache-2.0
"""Reads every #include under lib/ and include/ and fails on an edge that lib/README.md does not allow.

Usage: include_graph_test.py SOURCE_ROOT
"""

import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# The engine's features. A file belongs to the feature whose name its own name is, or begins with: ipc_server.cpp to ipc.
# A feature knows the core, never another feature. backup and resume are parts of pause.
FEATURES = ("pause", "residency", "ipc", "limits", "stats", "pin", "trace")
FEATURE_OF = {"backup": "pause", "resume": "pause"}
CONCRETE_BACKENDS = ("host", "cuda", "sycl")
FACTORY = "engine/context_factory.cpp"
# What stands above the features and knows them all.
CONTEXT = ("context", "query", "ticket")


def feature(path):
    stem = pathlib.PurePath(path).stem
    for name in FEATURES + tuple(FEATURE_OF):
        if stem == name or stem.startswith(name + "_"):
            return FEATURE_OF.get(name, name)
    return None


def is_context(path):
    stem = pathlib.PurePath(path).stem
    return any(stem == name or stem.startswith(name + "_") for name in CONTEXT)


def objection(source, target):
    """Why `source` may not include `target` (both relative to lib/, or include/gmm/...); None when it may."""
    if target.startswith("include/"):
        return None  # the public types are everybody's
    if source.startswith("include/"):
        return "a public header includes public headers only"
    layer, wanted = source.split("/")[0], target.split("/")[0]
    if layer in ("cli", "preload"):
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
    if is_context(source):
        return None
    if is_context(target):
        return "only the context and the interface know the context"
    here, there = feature(source), feature(target)
    if there is None or here == there:
        return None
    if here is None:
        return f"the core does not know its features ({there})"
    return f"the feature {here} does not know the feature {there}"


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
    return bad, count


PLANTED = [  # file, the include in it, a word of the objection
    ("base/list.h", "engine/heap.h", "base depends on nothing"),
    ("backend/host/memory.cpp", "backend/cuda/driver.h", "a backend knows"),
    ("backend/backend.h", "engine/heap.h", "a backend knows"),
    ("engine/pause.cpp", "engine/stats.h", "the feature pause does not know the feature stats"),
    ("engine/ipc_server.cpp", "engine/limits.h", "the feature ipc does not know"),
    ("engine/pause.cpp", "engine/context.h", "know the context"),
    ("engine/heap.cpp", "engine/pause.h", "the core does not know"),
    ("engine/context.cpp", "backend/host/memory.h", "names a concrete backend"),
    ("api/memory.cpp", "backend/backend.h", "the interface calls the engine only"),
    ("cli/main.cpp", "engine/heap.h", "public interface only"),
    ("engine/heap.h", "engine/gone.h", "no such file"),
    ("engine/heap.h", "engine/ring.h", "in a ring"),
]


def finds(source, target, words):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "include/gmm").mkdir(parents=True)
        for name in (target, source):
            path = root / "lib" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != "engine/gone.h":
                path.write_text('#include "engine/heap.h"\n' if name == "engine/ring.h" else "")
        (root / "lib" / source).write_text(f'#include "{target}"\n')
        return any(words in line for line in problems(root)[0])


def main():
    root = pathlib.Path(sys.argv[1])
    for source, target, words in PLANTED:
        tap.check(finds(source, target, words), f"a planted edge is found: {source} to {target}")
    bad, count = problems(root)
    tap.check(count > 20, "the project's own includes are seen", [f"only {count} of them"])
    tap.check(not bad, f"all {count} includes are allowed", bad)
    tap.finish()


main()
