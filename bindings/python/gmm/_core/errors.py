# SPDX-License-Identifier: Apache-2.0
"""The library's results as exceptions: one class for each result, all of them subclasses of gmm.Error. Their words."""
from __future__ import annotations

import re

from gmm import _native as native
from gmm._core.values import METHODS


class Error(Exception):
    """A call of the library failed; nothing changed.

    code: the gmm_result, below 0. name: its name in C. native_code: the number of the driver (CUresult) or of the
    system (errno); 0 when gmm itself found the failure. str() is the message: what was asked, what stood in the way,
    what to do.
    """

    code: int = 0
    name: str = ""
    native_code: int = 0


# Python's own class for the same failure, which users catch already. It is ValueError for those named INVALID_, too.
_ALSO = {
    "INVALID_HANDLE": None, "NULL_ARGUMENT": ValueError, "SIZE_OVERFLOW": OverflowError, "OUT_OF_MEMORY": MemoryError,
    "OUT_OF_HOST_MEMORY": MemoryError, "LIMIT_EXCEEDED": MemoryError, "NOT_SUPPORTED": NotImplementedError,
    "SYSTEM": OSError, "IO": OSError, "IPC_PEER_GONE": ConnectionError, "IPC_REFUSED": PermissionError,
    "IPC_TIMEOUT": TimeoutError, "IPC_REVOKED": ConnectionError, "NOT_READY": TimeoutError}
# Python has these names, or nearly these, already.
_RENAMED = {"SYSTEM": "SystemCallError", "IO": "FileError"}
_PREFIX = "GMM_ERROR_"
_CLASSES = {}


def _make_class(constant):
    result = constant[len(_PREFIX):]
    words = result.split("_")
    name = _RENAMED.get(result) or "".join(word if word == "IPC" else word.capitalize() for word in words) + "Error"
    code = getattr(native, constant)
    doc = native.gmm_result_text(code)
    namespace = {"__doc__": doc, "__module__": "gmm", "code": code, "name": constant}
    also = _ALSO.get(result, ValueError if result.startswith("INVALID_") else None)
    made = type(name, (Error, also) if also else (Error,), namespace)
    _CLASSES[code] = made
    return name, made


ERRORS = dict(_make_class(constant) for constant in dir(native) if constant.startswith(_PREFIX))
globals().update(ERRORS)


class ClosedError(ERRORS["InvalidHandleError"], ValueError):
    """An object was used after it was closed."""


def make_exception(code, name, message, native_code, closed):
    made = ClosedError if closed else _CLASSES.get(code, Error)
    exception = made(in_python(message))
    exception.code, exception.name, exception.native_code = code, name, native_code
    if isinstance(exception, OSError) and native_code > 0:
        exception.errno = native_code
    return exception


def check(result, message=b""):
    """Raises the error of a result below 0 that ctypes has from a C function. Returns any other. message: its words."""
    if result < 0:
        words = message.decode(errors="replace") or native.gmm_last_error_message() or native.gmm_result_text(result)
        raise make_exception(result, native.gmm_result_name(result), words, native.gmm_last_native_code(), False)
    return result


# Texts for people: sizes, and the library's messages with Python's names.


def size(count):
    """Bytes in words: 1536 is "1.5 KiB"."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


_CONSTANTS = {
    "GMM_ALLOC_COMM": "comm=True", "GMM_ALLOC_DEDICATED": "dedicated=True", "GMM_ALLOC_PAUSED": "paused=True",
    "GMM_DECOMMIT_NEVER": "None",
    "GMM_DEVICE_HOST": "HOST", "GMM_EVENT_SHARED": "ipc=True", "GMM_HEAP_EXPORTABLE": "exportable=True",
    "GMM_PAUSE_DROP": "contents=Contents.DROP", "GMM_PAUSE_FORCE": "force=True", "GMM_PAUSE_HOLD": "hold=",
    "GMM_PAUSE_NO_WRITES": "no_writes=True", "GMM_RESUME_RETAIN": "retain=True",
    "GMM_RESUME_ZERO": "zero=True", "GMM_TAG_CHECKSUM": "checksum=True",
    "GMM_TAG_DEFAULT": "DEFAULT_TAG"}
#: Prefixes of the constants of an enumeration.
_ENUMERATIONS = {"GMM_KIND_": "Kind.", "GMM_FD_": "FdType.", "GMM_ADVISE_": "Advice.", "GMM_CONTENTS_": "Contents.",
                 "GMM_DEVICE_CAN_": "Capability.", "GMM_LEASE_": "LeaseState.", "GMM_WATCH_": "WatchEvent."}
_NAME = re.compile(r"\bgmm_[a-z_]+\b|\bGMM_[A-Z_]+")


def _python_name(match):
    name = match.group()
    found = METHODS.get(name) or _CONSTANTS.get(name)
    for prefix, enumeration in _ENUMERATIONS.items():
        if found is None and name.startswith(prefix):
            found = enumeration + (name[len(prefix):] or "*")
    return found or name  # a variable of the environment, for example


def in_python(message):
    """A message of the library with the names that Python has for its functions and constants."""
    return _NAME.sub(_python_name, message)
