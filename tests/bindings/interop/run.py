# SPDX-License-Identifier: Apache-2.0
"""Runs the tests with one other library and writes TAP: run.py NAME runs test_NAME.py.

They run with the Python of the library's environment in .deps/, which setup_environments of tests/support/setup.sh
makes. Without that environment all of them are skipped. GMM_BACKEND chooses the backend: see conftest.py.
SETUP_VERSIONS=oldest chooses the oldest versions that gmm supports, in both places, and SETUP_VERSIONS=newest PyTorch's
newest: the other libraries are the newest in any case.
"""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
DEPS = HERE.parents[2] / ".deps"
ENVIRONMENTS = {"cuda_core": "interop", "numba": "interop", "cupy": "interop", "rmm": "interop", "jax": "interop",
                "torch": "torch", "memory_saver": "torch", "sycl": "sycl"}
if os.environ.get("SETUP_VERSIONS") == "oldest":
    ENVIRONMENTS = {**dict.fromkeys(("numba", "cupy", "rmm", "jax"), "oldest"), "cuda_core": "oldest-cuda-core",
                    "torch": "oldest-torch", "memory_saver": "oldest-torch",
                    "sycl": "oldest-sycl"}
elif os.environ.get("SETUP_VERSIONS") == "newest":
    ENVIRONMENTS["torch"] = "newest-torch"


def main(name):
    tests = HERE / f"test_{name}.py"
    library = next(library for library in ENVIRONMENTS if name.startswith(library))
    deps = DEPS / ENVIRONMENTS[library]
    python = deps / "bin" / "python"
    ready = deps / "ready"
    if not ready.exists():
        print(f"ok 1 - with {name} # SKIP no environment .deps/{deps.name} (see .deps/environments.log)\n1..1")
        return 0
    environment = dict(os.environ)
    if library == "sycl":  # PyPI's OpenCL runtime for CPUs is not registered with the system
        folder = str(deps / "lib")
        environment.update(OCL_ICD_FILENAMES=folder + "/libintelocl.so", ONEAPI_DEVICE_SELECTOR="opencl:cpu",
                           LD_LIBRARY_PATH=":".join(filter(None, [environment.get("LD_LIBRARY_PATH"), folder])))
    return subprocess.call([python, HERE.parent / "python" / "run.py", tests], env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
