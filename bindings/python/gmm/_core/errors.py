# SPDX-License-Identifier: Apache-2.0
"""The library's results as exceptions: one class for each result, all of them subclasses of gmm.Error."""
from __future__ import annotations

from gmm import _native as native
from gmm._core.words import in_python


class Error(Exception):
    """A call of the library failed; nothing changed.

    code: the gmm_result, below 0. name: its name in C. native_code: the number of the driver (CUresult) or of the
    system (errno); 0 when gmm itself found the failure. str() is the message: what was asked, what stood in the way,
    what to do.
    """

    code: int = 0
    name: str = ""
    native_code: int = 0

    def __init__(self, message: str = "", *, code: int | None = None, name: str | None = None,
                 native_code: int = 0) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if name is not None:
            self.name = name
        self.native_code = native_code


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
    exception = made(in_python(message), code=code, name=name, native_code=native_code)
    if isinstance(exception, OSError) and native_code > 0:
        exception.errno = native_code
    return exception


def check(result, message=b""):
    """Raises the error of a result below 0 that ctypes has from a C function. Returns any other. message: its words."""
    if result < 0:
        words = message.decode(errors="replace") or native.gmm_last_error_message() or native.gmm_result_text(result)
        raise make_exception(result, native.gmm_result_name(result), words, native.gmm_last_native_code(), False)
    return result
