# SPDX-License-Identifier: Apache-2.0
"""The cost of a lease's hand-over: two processes use by turns a card with room for the weights of one.

A request takes the memory from the other process, so its floor is the driver's copies of the weights out and in, at
pinned bandwidth, in the same run. tests/api/lease_processes.c has the contents and the faults of leases.
"""
import os
import pathlib
import statistics
import time

import conftest
import numpy as np
import pytest
from conftest import MIB
from remote import Remote

import gmm
import gmm.lease

GOAL = 1.15
SIZE = 8192 * MIB if conftest.GPU else 64 * MIB
CHUNK = 64 * MIB
ROUNDS = 3


class Member:
    """A process with a lease and weights."""

    def __init__(self, name):
        self.context = gmm.Context("cuda")
        self.context.prepare_backup(SIZE)  # page-locked ahead, as a warm process has it
        self.context.tag("weights", gmm.Contents.HOST)
        self.lease = gmm.lease.Lease(name, ["weights"], residency=0.001, context=self.context)
        self.pattern = self.context.alloc(CHUNK, gmm.Kind.HOST)
        np.asarray(self.pattern)[:] = np.random.default_rng(ord(name[0])).integers(0, 256, CHUNK, dtype=np.uint8)

    def fill_card(self):
        """Leaves room for the weights of one member and a half."""
        self.ballast = self.context.alloc(self.context.device_info(0).free_memory - SIZE * 3 // 2, gmm.Kind.DEVICE)

    def make(self):
        self.lease.request(SIZE, timeout=30)
        self.weights = self.context.alloc(SIZE, gmm.Kind.VMM, tag="weights")
        self.write(0)

    def write(self, turn):
        """New contents, which no earlier backup has, and the end of the turn."""
        for offset in range(0, SIZE, CHUNK):
            np.asarray(self.pattern)[:16].view(np.uint64)[:] = offset, turn
            self.weights.copy_from(self.pattern, offset=offset)
        self.lease.release()

    def take(self):
        """The seconds of a request."""
        begin = time.monotonic()
        assert self.lease.request(timeout=30) >= SIZE
        return time.monotonic() - begin

    def floor(self):
        """The seconds of the driver's copies out and in. The weights are written over."""
        self.lease.request(timeout=30)
        block, stream = self.context.alloc(min(SIZE, 1024 * MIB), gmm.Kind.HOST), self.context.stream()
        begin = time.monotonic()
        for is_out in (True, False):
            for offset in range(0, SIZE, block.nbytes):
                pair = block, self.weights.address + offset
                self.context.copy(*(pair if is_out else pair[::-1]), block.nbytes, stream=stream)
        stream.synchronize()
        self.lease.release()
        return time.monotonic() - begin


@pytest.fixture
def members(tmp_path, monkeypatch):
    if not (conftest.GPU or conftest.FAKE):
        pytest.skip("needs a GPU or the fake driver")
    monkeypatch.setenv("GMM_IPC_DIR", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_LEDGER", str(tmp_path / "ledger"))  # one account of memory for all processes
    monkeypatch.setenv("FAKE_CUDA_MEMORY", str(4 * SIZE))
    made = [Remote(f"import test_lease\nmember = test_lease.Member({name!r})", cwd=pathlib.Path(__file__).parent)
            for name in ("first", "second")]
    yield made
    for each in made:
        each.kill()


def test_a_hand_over_costs_little_more_than_its_copies(members):
    if conftest.GPU and os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") < 3 * SIZE:
        pytest.skip(f"less than {3 * SIZE // MIB} MiB of host memory are free")
    members[0]("member.fill_card()")
    for each in members:
        each("member.make()")
    times = []
    for turn in range(1, 2 * ROUNDS + 1):
        member = members[(turn - 1) % 2]
        times.append(member("member.take()"))
        member(f"member.write({turn})")
    floor, middle = members[1]("member.floor()"), statistics.median(times)
    print(f"# hand-over {middle * 1000:.0f} ms, copies out and in {floor * 1000:.0f} ms: {middle / floor:.3f} x")
    assert middle <= GOAL * floor or not conftest.GPU
