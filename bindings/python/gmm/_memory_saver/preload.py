# SPDX-License-Identifier: Apache-2.0
"""The preload library: torch_memory_saver's C functions by ctypes, and the context that it allocates from.

A process has one libgmm, whose soname the preload library and the package's extension both need.
"""
import contextlib
import ctypes
import functools
import os
import pathlib
import re

from gmm._context import Context
from gmm._core import compiled
from gmm._core.errors import Error, check
from gmm._memory_saver.turns import Turns

NAME = "libgmm_preload.so"
#: The environment variable with the library's path, for a library that is neither in the package nor beside libgmm.
ENVIRONMENT = "GMM_PRELOAD_LIBRARY"

_REFERENCE = ctypes.POINTER
_i32, _u64, _pointer = ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p

#: torch_memory_saver's settings of a thread's region: tms_set_NAME() and tms_get_NAME().
_REGION = {"current_tag": ctypes.c_char_p, "interesting_region": ctypes.c_bool, "enable_cpu_backup": ctypes.c_bool,
           "cpu_backup_backend": ctypes.c_char_p, "enable_disk_backup": ctypes.c_bool}
_SETTINGS = {**_REGION, "retain_cpu_backup": ctypes.c_bool}
_SIGNATURES = {
    **{f"tms_set_{name}": (None, [kind]) for name, kind in _SETTINGS.items()},
    **{f"tms_get_{name}": (kind, []) for name, kind in _SETTINGS.items()},
    # torch_memory_saver's other functions.
    "tms_set_disk_backup_dir": (None, [ctypes.c_char_p]),
    "tms_pause": (ctypes.c_int, [ctypes.c_char_p]),
    "tms_resume": (ctypes.c_int, [ctypes.c_char_p]),
    "tms_get_cpu_backup_pointer": (_REFERENCE(ctypes.c_uint8), [_REFERENCE(ctypes.c_uint8), _u64]),
    "set_memory_margin_bytes": (None, [_u64]),
    # gmm's.
    "gmm_preload_context": (_pointer, []),
    "gmm_preload_active": (ctypes.c_bool, []),
    "gmm_preload_last_error": (ctypes.c_char_p, []),
    "gmm_context_retain": (_i32, [_pointer]),
}


def find_library():
    """The path of the preload library. RuntimeError when it is missing."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        if not os.path.isfile(named):
            raise RuntimeError(f"gmm: {ENVIRONMENT}={named!r} names no file")
        return os.path.abspath(named)
    beside = pathlib.Path(compiled.loaded("libgmm.so")).parent
    folders = pathlib.Path(__file__).resolve().parents[1], beside, beside / "preload"  # the latter in a build tree
    for folder in folders:
        # A system without the files for development has it under its soname alone.
        for path in sorted(folder.glob(NAME + "*")):
            if path.is_file():
                return str(path)
    raise RuntimeError(f"gmm: {NAME} was not found in {', '.join(map(str, folders))}; "
                       f"name the file in the environment variable {ENVIRONMENT}")


def preloaded():
    """The entries of LD_PRELOAD that name the preload library, by its own name or by a link."""
    paths = re.split("[: ]", os.environ.get("LD_PRELOAD", ""))
    return [path for path in paths if os.path.basename(os.path.realpath(path)).startswith("libgmm_preload")]


def preloaded_library():
    """The one entry of LD_PRELOAD that names the preload library. AssertionError when there is none, or several."""
    paths = preloaded()
    if len(paths) != 1:
        raise AssertionError(
            f"TorchMemorySaver observes invalid LD_PRELOAD: it must name {NAME} once. Start the program inside "
            f"configure_subprocess(), by `gmm run -- program`, or with LD_PRELOAD={find_library()} "
            f"(LD_PRELOAD=\"{os.environ.get('LD_PRELOAD', '')}\" process_id={os.getpid()})")
    return paths[0]


@contextlib.contextmanager
def changed_environment(name, value):
    """Sets an environment variable for its with block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        found = os.environ.get(name)
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
        if found != value:
            raise AssertionError(f"{name} was changed inside its with block: it is {found!r}, it was {value!r}")


def preloading(path):
    """In its with block new processes load the library at this path before any other, and still those of LD_PRELOAD."""
    return changed_environment("LD_PRELOAD", ":".join(filter(None, [path, os.environ.get("LD_PRELOAD")])))


class _Context(Context):
    """The context of the preload library, with a reference of its own."""

    def __init__(self, retain, address):  # pylint: disable=super-init-not-called # it opens none
        self._adopt(lambda: (check(retain(address)), address)[1])


class Library:
    """The library at a path. Upstream's BinaryWrapper has this argument and cdll."""

    def __init__(self, path_binary):
        self.path = path = path_binary
        self.turns = Turns(self)  # gmm.lease.use() sets another one
        self._context = None
        self.cdll = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            try:
                function = getattr(self.cdll, name)
            except AttributeError as error:
                raise RuntimeError(f"gmm: {path} has another version than this package: it lacks {name}") from error
            function.restype = result
            function.argtypes = arguments

    @property
    def context(self):
        """The gmm.Context that the library allocates from. The first use opens it; a child after fork() has another."""
        address = self.cdll.gmm_preload_context()
        if not address:
            raise Error(self.cdll.gmm_preload_last_error().decode(errors="replace"))
        if self._context is None or self._context.handle != address:
            self._context = _Context(self.cdll.gmm_context_retain, address)
        return self._context

    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup=False, cpu_backup_backend=None, enable_disk_backup=False):
        """A region of this thread for the with block. Its end restores the outer region."""
        def get():
            return {name: getattr(self.cdll, "tms_get_" + name)() for name in _REGION}

        def set_all(settings):
            for name, value in settings.items():
                getattr(self.cdll, "tms_set_" + name)(value)

        before = get()
        inside = {**before, "current_tag": tag.encode(), "interesting_region": True,
                  "enable_cpu_backup": enable_cpu_backup, "enable_disk_backup": enable_disk_backup}
        if cpu_backup_backend:
            inside["cpu_backup_backend"] = cpu_backup_backend.encode()
        set_all(inside)
        try:
            yield
        finally:
            found = get()
            set_all(before)
            self.turns.offer_new()
            if found != inside:
                raise AssertionError(f"the region was changed inside its with block: it is {found}, it was {inside}")

    def pluggable_allocator(self):
        """PyTorch's pluggable allocator over the library, for memory pools."""
        import torch  # pylint: disable=import-outside-toplevel # the module loads without PyTorch

        return torch.cuda.memory.CUDAPluggableAllocator(self.path, "tms_torch_malloc", "tms_torch_free")

    def pause(self, tags, contents=None):
        """Pauses tags. Returns the bytes released; 0 for no tags."""
        return self.context.pause(*tags, contents=contents) if tags else 0

    def resume(self, tags):
        """Resumes tags, if there are any."""
        if tags:
            self.context.resume(*tags)


#: The one Library at a path.
load = functools.lru_cache(maxsize=None)(Library)
