# SPDX-License-Identifier: Apache-2.0
"""The package's modules: no import cycle, rooms in layers, and `import gmm` loads no integration."""
import ast
import pathlib
import re
import subprocess
import sys

import pytest

import gmm

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


def imports_of(name, path, modules):
    """The modules of the package that a module imports, wherever it does: {dotted name: line}.

    Python loads the packages above an imported module too. That is no edge: such an import needs none of their names.
    """
    if path.suffix != ".py":
        return {}
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    root = name.split(".")[0]
    found = {}
    for node in ast.walk(ast.parse(source)):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join(above[:len(above) - node.level + 1] + ([base] if base else []))
            # `from package import module` needs the module; `from package import name` needs the package.
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names]
        is_declared = node.col_offset and LAZY.search(lines[node.end_lineno - 1]) if targets else False
        for target in targets:
            if target.split(".")[0] == root and target in modules and not is_declared:
                found.setdefault(target, node.lineno)
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
    return {name: set(imports_of(name, path, modules)) for name, path in modules.items()}


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


@pytest.fixture
def planted(tmp_path):
    """A package without a cycle, as a function that changes one of its files and returns the cycle then."""
    package = tmp_path / "planted"
    (package / "room").mkdir(parents=True)
    files = {"__init__.py": "from planted.a import thing\n", "a.py": "from planted.room import b\nthing = b.other\n",
             "room/__init__.py": "", "room/b.py": "other = 1\n"}
    for name, text in files.items():
        (package / name).write_text(text)

    def plant(name="a.py", text=files["a.py"]):
        (package / name).write_text(text)
        return cycle_in(module_graph(package))

    return plant


@pytest.mark.parametrize("text", [
    "from planted.a import thing\n",
    "from planted import a\n",
    "import planted.a\n",
    "from ..a import thing\n",
    "from .. import a\n",
    "def late():\n    from planted import a\n    return a\n",
    "def late():\n    from planted import a  # lazy:\n    return a\n",
    "from planted import a  # lazy: what is imported at once cannot be lazy\n",
], ids=["name", "module", "dotted", "relative name", "relative module", "in a function", "without a reason",
        "not in a function"])
def test_a_planted_cycle_is_found(planted, text):
    assert planted() is None
    assert planted("room/b.py", text) == ["planted.a", "planted.room.b", "planted.a"]


def test_a_cycle_through_the_package_itself_is_found(planted):
    assert planted("room/b.py", "from planted import thing\n") == ["planted", "planted.a", "planted.room.b", "planted"]


def test_a_declared_lazy_import_is_no_edge(planted):
    text = "def late():\n    from planted import a  # lazy: b is used without a mostly\n    return a\n"
    assert planted("room/b.py", text) is None


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
