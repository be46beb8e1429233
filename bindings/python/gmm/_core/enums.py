# SPDX-License-Identifier: Apache-2.0
"""The numbers of the C headers as enumerations."""
import enum

from gmm import _native as native


def _values(prefix):
    """Members from the header's constants of one prefix, so that no number is written twice."""
    names = [name for name in dir(native) if name.startswith(prefix)]
    return sorted(((name[len(prefix):], getattr(native, name)) for name in names), key=lambda item: item[1])


Backend = enum.IntEnum("Backend", _values("GMM_BACKEND_"), module="gmm")
Backend.__doc__ = "Backends of a context."
Kind = enum.IntEnum("Kind", _values("GMM_KIND_"), module="gmm")
Kind.__doc__ = "Kinds of memory."
State = enum.IntEnum("State", _values("GMM_STATE_"), module="gmm")
State.__doc__ = "States of a block."
TicketState = enum.IntEnum("TicketState", _values("GMM_TICKET_"), module="gmm")
TicketState.__doc__ = "Where a ticket's operation is. HELD: it waits for commit() or cancel()."
Usm = enum.IntEnum("Usm", _values("GMM_USM_"), module="gmm")
Usm.__doc__ = "Who can use an address, in SYCL's words."
Advice = enum.IntEnum("Advice", _values("GMM_ADVISE_"), module="gmm")
Advice.__doc__ = "Hints about managed memory."
Contents = enum.IntEnum("Contents", _values("GMM_CONTENTS_"), module="gmm")
Contents.__doc__ = "What a pause does with the contents of a tag's memory."
LogLevel = enum.IntEnum("LogLevel", _values("GMM_LOG_"), module="gmm")
LogLevel.__doc__ = "The severity of a message."

AllocFlags = enum.IntFlag("AllocFlags", _values("GMM_ALLOC_"), module="gmm")
AllocFlags.__doc__ = "Flags of an allocation."
Capability = enum.IntFlag(
    "Capability", [*_values("GMM_DEVICE_CAN_"), ("IS_CPU", native.GMM_DEVICE_IS_CPU)], module="gmm")
Capability.__doc__ = "What a device can do."
TagFlags = enum.IntFlag(
    "TagFlags", [("READ_ONLY", native.GMM_TAG_READ_ONLY), ("CHECKSUM", native.GMM_TAG_CHECKSUM),
                 ("PAGEABLE", native.GMM_TAG_PAGEABLE)], module="gmm")
TagFlags.__doc__ = "Options of a tag."
IpcRoute = enum.IntFlag("IpcRoute", _values("GMM_IPC_ROUTE_"), module="gmm")
IpcRoute.__doc__ = "Routes by which another process can import a block."
FdType = enum.IntEnum("FdType", _values("GMM_FD_"), module="gmm")
FdType.__doc__ = "Types of file descriptors of memory."
WatchEvent = enum.IntFlag("WatchEvent", _values("GMM_WATCH_"), module="gmm")
WatchEvent.__doc__ = "What a watcher is told."
PointerFlags = enum.IntFlag("PointerFlags", _values("GMM_POINTER_"), module="gmm")
PointerFlags.__doc__ = "Who can reach an address."



def as_kind(kind):
    """A kind that is given by its name, such as "vmm". Anything else comes back as it is."""
    if not isinstance(kind, str):
        return kind
    try:
        return Kind[kind.upper()]
    except KeyError:
        names = ", ".join(repr(member.name.lower()) for member in Kind if member)
        raise ValueError(f"there is no kind {kind!r}; the kinds are {names}") from None


native.set_helper("kind_number", as_kind)

#: The host's memory, where a function takes a location.
HOST = native.GMM_DEVICE_HOST
#: Removes a limit.
NO_LIMIT = native.GMM_NO_LIMIT
#: The tag of memory that was allocated under no other tag.
DEFAULT_TAG = native.GMM_TAG_DEFAULT
#: The default stream, the legacy default stream, and the default stream of the calling thread.
STREAM_DEFAULT = native.GMM_STREAM_DEFAULT
STREAM_LEGACY = native.GMM_STREAM_LEGACY
STREAM_PER_THREAD = native.GMM_STREAM_PER_THREAD
