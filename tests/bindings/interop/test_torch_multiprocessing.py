# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors over gmm's memory through torch.multiprocessing; torch_uses.py sends one of the GPU."""
import contextlib
import gc

import conftest
import pytest
import torch
import torch.multiprocessing

import gmm
import gmm.multiprocessing as sharing
import gmm.torch  # which is all it takes
from gmm import Kind, State
from gmm._context import contexts

# PyTorch is imported once for all processes.
torch.multiprocessing.set_forkserver_preload(["gmm._multiprocessing.tensors"])
PROCESSES = torch.multiprocessing.get_context("forkserver")
SECONDS = 120


@pytest.fixture
def context():
    context = gmm.Context("host")
    yield context
    gc.collect()
    context.close()


def tensor_of(context, count=1000, kind=Kind.HOST):
    """A float tensor over gmm's memory, and its address."""
    tensor = torch.from_dlpack(context.alloc(4 * count, kind)).view(torch.float32)
    tensor.copy_(torch.arange(count))
    return tensor


def is_shared(tensor):
    """Whether a context of this process, perhaps one that was opened for it, has imported the memory."""
    address = tensor.untyped_storage().data_ptr()
    return any(context.query(address).state == State.IMPORTED for context in list(contexts) if not context.closed)


# The other process.


def answer(queue, answers):
    """Tells of each tensor whether it lies in the sender's memory and its sum, and adds 1 to it."""
    while (tensor := queue.get()) is not None:
        answers.put((is_shared(tensor), float(tensor.sum()), type(tensor).__name__, tensor.requires_grad,
                     tuple(tensor.stride())))
        with torch.no_grad():
            tensor += 1
        del tensor
        gc.collect()
        answers.put("done")


def bounce(queue, back):
    """Whether two views have one storage, and one of them back."""
    first, second = queue.get(), queue.get()
    back.put(first.untyped_storage()._cdata == second.untyped_storage()._cdata)
    back.put(first)
    queue.get()


@contextlib.contextmanager
def other_process(target):
    """The queues to and from a process. None ends it."""
    queue, answers = PROCESSES.Queue(), PROCESSES.Queue()
    process = PROCESSES.Process(target=target, args=(queue, answers))
    process.start()
    yield queue, answers
    queue.put(None)
    process.join(SECONDS)
    assert process.exitcode == 0


@pytest.fixture
def peer():
    with other_process(answer) as (queue, answers):
        def send(tensor):
            queue.put(tensor)
            got = answers.get(timeout=SECONDS)
            assert answers.get(timeout=SECONDS) == "done"
            return got

        yield send


# The tests.


@pytest.mark.parametrize("imports, sent",
                         [("gmm.torch, torch", 1), ("torch, gmm.torch", 1), ("torch, gmm.multiprocessing", 0)])
def test_importing_gmm_torch_is_enough(imports, sent):
    """In either order; without it a tensor goes PyTorch's way."""
    conftest.run(f"""
import {imports}
import gmm.multiprocessing
from multiprocessing.reduction import ForkingPickler
buffer = gmm.alloc(4000, gmm.Kind.HOST)
ForkingPickler.dumps(torch.from_dlpack(buffer))
assert gmm.multiprocessing.in_transit() == {sent}
assert not torch.cuda.is_initialized()
gmm.multiprocessing.discard()
""", GMM_BACKEND="host")


def test_views_parameters_and_types(context, peer):
    base = tensor_of(context, 100)
    assert peer(base) == (True, 4950.0, "Tensor", False, (1,))
    part = base[10:20]
    assert peer(part) == (True, float(sum(range(10, 20)) + 10), "Tensor", False, (1,))
    assert peer(base.view(10, 10).t())[::4] == (True, (1, 10))
    assert peer(torch.nn.Parameter(base))[::2] == (True, "Parameter", (1,))
    assert peer(base.detach().requires_grad_())[3] is True
    words = base.view(torch.int32)
    assert peer(words)[0] is True
    # Four times as a float, once as a whole number.
    assert base[99].view(torch.int32) == torch.tensor(103.0).view(torch.int32) + 1


def test_managed_memory_goes_pytorchs_way(context, peer):
    tensor = tensor_of(context, kind=Kind.MANAGED)
    assert peer(tensor)[:2] == (False, 499500.0)
    assert tensor.is_shared() and tensor[5] == 6 and sharing.in_transit() == 0


def test_views_share_a_storage_and_one_that_is_sent_back_is_the_original(context):
    tensor = tensor_of(context)
    with other_process(bounce) as (queue, back):
        queue.put(tensor)
        queue.put(tensor[10:])
        assert back.get(timeout=SECONDS) is True
        again = back.get(timeout=SECONDS)
        assert again.data_ptr() == tensor.data_ptr()
        assert again.untyped_storage()._cdata == tensor.untyped_storage()._cdata
