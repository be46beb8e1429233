# SPDX-License-Identifier: Apache-2.0
"""gmm.job and held tickets: ranks are threads with a context each, and the all-reduce is a barrier.

tests/bindings/interop/test_torch_ranks.py has two processes of torch.distributed, whose training goes on.
"""
import concurrent.futures
import threading

import pytest
from checks import refused

import gmm
from gmm import job

MIB = 1 << 20


class Ranks:
    """Runs a function on two ranks at once, and reduces among them."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=60)
        self.values = [None, None]

    def run(self, function):
        def work(rank):
            def least(value):
                self.values[rank] = value
                self.barrier.wait()
                found = min(self.values)
                self.barrier.wait()
                return found

            return function(rank, least)

        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            ended = [threads.submit(work, rank) for rank in range(2)]
            return [each.exception() or each.result() for each in ended]


@pytest.fixture
def ranks():
    contexts = [gmm.Context("host") for _ in range(2)]
    for context in contexts:
        context.tag("weights", gmm.Contents.HOST)
    blocks = [context.alloc(MIB, gmm.Kind.VMM, tag="weights") for context in contexts]
    for rank, block in enumerate(blocks):
        block.fill(rank + 1)
    yield contexts, blocks
    for context, block in zip(contexts, blocks):
        block.free()
        context.close()


def states(blocks):
    return [block.state.name for block in blocks]


def test_no_rank_changes_alone(ranks):
    contexts, blocks = ranks
    together = Ranks()

    with contexts[1].watch("weights", prepare=lambda info: False, name="refuses"):
        mine, others = together.run(lambda rank, reduce: job.pause("weights", context=contexts[rank], reduce=reduce))
    assert isinstance(mine, gmm.CancelledError) and isinstance(others, gmm.BusyError) and "refuses" in str(others)
    assert states(blocks) == ["ACTIVE"] * 2

    # A rank that cannot have its pages lets all stay paused.
    together.run(lambda rank, reduce: job.pause("weights", context=contexts[rank], reduce=reduce))
    contexts[0].set_limit(4096)
    short, others = together.run(lambda rank, reduce: job.resume("weights", context=contexts[rank], reduce=reduce))
    assert isinstance(short, gmm.LimitExceededError) and isinstance(others, gmm.CancelledError)
    assert states(blocks) == ["PAUSED"] * 2
    contexts[0].set_limit(None)
    together.run(lambda rank, reduce: job.resume("weights", context=contexts[rank], reduce=reduce))
    assert [memoryview(block)[5] for block in blocks] == [1, 2]


def test_a_reduction_that_fails_changes_nothing(ranks):
    contexts, blocks = ranks

    def broken(value):
        raise ConnectionError("the other rank died")

    refused(ConnectionError, lambda: job.pause("weights", context=contexts[0], reduce=broken))
    assert states(blocks) == ["ACTIVE"] * 2
    # A decision that comes too late.
    with pytest.raises(gmm.CancelledError, match="hold_ms"):
        job.pause("weights", context=contexts[0], hold=0.05, reduce=lambda value: threading.Event().wait(0.5) or value)
    assert states(blocks) == ["ACTIVE"] * 2


def test_a_held_ticket(ranks):
    (context, _), (block, _) = ranks
    ticket = context.pause_async("weights", hold=60)
    assert ticket.wait_held(60) and ticket.info.state == gmm.TicketState.HELD and not ticket.done
    block.fill(9)
    ticket.commit()
    assert ticket.result() >= MIB and block.state == gmm.State.PAUSED
    with context.resume_async("weights") as plain:
        assert plain.result() >= MIB and memoryview(block)[7] == 9
        refused(RuntimeError, plain.commit, match="not held")
    dropped = context.pause_async("weights", hold=60)
    dropped.wait_held()
    del dropped
    assert block.state == gmm.State.ACTIVE
