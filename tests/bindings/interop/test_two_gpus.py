# SPDX-License-Identifier: Apache-2.0
"""A pause of tags on two GPUs copies at nearly twice the bandwidth of one."""
import statistics
import time

import conftest
import pytest
from conftest import MIB

import gmm

BLOCKS = 16  # a GPU, as a program holds its memory
SIZE = (1024 if conftest.GPU else 4) * MIB
GOAL = 1.9


def timed(function, *arguments):
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


def test_both_pause_and_resume_at_once():
    with gmm.Context(conftest.BACKEND) as context:
        if context.info.device_count < 2:
            pytest.skip("needs two GPUs")
        tags = [context.tag(f"gpu{device}", gmm.Contents.HOST) for device in range(2)]
        blocks = [context.alloc(SIZE, gmm.Kind.VMM, device=i % 2, tag=tags[i % 2]) for i in range(2 * BLOCKS)]
        for number, block in enumerate(blocks):
            block.fill(1 + number)  # zeros are not copied
        context.pause(*tags)  # page-locks the backup's memory
        context.resume(*tags)
        taken = {which: [[timed(context.pause, *some), timed(context.resume, *some)] for _ in range(3)]
                 for which, some in (("first", tags[:1]), ("second", tags[1:]), ("both", tags))}
        for number, block in enumerate(blocks):
            found = bytearray(4096)
            block.copy_to(found, offset=SIZE // 2)
            assert found == bytes([1 + number]) * 4096
        for step, name in enumerate(("pause", "resume")):
            first, second, both = (statistics.median(pair[step] for pair in taken[which])
                                   for which in ("first", "second", "both"))
            ratio = 2 * max(first, second) / both
            print(f"# {name}: {ratio:.2f} x the bandwidth of one GPU")
            assert ratio >= GOAL or not conftest.GPU
