# SPDX-License-Identifier: Apache-2.0
"""Texts and numbers: kinds by name, texts and tables of objects, messages, numbers of any size."""
import re

import pytest
from checks import refused

import gmm
import gmm.lease
from gmm import Kind
from gmm import _native as native
from gmm._core.errors import in_python
from gmm._core.values import METHODS

MIB = 1 << 20


def test_kinds_by_name(host):
    for kind in (Kind.DEVICE, Kind.VMM, Kind.HOST, Kind.MANAGED):
        for name in (kind.name.lower(), kind.name):
            assert host.alloc(100, name).kind == host.alloc(100, kind=name).kind == kind
            assert host.empty(3, "int8", name).kind == host.zeros(3, kind=name).copy(name).kind == kind
            with host.heap(name) as heap:
                assert heap.kind is kind
    with host.alloc(MIB, "vmm"):
        assert host.alloc(100, tag=None).tag == gmm.DEFAULT_TAG
        assert host.stats(kind="vmm").live_blocks == len(host.blocks(kind="vmm")) == 1 and host.trim(kind="host") >= 0
    refused(ValueError, lambda: host.alloc(1, "gpu"), lambda: host.heap("gpu"), lambda: host.stats(kind="gpu"),
            match="no kind 'gpu'; the kinds are 'device', 'vmm', 'host', 'managed'")


def test_texts_of_objects(host):
    with host.tag("weights", gmm.Contents.HOST) as tag:
        buffer = host.alloc(3 * MIB, Kind.VMM, name="left")
    assert re.search("host backend, 2 devices, 1 blocks of 3 MiB live, .* reserved", repr(host))
    assert re.fullmatch(r"<gmm\.Tag \d+ 'weights', HOST contents, \S+ MiB active, 0 bytes paused>", repr(tag))
    array = gmm.Array(buffer, (2, 2), "int8")
    array.view("u1")[0].fill(1)
    assert repr(array).startswith("<gmm.Array (2, 2) of int8 at 0x") and str(array[0]) == "[1 1]"
    with tag.paused():
        assert str(array) == repr(array)
    assert repr(host.stats()).startswith("Statistics(live_tags=") and host.stats() == host.stats()
    assert "limit_bytes=no limit" in repr(host.stats()) and f"base={buffer.address:#x}, size=" in repr(buffer.info)
    array.free()
    assert str(array) == repr(array) == "<gmm.Array (2, 2) of int8, closed>"
    host.close()
    assert repr(host) == "<gmm.Context closed>" and repr(tag) == f"<gmm.Tag {tag.number} 'weights'>"


def test_messages_have_pythons_names(host):
    host.set_limit(64 * MIB)
    with pytest.raises(gmm.LimitExceededError, match=r"Context\.alloc of 134217728 bytes.*Context\.set_limit\(\)"):
        host.alloc(128 * MIB)


def test_messages_name_methods_that_exist():
    for method in METHODS.values():
        first, *rest = method.split(".")
        owner = getattr(gmm, first, getattr(gmm.lease, first, None))
        assert " " in first or not rest or hasattr(owner, rest[0]), method
    assert in_python("gmm_trim(), GMM_KIND_VMM, GMM_ALLOC_COMM; GMM_IPC_DIR") == \
        "Context.trim(), Kind.VMM, comm=True; GMM_IPC_DIR"


@pytest.mark.parametrize("number", [-1, 1 << 64, (1 << 64) + 1])
def test_numbers_are_taken_whole(context, number):
    """No sign and no bit of a number is dropped: a number that does not fit raises OverflowError."""
    wide, lease, watch = abs(number) << 64, gmm.lease.Lease, context.watch
    calls = [
        (watch, {"budget": print, "below": number}), (watch, {"memory": 4096, "size": number, "losing": print}),
        (watch, {"losing": print, "tag": 0, "order": number << 40}), (watch, {"losing": print, "tag": 1 << 32}),
        *((lease, {"name": "whole", "context": context, **options}) for options in (
            {"floor": number}, {"residency": wide}, {"priority": number << 40}, {"offer": [number]})),
        (context.alloc, {"size": number}), (context.alloc, {"size": 1, "alignment": number}),
        (context.alloc, {"size": 1, "tag": 1 << 32}), (context.alloc, {"size": 1, "device": number << 32}),
        (context.heap, {"limit": number}), (context.heap, {"tag": number}),
        (context.set_limit, {"limit": number}), (context.trim, {"tag": number})]
    for function, options in calls:
        with pytest.raises(OverflowError):
            made = function(**options)
            getattr(made, "close", bool)()
            print(f"{options} made {made!r}")


def test_options_are_checked(context):
    refused(TypeError, lambda: native.gmm_stream_create(context, {"device": 0}), lambda: context.stream("text"),
            lambda: context.stream(1.5), lambda: gmm.lease.Lease(b"bytes", context=context))
    refused(ValueError, lambda: context.watch(0, losing=print, name="a\0b"), match="null character")
    refused(ValueError, lambda: gmm.lease.Lease("time", residency=-1, context=context),
            lambda: context.ipc_import(bytes(64), timeout=-1), match="0 seconds or more")
