# SPDX-License-Identifier: Apache-2.0
"""The promises of each library's allocator over gmm, which test_cupy.py, test_rmm.py and test_cuda_core.py run.

A file with the contract has the fixtures `context` and `library`. A library has
    kinds                                 those that its memory can have
    allocator(kind, tag=...)              a function: size, stream of gmm -> Memory
    want                                  the exception where memory is short
    frees_on_any_stream                   whether the end of memory names a stream
    is_cxx                                whether it calls gmm in C++, so that messages have C's names
"""
import collections

import pytest
from checks import refused

import gmm

SIZE = 3000
#: free(stream): its end; without a stream on that of its allocation.
Memory = collections.namedtuple("Memory", "address free")


class Contract:
    @pytest.mark.parametrize("kind", [gmm.Kind.DEVICE, gmm.Kind.VMM, gmm.Kind.MANAGED, gmm.Kind.HOST])
    def test_memory_is_of_the_kind(self, context, library, kind):
        if kind not in library.kinds:
            with pytest.raises(ValueError, match="MANAGED"):
                library.allocator(kind)
            return
        memory = library.allocator(kind)(SIZE)
        info = context.query(memory.address)
        assert (info.kind, info.base, info.size, info.state) == (kind, memory.address, SIZE, gmm.State.ACTIVE)
        memory.free()
        assert context.query(memory.address).state in (gmm.State.FREE, gmm.State.UNKNOWN)
        assert context.stats().live_blocks == 0

    def test_zero_bytes_take_no_memory(self, context, library):
        library.allocator()(0).free()
        assert context.stats().allocations == 0

    def test_memory_comes_back_at_once_on_the_stream_that_freed_it(self, context, library):
        allocate, (one, other) = library.allocator(), [context.stream() for _ in range(2)]
        first, second = allocate(SIZE, one), allocate(SIZE, one)
        first.free(one)
        assert allocate(SIZE, one).address == first.address
        if library.frees_on_any_stream:
            second.free(other)
            assert allocate(SIZE, other).address == second.address
            second.free(other)
        else:
            second.free()
        first.free(one)
        for stream in (one, other):
            stream.close()
        assert context.stats().live_blocks == 0

    def test_tags(self, context, library):
        tag = context.tag("frames")
        named = library.allocator(gmm.Kind.VMM, tag="frames")(SIZE)
        with tag:
            of_thread = library.allocator()(SIZE)
        other = library.allocator()(SIZE)
        assert [context.query(memory.address).tag for memory in (named, of_thread, other)] == [tag, tag, 1]
        for memory in (named, of_thread, other):
            memory.free()

    def test_want_of_memory_is_the_library_s_error(self, context, library):
        context.set_limit(1 << 20, device=0)
        for size in (64 << 20, (1 << 63) - 4096):
            with pytest.raises(library.want) as raised:
                library.allocator()(size)
            words = f"{raised.value} {raised.value.__cause__}"
            assert "limit" in words or size > 1 << 40, words
            assert library.is_cxx or "gmm_" not in words, words  # Python's names
        context.set_limit(None, device=0)
        library.allocator()(64 << 20).free()

    def test_impossible_requests_are_refused(self, library):
        refused(ValueError, lambda: library.allocator(17))
        refused(gmm.InvalidTagError, lambda: library.allocator(tag=4711)(SIZE))
