# SPDX-License-Identifier: Apache-2.0
"""gmm.rmm with the real RMM, on every backend that answers here.

RMM's resources run without a GPU. Its DeviceBuffer asks the CUDA runtime for the current device.
"""
import collections
import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys

import conftest
import pytest
from allocators import SIZE, Contract, Memory

import gmm

rmm = pytest.importorskip("rmm")
import gmm.rmm  # noqa: E402 # after the check


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The resource is compiled once here, and not found in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=["host"] + ["cuda"] * (conftest.FAKE or conftest.GPU))
def context(request):
    options = {"host_devices": 2, "host_memory": 1 << 30} if request.param == "host" else {}
    made = gmm.Context(request.param, **options)
    yield made
    gc.collect()
    made.close()


@pytest.fixture(autouse=True)
def as_before():
    """Each test leaves RMM with the resource that it found."""
    before = rmm.mr.get_per_device_resource(0)
    yield
    assert rmm.mr.get_per_device_resource(0) is before


class Library:
    kinds, want, frees_on_any_stream, is_cxx = tuple(gmm.Kind), MemoryError, True, True

    def __init__(self, context):
        self.context = context

    def allocator(self, kind=gmm.Kind.DEVICE, tag=None):
        resource = gmm.rmm.resource(kind, tag=tag, context=self.context)

        def allocate(size, stream=None):
            address = resource.allocate(size, *of_rmm(stream))
            return Memory(address, lambda stream=None: resource.deallocate(address, size, *of_rmm(stream)))

        return allocate


def of_rmm(stream):
    """A stream of gmm as an argument for RMM; none for None."""
    if stream is None:
        return ()
    handle = stream.handle
    return (rmm.pylibrmm.stream.Stream(type("Stream", (), {"__cuda_stream__": lambda self: (0, handle)})()),)


@pytest.fixture
def library(context):
    return Library(context)


class TestContract(Contract):
    pass


def test_an_allocation_runs_no_python(context):
    resource = gmm.rmm.resource(context=context)
    counted, calls = rmm.mr.StatisticsResourceAdaptor(resource), []
    sys.setprofile(lambda frame, event, _argument: calls.append(frame.f_code.co_name) if event == "call" else None)
    for one in (resource, counted):
        one.deallocate(one.allocate(SIZE), SIZE)
    sys.setprofile(None)
    assert context.stats().allocations == 2 and not calls


def test_copies_in_cpp_serve_after_a_close():
    """RMM's C++ has copies of a resource, which no close() in Python reaches. The context goes with the last one."""
    seen = []
    context = gmm.Context("host", log=lambda level, message: seen.append(message))
    resource = gmm.rmm.resource(context=context)
    resource.deallocate(resource.allocate(SIZE), SIZE)
    context.close()
    ctypes.memset(resource.allocate(SIZE), 1, SIZE)
    assert not any("live" in message for message in seen)
    del resource
    assert "live" in seen[-1], seen


def test_rmm_s_own_handler_of_want_of_memory_works(context):
    resource, asked = gmm.rmm.resource(context=context), []

    def more(size):
        asked.append(size)
        context.set_limit(None, device=0)
        return True

    context.set_limit(1 << 20, device=0)
    adaptor = rmm.mr.FailureCallbackResourceAdaptor(resource, more)
    adaptor.deallocate(adaptor.allocate(64 << 20), 64 << 20)
    assert asked == [64 << 20]


def test_a_failed_free_is_reported(context, capfd):
    resource = gmm.rmm.resource(context=context)
    address = resource.allocate(SIZE)
    resource.deallocate(address, SIZE)
    resource.deallocate(address, SIZE)
    assert f"could not free the memory at {address:#x}" in capfd.readouterr().err


