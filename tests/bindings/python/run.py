# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder, or those named, and writes their results in the Test Anything Protocol.

run.py NAME runs tests/bindings/interop/test_NAME.py with the Python of the library's environment in .deps/, which
setup_environments of tests/support/setup.sh makes. Without that environment all of them are skipped. GMM_BACKEND
chooses the backend: see conftest.py there. SETUP_VERSIONS=oldest chooses the oldest versions that gmm supports, in both
places; else they are the newest that PyPI had when the environment was made.
"""
import compileall
import importlib.util
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
DEPS = HERE.parents[2] / ".deps"
sys.path.insert(0, str(HERE.parents[1] / "support"))
import tap  # noqa: E402
ENVIRONMENTS = {"cuda_core": "interop", "numba": "interop", "cupy": "interop", "rmm": "interop", "jax": "interop",
                "torch": "torch", "memory_saver": "torch", "kvcached": "torch", "sycl": "sycl"}
if os.environ.get("SETUP_VERSIONS") == "oldest":
    ENVIRONMENTS = {**dict.fromkeys(("numba", "cupy", "rmm", "jax"), "oldest"), "cuda_core": "oldest-cuda-core",
                    "torch": "oldest-torch", "memory_saver": "oldest-torch",
                    "kvcached": "oldest-torch", "sycl": "oldest-sycl"}


def run_with_library(name):
    library = next(library for library in ENVIRONMENTS if name.startswith(library))
    deps, environment = DEPS / ENVIRONMENTS[library], dict(os.environ)
    if not (deps / "ready").exists():
        tap.skip(f"with {name}", f"no environment .deps/{deps.name} (see .deps/environments.log)")
        return tap.end()
    if library == "sycl":  # PyPI's OpenCL runtime for CPUs is not registered with the system
        folder = str(deps / "lib")
        environment.update(OCL_ICD_FILENAMES=folder + "/libintelocl.so", ONEAPI_DEVICE_SELECTOR="opencl:cpu",
                           LD_LIBRARY_PATH=":".join(filter(None, [environment.get("LD_LIBRARY_PATH"), folder])))
    tests = HERE.parent / "interop" / f"test_{name}.py"
    return subprocess.call([deps / "bin" / "python", __file__, tests], env=environment)


class TapWriter:
    def pytest_collectreport(self, report):
        if report.failed:
            tap.check(False, f"{report.nodeid}: collecting", report.longreprtext)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1].replace("#", "")
        if report.skipped:
            tap.skip(name, report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
        elif report.when == "call" or report.failed:
            figures = [line for line in report.capstdout.splitlines() if line.startswith("# ")]
            for line in [f"# {report.duration:.1f} s"] * (report.duration >= 1) + figures:
                print(line, flush=True)
            tap.check(report.passed, name if report.when == "call" else f"{name}: {report.when}",
                      "" if report.passed else f"{report.longreprtext}\n{report.capstderr}")


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isidentifier():
        sys.exit(run_with_library(sys.argv[1]))
    import pytest

    # The many interpreters that tests start need not compile gmm each. They write no bytecode themselves, so that the
    # folders of the sources stay as they are.
    for folder in importlib.util.find_spec("gmm").submodule_search_locations:
        compileall.compile_dir(folder, quiet=2)
    options = ["-p", "no:cacheprovider", "-p", "no:terminal", "-o", "python_files=test_*.py"]
    status = pytest.main([*options, *(sys.argv[1:] or [str(HERE)])], plugins=[TapWriter()])
    tap.end()
    sys.exit(int(status))
