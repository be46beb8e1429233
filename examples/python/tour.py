# SPDX-License-Identifier: Apache-2.0
"""The tour in Python: blocks as context managers, buffers without a copy, a pause, a second process, an error."""
import subprocess
import sys

import gmm
from gmm import Advice, Capability, Contents, Kind, State

BLOCK = 64 << 20
PATTERN = bytes(i * 31 % 256 for i in range(1 << 20)) * 64


def contents(block):
    found = bytearray(BLOCK)
    block.copy_to(found)  # waits for the bytes, as Python could read them at once
    return found


def peer(context):
    """The second process: imports the block whose handle is on stdin, checks it, and writes another byte."""
    with context.ipc_import(sys.stdin.buffer.read()) as shared:
        assert contents(shared) == PATTERN
        shared.fill(1)
        context.synchronize()


def tour(context):
    device = context.device_info(0)

    # Managed memory: one address on the host and the device. Python sees it as a buffer.
    if Kind.MANAGED in device.kinds:
        with context.alloc(BLOCK, Kind.MANAGED) as block:
            block.copy_from(PATTERN)
            block.advise(Advice.SET_PREFERRED_LOCATION, 0)
            block.prefetch(0)
            context.synchronize()
            assert memoryview(block)[31] == PATTERN[31]

    # A tag's blocks are limited, counted and paused together. A paused block keeps its address, and here its contents.
    tag = context.tag("tour", Contents.HOST)
    if device.capabilities & Capability.PAUSE:
        with context.alloc(BLOCK, Kind.VMM, tag=tag) as block:
            block.copy_from(PATTERN)
            assert tag.pause() >= BLOCK and block.state == State.PAUSED
            tag.resume()
            assert contents(block) == PATTERN

    # Another process imports a block by a handle of 256 bytes.
    with context.alloc(BLOCK, tag=tag) as block:
        block.copy_from(PATTERN)
        context.synchronize()
        subprocess.run([sys.executable, __file__, "--peer"], input=block.ipc_export(), check=True)
        assert contents(block) == b"\1" * BLOCK

    # A failure is an exception of its own class. It says what was asked, what stood in the way and what to do.
    context.set_limit(BLOCK, tag=tag)
    try:
        context.alloc(2 * BLOCK, tag=tag)
    except gmm.LimitExceededError as error:
        assert f"a limit of {BLOCK} bytes" in str(error)
    else:
        raise AssertionError("a limit was passed")

    print(f"tour in Python {sys.version_info.major}.{sys.version_info.minor}: ok, "
          f"backend {context.info.backend_name}, device 0: {device.name}")


with gmm.Context() as context:
    peer(context) if sys.argv[1:] == ["--peer"] else tour(context)
