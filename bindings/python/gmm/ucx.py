# SPDX-License-Identifier: Apache-2.0
"""gmm's memory with UCX: mappings that end before a pause and come back after it.

    import gmm.ucx

    mapping = gmm.ucx.map(ucp_context, buffer)            # ucp_mem_map(); ucp_context: its number, or of ucxx
    key = mapping.remote_key()                            # for the peer, with mapping.generation
    gmm.context().pause(tag)                              # the mapping ends before the pages go
    gmm.context().resume(tag)                             # and begins again: another key, one generation more

A peer's key of an earlier generation means pages that are gone, so the peer must get the new one.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

from gmm._context import Context
from gmm._registration import LibraryError as _LibraryError
from gmm._registration import Registration as _Registration

__all__ = ["Mapping", "UcxError", "map"]

_ADDRESS, _LENGTH = 1, 2  # UCP_MEM_MAP_PARAM_FIELD_*


class UcxError(_LibraryError):
    """UCX refused. code: its ucs_status_t."""


@functools.lru_cache(maxsize=1)
def _ucx():
    """(libucp, libucs) as the process has them, else those of the package libucx."""
    with contextlib.suppress(ImportError):
        import libucx  # pylint: disable=import-outside-toplevel,import-error

        libucx.load_library()
    try:
        ucp, ucs = ctypes.CDLL("libucp.so.0"), ctypes.CDLL("libucs.so.0")
    except OSError as error:
        raise ImportError(f"gmm.ucx needs UCX, and libucp.so.0 cannot be opened ({error}): install it, or "
                          "pip install libucx-cu13 (or libucx-cu12)") from error
    ucs.ucs_status_string.restype = ctypes.c_char_p
    ucs.ucs_status_string.argtypes = [ctypes.c_byte]
    for function in (ucp.ucp_mem_map, ucp.ucp_mem_unmap, ucp.ucp_rkey_pack):
        function.restype = ctypes.c_byte  # ucs_status_t has one byte
    ucp.ucp_rkey_buffer_release.restype = None
    return ucp, ucs


def _call(function, *arguments):
    ucp, ucs = _ucx()
    code = getattr(ucp, function)(*arguments)
    if code:
        raise UcxError(function, code, ucs.ucs_status_string(code).decode())


class Mapping(_Registration):
    """Memory that a context of UCX has mapped. map() makes it. generation: counts the mappings, from 1."""

    def __init__(self, ucp_context: Any, memory: Any, **options: Any) -> None:
        self._ucp_context = ctypes.c_void_p(getattr(ucp_context, "handle", ucp_context))
        self._memh = ctypes.c_void_p()
        self.generation = 0
        super().__init__(memory, **options)

    def _begin(self):
        # ucp_mem_map_params_t: the mask, the address, the length, and 24 bytes of fields that the mask leaves out.
        params = (ctypes.c_uint64 * 6)(_ADDRESS | _LENGTH, self.address, self.size)
        made = ctypes.c_void_p()
        _call("ucp_mem_map", self._ucp_context, ctypes.byref(params), ctypes.byref(made))
        self._memh = made
        self.generation += 1

    def _end(self):
        made, self._memh = self._memh, ctypes.c_void_p()
        if made:
            _call("ucp_mem_unmap", self._ucp_context, made)

    @property
    def memh(self) -> int:
        """The ucp_mem_h as a number; 0 while the memory is paused."""
        return self._memh.value or 0

    def remote_key(self) -> bytes:
        """The packed key for ucp_ep_rkey_unpack() of a peer, as bytes. It ends with this generation."""
        with self._lock:
            if not self._memh:
                raise RuntimeError(f"{self!r} has no key: the memory is paused, or the mapping is closed")
            packed, size = ctypes.c_void_p(), ctypes.c_size_t()
            _call("ucp_rkey_pack", self._ucp_context, self._memh, ctypes.byref(packed), ctypes.byref(size))
            try:
                return ctypes.string_at(packed.value, size.value)
            finally:
                _ucx()[0].ucp_rkey_buffer_release(packed)


def map(ucp_context: Any, memory: Any, *, context: Context | None = None,  # pylint: disable=redefined-builtin
        name: str | None = None) -> Mapping:
    """Maps a block for a context of UCX until the Mapping is closed, which must be before the end of that context.

    ucp_context: the number of a ucp_context_h, or an object with it as handle (ucxx.UCXContext). memory: a Buffer, an
    Array, a tensor in gmm's memory, or an address; best of alloc(size, comm=True).
    """
    return Mapping(ucp_context, memory, context=context, name=name)
