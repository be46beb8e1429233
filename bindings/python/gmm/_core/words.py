# SPDX-License-Identifier: Apache-2.0
"""Texts for people: sizes, and the library's messages with Python's names."""
import re


def size(count):
    """Bytes in words: 1536 is "1.5 KiB"."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


# Classes by the noun that a function's name begins with. All other functions are methods of Context.
_CLASSES = {noun: noun.capitalize() for noun in ("event", "heap", "lease", "stream", "ticket", "watcher")}
_VERBS = {"destroy": "close", "query": "info"}
# Functions whose Python name does not follow from that.
_FUNCTIONS = {
    "advise": "Buffer.advise", "backup_configure": "Context.set_backup", "backup_discard": "Context.discard_backup",
    "backup_map": "Buffer.backup_view", "backup_query": "Context.backup_info", "backup_read": "Buffer.backup",
    "backup_reserve": "Context.prepare_backup", "context_create": "Context", "context_query": "Context.info",
    "context_release": "Context.close", "context_set_decommit": "Context.decommit_after_ms",
    "context_set_oom_handler": "Context.set_oom_handler", "defer_begin": "Context.defer",
    "defer_end": "the end of Context.defer", "device_query": "Context.device_info", "event_export": "Event.ipc_export",
    "event_import": "Context.ipc_import_event", "event_query": "Event.done", "fill": "Buffer.fill",
    "ipc_close": "Buffer.close", "ipc_export_fd": "Buffer.ipc_export_fd",
    "ipc_export_legacy": "Buffer.ipc_export_legacy", "ipc_import_fd": "Context.import_fd", "lease_create": "Lease",
    "lease_list": "lease.status", "lease_return": "Lease.release", "limit_set": "Context.set_limit",
    "move": "Buffer.move", "prefetch": "Buffer.prefetch", "record_use": "Buffer.record_use",
    "resume_wait": "Context.wait_ready", "snapshot_write": "Context.snapshot", "stats_query": "Context.stats",
    "stream_forget": "Context.forget_stream", "stream_wait_event": "Stream.wait", "tag_configure": "Tag.update",
    "tag_destroy": "Tag.destroy", "tag_find": "Context.tag", "tag_list": "Context.tags",
    "tag_pop": "the end of a with block of a tag", "tag_push": "the with block of a tag",
    "tag_query": "Context.tag_info", "tag_set_default": "Context.set_process_default_tag",
    "trace_begin": "Context.trace", "trace_end": "the end of Context.trace", "unpin": "Pin.close"}
_CONSTANTS = {
    "GMM_ALLOC_COMM": "comm=True", "GMM_ALLOC_DEDICATED": "dedicated=True", "GMM_DECOMMIT_NEVER": "None",
    "GMM_DEVICE_HOST": "HOST", "GMM_EVENT_SHARED": "ipc=True", "GMM_HEAP_EXPORTABLE": "exportable=True",
    "GMM_PAUSE_DROP": "contents=Contents.DROP", "GMM_PAUSE_FORCE": "force=True", "GMM_PAUSE_HOLD": "hold=",
    "GMM_PAUSE_NO_WRITES": "no_writes=True", "GMM_RESUME_RETAIN": "retain=True", "GMM_TAG_CHECKSUM": "checksum=True",
    "GMM_TAG_DEFAULT": "DEFAULT_TAG"}
#: Prefixes of the constants of an enumeration.
_ENUMERATIONS = {"GMM_KIND_": "Kind.", "GMM_FD_": "FdType.", "GMM_ADVISE_": "Advice.", "GMM_CONTENTS_": "Contents.",
                 "GMM_DEVICE_CAN_": "Capability.", "GMM_LEASE_": "LeaseState.",
                 "GMM_WATCH_": "WatchEvent."}
_NAME = re.compile(r"\bgmm_[a-z_]+\b|\bGMM_[A-Z_]+")


def _function(name):
    noun, _, verb = name.partition("_")
    if name in _FUNCTIONS or verb == "create":
        return _FUNCTIONS.get(name) or f"Context.{noun}"
    if noun not in _CLASSES or not verb:
        return f"Context.{name}"
    return f"{_CLASSES[noun]}.{_VERBS.get(verb, verb)}"


def _python_name(match):
    name = match.group()
    found = _function(name[len("gmm_"):]) if name.startswith("gmm_") else _CONSTANTS.get(name)
    for prefix, enumeration in _ENUMERATIONS.items():
        if found is None and name.startswith(prefix):
            found = enumeration + (name[len(prefix):] or "*")
    return found or name  # a variable of the environment, for example


def in_python(message):
    """A message of the library with the names that Python has for its functions and constants."""
    return _NAME.sub(_python_name, message)
