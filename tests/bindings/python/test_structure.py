# SPDX-License-Identifier: Apache-2.0
"""The package's modules: no import cycle, rooms in layers, and `import gmm` loads no integration."""
import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

import gmm
import gmm.cupy
import gmm.memory_saver
import gmm.multiprocessing
import gmm.nccl
import gmm.rmm
import gmm.ucx
import gmm.vllm

#: What a function-level import declares when it may close a cycle, because it runs long after both modules are loaded.
LAZY = re.compile(r"#\s*lazy:\s*(\S.*)")
#: What `import gmm` loads besides the C module: the rooms that every program needs.
LOADED = {"_context", "_core", "_default", "_multiprocessing", "multiprocessing"}
#: Libraries that `import gmm` must not load, and modules that only they need.
INTEGRATIONS = {"cuda", "cupy", "dpctl", "jax", "numba", "numpy", "rmm", "torch", "vllm"}


def modules_of(package):
    """{dotted name: file} of a package's folder; its name is the folder's. C modules are among them."""
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.so")]):
        parts = (package.name, *path.relative_to(package).parent.parts, path.name.split(".")[0])
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path, modules):
    """The modules of the package that a module imports, wherever it does.

    Python loads the packages above an imported module too. That is no edge: such an import needs none of their names.
    Nor is an import of type checkers.
    """
    if path.suffix != ".py":
        return set()
    source = path.read_text(encoding="utf-8")
    lines, found, tree = source.splitlines(), set(), ast.parse(source)
    of_checkers = {id(node) for block in ast.walk(tree)
                   if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
                   for node in ast.walk(block)}
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:  # those of _named stay in their own package
            # `from package import module` needs the module; `from package import name` needs the package.
            targets = [f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in modules else node.module
                       for alias in node.names]
        is_lazy = targets and node.col_offset and LAZY.search(lines[node.end_lineno - 1])
        if not is_lazy and id(node) not in of_checkers:
            found.update(target for target in targets if target in modules)
    return found


def cycle_in(graph):
    """A cycle as a list of names whose last is its first, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        path.append(name)
        for target in sorted(graph.get(name, ())):
            found = visit(target)
            if found:
                return found
        path.pop()
        done.add(name)
        return None

    for name in sorted(graph):
        found = visit(name)
        if found:
            return found
    return None


def module_graph(package):
    modules = modules_of(package)
    return {name: imports_of(path, modules) for name, path in modules.items() if name != "gmm._core.typing"}


def room_graph(graph):
    """The same between rooms: the subpackages, and each module outside of one."""
    rooms = {}
    for name, targets in graph.items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update(".".join(target.split(".")[:2]) for target in targets)
        rooms[room].discard(room)
    return rooms


PACKAGE = pathlib.Path(gmm.__file__).parent


def test_modules_have_no_cycle():
    graph = module_graph(PACKAGE)
    assert len(graph) > 40 and "gmm._core.stream" in graph["gmm._context"], graph  # the reader sees what there is
    assert cycle_in(graph) is None


def test_rooms_have_no_cycle():
    """A subpackage needs only those below it, so that each can be read alone."""
    rooms = room_graph(module_graph(PACKAGE))
    assert "gmm._core" in rooms["gmm._context"] and rooms["gmm._core"] == {"gmm._native"}, rooms
    assert cycle_in(rooms) is None


def test_no_module_needs_the_public_names():
    """Inside the package each name comes from the module that defines it: gmm/__init__.py is for users."""
    assert [name for name, targets in module_graph(PACKAGE).items() if "gmm" in targets] == []


def test_a_cycle_is_found():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}}) is None


def test_import_loads_no_integration():
    """In a fresh interpreter: only the rooms that every program needs, and no other library."""
    code = "import sys; before = set(sys.modules); import gmm; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    loaded = set(done.stdout.split())
    assert {name.split(".")[1] for name in loaded if name.startswith("gmm.")} == LOADED | {"_native"}
    assert {name.split(".")[0] for name in loaded} & INTEGRATIONS == set()
    assert "gmm._multiprocessing.tensors" not in loaded


def test_errors_are_named_as_their_classes():
    """ERRORS is a dictionary by class name: a wrong key shows itself only when the error does."""
    for name, path in modules_of(pathlib.Path(gmm.__file__).parent).items():
        for key in re.findall(r'ERRORS\["(\w+)"\]', path.read_text(encoding="utf-8")) if path.suffix == ".py" else ():
            assert isinstance(getattr(gmm, key, None), type), f"{name}: ERRORS[{key!r}]"


USER = """
import gmm
with gmm.Context("host") as context:
    tag = context.tag("weights", gmm.Contents.HOST)
    size: int = context.alloc(1 << 20, gmm.Kind.VMM, tag=tag).info.size
    shape: tuple[int, ...] = gmm.empty((2, 3), "float32")[0].shape
    live: int = context.stats().live_bytes + tag.pause() + context.resume("weights")
    moved: str = tag.pause_async().result()  # wrong
    context.alloc("1")  # wrong
"""


def test_type_checkers_know_the_package(tmp_path):
    """The annotations of the package, for a program that has two mistakes."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports", "user.py"], cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(PACKAGE.parent)}, capture_output=True, text=True, timeout=300)
    wrong = [number for number, line in enumerate(USER.splitlines(), 1) if "# wrong" in line]
    assert [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line] == wrong, done.stdout


@pytest.mark.parametrize("module", [gmm, gmm.cupy, gmm.memory_saver, gmm.multiprocessing, gmm.nccl, gmm.rmm, gmm.ucx,
                                    gmm.vllm], ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module):
    for name in module.__all__:
        value = getattr(module, name)
        if not isinstance(value, type) and not callable(value):
            continue
        assert value.__doc__, name
        if isinstance(value, type) and not issubclass(value, (Exception, tuple, int)):
            for method, function in vars(value).items():
                if not method.startswith("_") and (callable(function) or isinstance(function, property)):
                    assert function.__doc__, f"{name}.{method}"
