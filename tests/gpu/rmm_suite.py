# SPDX-License-Identifier: Apache-2.0
"""RMM's own Python tests on gmm: each resource of device or managed memory that they make is one of gmm.

What fails on gmm runs again on RMM's own resources. A test that fails there too says nothing about gmm. Writes TAP.

Usage: rmm_suite.py FOLDER     the folder rmm/tests of RMM's Python package, of the version that is installed
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import tap  # noqa: E402 # pylint: disable=wrong-import-position

SECONDS = 120  # of each of the two runs
# Of other resources: they make the driver's pools, or the system's memory.
OTHERS = ("test_cuda_async_", "test_pinned_host_", "SystemMemory", "test_rmm_pytorch")


# --- the plugin of pytest: this file is loaded as a module of its own there ------------------------------------------

def put_gmm_in_place():
    """Makes RMM's names of device and managed memory give resources of gmm."""
    import rmm
    from rmm.pylibrmm import memory_resource

    import gmm.rmm

    class Kind(type):
        def __call__(cls):
            return gmm.rmm.resource(cls.kind, device=rmm._cuda.gpu.getDevice())

        def __instancecheck__(cls, resource):
            return isinstance(resource, gmm.rmm._resource_type())

    class CudaMemoryResource(metaclass=Kind):
        kind = gmm.Kind.DEVICE

    class ManagedMemoryResource(metaclass=Kind):
        kind = gmm.Kind.MANAGED

    for module in (rmm.mr, memory_resource):
        module.CudaMemoryResource, module.ManagedMemoryResource = CudaMemoryResource, ManagedMemoryResource
    starter = sys.modules["rmm.rmm"]
    theirs = starter._initialize

    def initialize(**options):
        theirs(**options)  # checks the options
        devices = options.get("devices") or 0
        for device in [devices] if isinstance(devices, int) else devices:
            made = ManagedMemoryResource() if options.get("managed_memory") else CudaMemoryResource()
            if options.get("pool_allocator"):
                made = rmm.mr.PoolMemoryResource(made, options.get("initial_pool_size"),
                                                 options.get("maximum_pool_size"))
            if options.get("logging"):
                made = rmm.mr.LoggingResourceAdaptor(made, options.get("log_file_name"))
            rmm.mr.set_per_device_resource(device, made)

    starter._initialize = initialize
    rmm.reinitialize()


def pytest_configure():
    if os.environ.get("RMM_SUITE_ON") == "gmm":
        put_gmm_in_place()


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _write(report)


def pytest_collectreport(report):
    if report.failed:
        _write(report)


def _write(report):
    with open(os.environ["RMM_SUITE_RESULTS"], "a", encoding="utf-8") as results:
        print(json.dumps([report.nodeid, report.outcome, report.longreprtext[-1500:] if report.failed else ""]),
              file=results)


# --- the runner ------------------------------------------------------------------------------------------------------

def run(on, folder, tests, work):
    """{test: (outcome, text)} of pytest on gmm, or on RMM's own resources, and whether it ended by itself."""
    results, log = work / f"{on}.results", work / f"{on}.log"
    results.touch()
    environment = {**os.environ, "RMM_SUITE_ON": on, "RMM_SUITE_RESULTS": str(results),
                   "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "rmm_suite", "-p", "no:cacheprovider", *tests]
    with open(log, "w", encoding="utf-8") as out:
        try:
            code = subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=out, timeout=SECONDS,
                                  check=False).returncode
        except subprocess.TimeoutExpired:
            code = "no time was left"
    found = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        name, outcome, text = json.loads(line)
        if found.get(name, ("",))[0] != "failed":
            found[name] = (outcome, text)
    ended = code in (0, 1, 2, 5)
    if not ended:
        print(f"# on {on}: pytest ended with {code}; its last lines:")
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]:
            print(f"#   {line}")
    return found, ended


def main(folder):
    began = time.monotonic()
    folder = pathlib.Path(folder).resolve()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        on_gmm, ended = run("gmm", folder, [], work)
        tap.check(ended, "RMM's tests run to their end on gmm")
        failed = {test: text for test, (outcome, text) in on_gmm.items() if outcome == "failed"}
        own = {}
        if failed:
            own, _ = run("rmm", folder, sorted(failed), work)
    counts = collections.Counter(outcome for outcome, _ in on_gmm.values())
    print(f"# on gmm: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    both = [test for test in failed if own.get(test, ("failed",))[0] != "passed"]
    for test in both[:20]:
        print(f"# fails on RMM's own resources too, or cannot run: {test}")
    for test in sorted(set(failed) - set(both)):
        if any(word in test for word in OTHERS):
            print(f"# about other resources: {test}")
        else:
            tap.check(False, f"only on gmm fails {test}", failed[test])
    tap.check(counts["passed"] > 0, f"RMM's tests: {counts['passed']} pass on gmm", "none ran")
    print(f"# {time.monotonic() - began:.0f} s")
    return tap.end()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
