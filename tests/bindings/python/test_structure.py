# SPDX-License-Identifier: Apache-2.0
"""The package's modules: no import cycle, folders in layers, and `import gmm` loads no integration."""
import ast
import graphlib
import importlib
import os
import pathlib
import subprocess
import sys

import pytest

import gmm

#: The modules that `import gmm` loads beside the C module.
LOADED = {"_context", "_core", "_default", "_multiprocessing", "_keep", "_report", "multiprocessing"}
#: Libraries that `import gmm` must not load, and modules that only they need.
INTEGRATIONS = {"cuda", "cupy", "dpctl", "jax", "numba", "numpy", "rmm", "torch", "vllm"}


PACKAGE = pathlib.Path(gmm.__file__).parent
MODULES = {}  # {dotted name: file}; C modules are among them
for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.so")]):
    parts = ("gmm", *path.relative_to(PACKAGE).parent.parts, path.name.split(".")[0])
    MODULES[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path


def imports_of(path):
    """The modules of the package that a module imports, wherever it does, except for type checkers alone."""
    if path.suffix != ".py":
        return set()
    found, tree = set(), ast.parse(path.read_text(encoding="utf-8"))
    of_checkers = {id(node) for block in ast.walk(tree)
                   if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
                   for node in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in of_checkers:
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and id(node) not in of_checkers:
            # `from package import module` needs the module; `from package import name` needs the package.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(names & MODULES.keys() or {node.module})
    return found & MODULES.keys()


GRAPH = {name: imports_of(path) for name, path in MODULES.items() if name != "gmm._core.typing"}


def folder_of(name):
    return ".".join(name.split(".")[:2])


def test_modules_have_no_cycle():
    """Nor have subpackages: each needs only those below it, so that each can be read alone."""
    assert len(GRAPH) > 40 and "gmm._core.stream" in GRAPH["gmm._context"], GRAPH  # the reader sees what there is
    graphlib.TopologicalSorter(GRAPH).prepare()  # CycleError
    folders = {}
    for name, targets in GRAPH.items():
        folders.setdefault(folder_of(name), set()).update({*map(folder_of, targets)} - {folder_of(name)})
    assert folders["gmm._core"] == {"gmm._native"}, folders
    graphlib.TopologicalSorter(folders).prepare()
    # gmm/__init__.py is for users: inside the package each name comes from the module that defines it.
    assert [name for name, targets in GRAPH.items() if "gmm" in targets] == []


def test_import_loads_no_integration():
    code = ("import sys; before = set(sys.modules); import gmm; print(*sorted(set(sys.modules) - before));"
            "assert gmm.nccl.__name__ == 'gmm.nccl' and not hasattr(gmm, 'nothing')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    loaded = set(done.stdout.split())
    assert {name.split(".")[1] for name in loaded if name.startswith("gmm.")} == LOADED | {"_native"}
    assert {name.split(".")[0] for name in loaded} & INTEGRATIONS == set()
    assert "gmm._multiprocessing.tensors" not in loaded


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


@pytest.mark.parametrize("name", ["cupy", "memory_saver", "multiprocessing", "nccl", "rmm", "ucx", "vllm", ""])
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(f"gmm.{name}".rstrip("."))
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__ or not callable(value), name
        if isinstance(value, type) and not issubclass(value, (Exception, tuple, int)):
            for method, function in vars(value).items():
                assert method[0] == "_" or function.__doc__ or not (
                    callable(function) or isinstance(function, property)), f"{name}.{method}"