def test_use_and_undo(context):
    before = rmm.mr.get_per_device_resource(0)
    with gmm.rmm.use(context=context, devices=[0]) as outer:
        assert rmm.mr.get_per_device_resource(0) is outer.resources[0]
        with gmm.rmm.use(gmm.Kind.MANAGED, context=context, devices=[0]) as inner:
            address = rmm.mr.get_per_device_resource(0).allocate(SIZE)
            assert context.query(address).kind == gmm.Kind.MANAGED
        assert rmm.mr.get_per_device_resource(0) is outer.resources[0]
        inner.resources[0].deallocate(address, SIZE)
    outer.undo()
    assert rmm.mr.get_per_device_resource(0) is before
    use = gmm.rmm.use(context=context, devices=[0])
    theirs = rmm.mr.CudaMemoryResource()
    rmm.mr.set_per_device_resource(0, theirs)
    use.undo()
    assert rmm.mr.get_per_device_resource(0) is theirs
    rmm.mr.set_per_device_resource(0, before)


def test_each_device_has_its_own_resource(context):
    with pytest.raises(gmm.InvalidDeviceError):
        gmm.rmm.resource(device=99, context=context)
    with gmm.Context("host", host_devices=2) as context, gmm.rmm.use(context=context):
        blocks = [(resource, resource.allocate(SIZE)) for resource in map(rmm.mr.get_per_device_resource, (0, 1))]
        assert [context.query(address).device for _, address in blocks] == [0, 1]
        for resource, address in blocks:
            resource.deallocate(address, SIZE)


# RMM's own Python tests, of the folder rmm/tests of its package's source, on gmm.

#: Tests of other resources: they make the driver's pools, or the system's memory.
OTHERS = ("test_cuda_async_", "test_pinned_host_", "SystemMemory", "test_rmm_pytorch")
PLUGIN = """
import json, os, sys

def put_gmm_in_place():
    import rmm
    from rmm.pylibrmm import memory_resource
    import gmm.rmm

    class Kind(type):
        def __call__(cls):
            return gmm.rmm.resource(cls.kind, device=rmm._cuda.gpu.getDevice())
        def __instancecheck__(cls, resource):
            return isinstance(resource, rmm.mr.CallbackMemoryResource)
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
    if os.environ["RMM_SUITE_ON"] == "gmm":
        put_gmm_in_place()

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["RMM_SUITE_RESULTS"], "a") as results:
            print(json.dumps([report.nodeid, report.outcome, report.longreprtext[-1500:] if report.failed else ""]),
                  file=results)
"""


def run_suite(on, folder, tests, work):
    """{test: (outcome, text)} of RMM's tests on gmm, or on RMM's own resources."""
    results = work / f"{on}.results"
    results.touch()
    environment = {**os.environ, "RMM_SUITE_ON": on, "RMM_SUITE_RESULTS": str(results),
                   "PYTHONPATH": os.pathsep.join([str(work), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "rmm_plugin", "-p", "no:cacheprovider", *tests],
                          cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-2000:]
    found = {}
    for name, outcome, text in map(json.loads, results.read_text().splitlines()):
        if found.get(name, ("",))[0] != "failed":
            found[name] = (outcome, text)
    return found


@pytest.mark.gpu
def test_rmms_own_tests(tmp_path):
    folder = os.environ.get("RMM_SUITE", "")
    if not pathlib.Path(folder).joinpath("test_device_buffer.py").is_file():
        pytest.skip("RMM's tests are not here: RMM_SUITE names their folder")
    (tmp_path / "rmm_plugin.py").write_text(PLUGIN)
    on_gmm = run_suite("gmm", folder, [], tmp_path)
    failed = {test: text for test, (outcome, text) in on_gmm.items()
              if outcome == "failed" and not any(word in test for word in OTHERS)}
    own = run_suite("rmm", folder, sorted(failed), tmp_path) if failed else {}
    only_on_gmm = {test: text for test, text in failed.items() if own.get(test, ("failed",))[0] == "passed"}
    assert not only_on_gmm and collections.Counter(outcome for outcome, _ in on_gmm.values())["passed"] > 1000
