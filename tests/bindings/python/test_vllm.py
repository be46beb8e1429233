# SPDX-License-Identifier: Apache-2.0
"""gmm.vllm: the interface of vLLM's CuMemAllocator, on fakes of PyTorch and vLLM."""
import pytest
from checks import refused
from drop_in import PRELUDE, run

from gmm import vllm

ALLOCATOR = PRELUDE + """
from gmm.vllm import CuMemAllocator
allocator = CuMemAllocator.get_instance()
"""

#: NOT vLLM: the few parts of it that gmm.vllm touches.
VLLM = PRELUDE + """
import types

class Factory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = module, class_name

allocators = types.SimpleNamespace(get_mem_allocator_instance=None)
cumem = types.SimpleNamespace(CuMemAllocator=types.SimpleNamespace(instance=None))
backends = types.SimpleNamespace(SleepModeBackendFactory=Factory)
package = "vllm.device_allocator"
late = {package: allocators, package + ".cumem": cumem, package + ".sleep_mode_backend": backends}
"""


def run_allocator(code, environment=()):
    return run(code, environment=environment, prelude=ALLOCATOR)


def test_sleep_and_wake_up():
    run_allocator("""
assert CuMemAllocator.get_instance() is allocator and allocator.get_current_usage() == 0
with allocator.use_memory_pool(tag="weights"):
    weights = full(24, 42)
    assert allocator.current_tag == "weights"
with allocator.use_memory_pool(tag="kv_cache"):
    cache = full(64, 9)
with allocator.use_memory_pool():
    other = full(8, 3)
addresses = [tensor.data_ptr() for tensor in (weights, cache, other)]
usage = allocator.get_current_usage()
assert 96 * MIB <= usage <= 100 * MIB, usage
whole = used()
allocator.sleep(offload_tags="weights")
assert whole - used() >= 96 and allocator.get_current_usage() == usage
allocator.sleep(offload_tags=("kv_cache",))  # what sleeps already stays as it is kept
allocator.wake_up(["weights", "nobody has this"])
assert holds(weights, 42) and whole - used() >= 72
allocator.wake_up("kv_cache")
for _ in range(2):
    allocator.wake_up()
assert used() == whole and addresses == [tensor.data_ptr() for tensor in (weights, cache, other)]
cache.fill_(1), other.fill_(2)
allocator.sleep()  # keeps "default"
allocator.wake_up(tags=["default"])
assert holds(other, 2)
allocator.wake_up()
weights.fill_(42)  # the contents were given up
allocator.discard(("kv_cache", "nobody has this"))
assert 64 <= whole - used() < 72 and holds(weights, 42) and holds(other, 2)
allocator.wake_up(tags=None)
allocator.sleep(("weights", "default"))
allocator.discard("weights")  # it sleeps: it stays kept
del cache
torch.cuda.empty_cache()  # frees memory that sleeps
assert allocator.get_current_usage() < usage - 60 * MIB
allocator.wake_up()
assert holds(weights, 42) and holds(other, 2)
for wrong in (["weights"], 3):
    raises(AssertionError, allocator.sleep, wrong)
raises(AssertionError, enter, allocator.use_memory_pool(7))

usage = allocator.get_current_usage()
with contextlib.suppress(ZeroDivisionError), allocator.use_memory_pool("weights"):
    with allocator.use_memory_pool("kv_cache"):
        nested, gone = full(4, 2), full(64, 1)
        del gone
    assert 4 * MIB <= allocator.get_current_usage() - usage < 8 * MIB  # the pool holds nothing that was freed
    assert allocator.current_tag == "weights"
    raise ZeroDivisionError
outside, whole = full(4, 4), used()
assert allocator.current_tag == "default"
allocator.discard("kv_cache")
assert whole - used() >= 4 and holds(outside, 4) and holds(weights, 42)
""")


def test_apart_from_the_memory_saver():
    run_allocator("""
from gmm.memory_saver import torch_memory_saver as saver
saver.hook_mode = "torch"
with saver.region(tag="weights"):
    training = full(8, 1)
with allocator.use_memory_pool("weights"):
    serving = full(8, 2)
    with saver.region(tag="inner", enable_cpu_backup=True):
        inner = full(8, 3)
allocator.sleep("weights")
assert holds(training, 1) and holds(inner, 3)
allocator.wake_up()
saver.pause("weights")
assert holds(serving, 2)
saver.resume()
""")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_off_inside(name):
    run_allocator("""
with contextlib.suppress(ZeroDivisionError), allocator.use_memory_pool():
    assert torch.settings == ["expandable_segments:False"]
    raise ZeroDivisionError
assert torch.settings == ["expandable_segments:False", "expandable_segments:True"]
""", {name: "expandable_segments:True"})


def test_a_sleep_that_fails_changes_nothing():
    """Whichever of its two pauses fails, the memory is awake with its contents, and a retry works."""
    run_allocator("""
with allocator.use_memory_pool("weights"):
    weights = full(4, 1)
with allocator.use_memory_pool("kv_cache"):
    cache = full(4, 2)
pause, library = allocator._library.pause, allocator._library
for failing in (gmm.Contents.HOST, gmm.Contents.DROP):
    def fails(tags, contents):
        return 1 / 0 if contents == failing else pause(tags, contents)
    library.pause = fails
    raises(ZeroDivisionError, allocator.sleep, "weights")
    assert holds(weights, 1) and holds(cache, 2)
    library.pause = pause
    whole = used()
    allocator.sleep("weights")
    assert whole - used() >= 8
    allocator.wake_up()
    assert holds(weights, 1)
    cache.fill_(2)
""")


def test_register():
    """Memory in use and a taken name are refused."""
    run("""
sys.modules.update(late)
import gmm.vllm
gmm.vllm.plugin()
assert "gmm" not in Factory._registry
cumem.CuMemAllocator.instance = types.SimpleNamespace(get_current_usage=lambda: 1)
raises(RuntimeError, gmm.vllm.register)
cumem.CuMemAllocator.instance = None
Factory.register_backend("taken", "os", "path")
raises(ValueError, gmm.vllm.register, "taken")
os.environ["GMM_VLLM"] = "1"
gmm.vllm.plugin()
gmm.vllm.register()
assert Factory._registry["gmm"] == (package + ".sleep_mode_backend", "CuMemBackend")
assert cumem.CuMemAllocator is gmm.vllm.CuMemAllocator
with allocators.get_mem_allocator_instance().use_memory_pool(tag="weights"):
    weights = full(8, 1)
assert holds(weights, 1)
""", prelude=VLLM)


def test_not_available(monkeypatch):
    monkeypatch.setenv("GMM_PRELOAD_LIBRARY", "/nowhere")
    monkeypatch.setattr(vllm.CuMemAllocator, "instance", None)
    refused(AssertionError, vllm.CuMemAllocator.get_instance, match="cumem allocator is not available")
    refused(ImportError, vllm.register)
