# SPDX-License-Identifier: Apache-2.0
"""What people read: sizes, tables, and the library's messages with Python's names."""
import re


def size(count):
    """Bytes in words: 1536 is "1.5 KiB"."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


#: The fields of answers that are bytes, besides those that end in _bytes.
_SIZES = {"total_memory", "free_memory", "granularity", "size", "reserved_size", "allocation_size", "arena_used",
          "arena_limit"}


def field(name, value):
    """A field of an answer as text."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int) and (name.endswith("_bytes") or name in _SIZES):
        return size(value)
    if getattr(value, "name", None) is not None:  # an enumeration
        return value.name
    if isinstance(value, tuple):
        return ", ".join(field("", item) for item in value)
    return value.hex() if isinstance(value, bytes) else str(value)


def lines(answer):
    """A named tuple, a field a line."""
    width = max(map(len, answer._fields))
    rows = (f"  {name:<{width}}  {field(name, value)}" for name, value in zip(answer._fields, answer))
    return "\n".join([type(answer).__name__, *rows])


def table(caption, rows, head=()):
    """An HTML table of rows of texts."""
    import html  # here, as only notebooks ask for tables

    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    top = f"<thead>{row(head, 'th')}</thead>" if head else ""
    body = "".join(row(cells, "td") for cells in rows)
    return f"<table><caption>{html.escape(caption)}</caption>{top}<tbody>{body}</tbody></table>"


def answer_table(answer, caption=None):
    """The same of a named tuple."""
    rows = [(name, field(name, value)) for name, value in zip(answer._fields, answer)]
    return table(caption or f"gmm.{type(answer).__name__}", rows)


# Functions that have another name than Context's method of the same words.
_FUNCTIONS = {
    "gmm_advise": "Buffer.advise", "gmm_backup_configure": "Context.set_backup", "gmm_backup_discard":
    "Context.discard_backup", "gmm_backup_map": "Buffer.backup_view", "gmm_backup_query": "Context.backup_info",
    "gmm_backup_read": "Buffer.backup", "gmm_backup_reserve": "Context.prepare_backup", "gmm_context_create":
    "Context", "gmm_context_release": "Context.close", "gmm_context_set_decommit": "Context.decommit_after_ms",
    "gmm_context_set_oom_handler": "Context.set_oom_handler", "gmm_defer_begin": "Context.defer", "gmm_defer_end":
    "the end of Context.defer", "gmm_device_query": "Context.device_info", "gmm_event_create": "Context.event",
    "gmm_event_destroy": "Event.close", "gmm_event_export": "Event.ipc_export", "gmm_event_import":
    "Context.ipc_import_event", "gmm_event_query": "Event.done", "gmm_event_record": "Event.record",
    "gmm_event_synchronize": "Event.synchronize", "gmm_fill": "Buffer.fill", "gmm_heap_alloc": "Heap.alloc",
    "gmm_heap_create": "Context.heap", "gmm_heap_destroy": "Heap.close", "gmm_heap_reserve": "Heap.reserve",
    "gmm_ipc_close": "Buffer.close",
    "gmm_lease_create": "Lease", "gmm_lease_destroy": "Lease.close", "gmm_lease_offer": "Lease.offer",
    "gmm_lease_query": "Lease.info", "gmm_lease_request": "Lease.request", "gmm_lease_return": "Lease.release",
    "gmm_lease_list": "lease.status",
    "gmm_ipc_export": "Buffer.ipc_export", "gmm_ipc_export_fd": "Buffer.ipc_export_fd", "gmm_ipc_export_legacy":
    "Buffer.ipc_export_legacy", "gmm_ipc_import_fd": "Context.import_fd", "gmm_limit_set": "Context.set_limit",
    "gmm_move": "Buffer.move", "gmm_prefetch": "Buffer.prefetch", "gmm_record_use": "Buffer.record_use",
    "gmm_resume_wait": "Context.wait_ready", "gmm_snapshot_create": "Context.snapshot", "gmm_snapshot_write":
    "Context.snapshot", "gmm_stats_query": "Context.stats", "gmm_stream_call": "Stream.call", "gmm_stream_create":
    "Context.stream", "gmm_stream_destroy": "Stream.close", "gmm_stream_forget": "Context.forget_stream",
    "gmm_stream_synchronize": "Stream.synchronize", "gmm_stream_wait_event": "Stream.wait", "gmm_tag_configure":
    "Tag.update", "gmm_tag_create": "Context.tag", "gmm_tag_destroy": "Tag.destroy", "gmm_tag_find": "Context.tag",
    "gmm_tag_list": "Context.tags", "gmm_tag_pop": "the end of a with block of a tag", "gmm_tag_push":
    "the with block of a tag", "gmm_tag_query": "Context.tag_info", "gmm_tag_set_default":
    "Context.set_process_default_tag", "gmm_ticket_cancel": "Ticket.cancel", "gmm_ticket_destroy": "Ticket.close",
    "gmm_ticket_commit": "Ticket.commit", "gmm_ticket_wait_held": "Ticket.wait_held",
    "gmm_ticket_query": "Ticket.info", "gmm_ticket_wait": "Ticket.wait", "gmm_trace_begin": "Context.trace",
    "gmm_trace_end": "the end of Context.trace", "gmm_unpin": "Pin.close", "gmm_watcher_destroy": "Watcher.close"}
_SAME = ("alloc", "compact", "copy", "free", "ipc_configure", "ipc_import", "name", "pause", "pause_async", "pin",
         "query", "reset", "resume", "resume_async", "resume_range", "trim", "watch")
_FUNCTIONS.update((f"gmm_{name}", f"Context.{name}") for name in _SAME)
_CONSTANTS = {
    "GMM_COMPACT_LIVE": "live=True", "GMM_HEAP_EXPORTABLE": "exportable=True",
    "GMM_ALLOC_COMM": "comm=True", "GMM_ALLOC_DEDICATED": "dedicated=True",
    "GMM_ALLOC_ZERO": "zero=True", "GMM_DECOMMIT_NEVER": "None",
    "GMM_EVENT_SHARED": "ipc=True", "GMM_PAUSE_DROP": "contents=Contents.DROP", "GMM_PAUSE_FORCE": "force=True",
    "GMM_PAUSE_KEEP_FILE": "contents=Contents.FILE", "GMM_PAUSE_KEEP_HOST": "contents=Contents.HOST",
    "GMM_PIN_READ_ONLY": "read_only=True", "GMM_TAG_CHECKSUM": "checksum=True", "GMM_TAG_DEFAULT": "DEFAULT_TAG",
    "GMM_TAG_READ_ONLY": "read_only=True", "GMM_TAG_PAGEABLE": "pageable=True",
    "GMM_RESUME_RETAIN": "retain=True", "GMM_BACKUP_NAMED_FILES": "named_files=True", "GMM_DEVICE_HOST": "HOST",
    "GMM_LEASE_WITHDRAW": "Lease.withdraw()"}
#: Prefixes of the constants of an enumeration.
_ENUMERATIONS = {"GMM_KIND_": "Kind.", "GMM_FD_": "FdType.", "GMM_ADVISE_": "Advice.", "GMM_CONTENTS_": "Contents.",
                 "GMM_DEVICE_CAN_": "Capability.", "GMM_LEASE_": "LeaseState.",
                 "GMM_WATCH_": "WatchEvent."}
_NAME = re.compile(r"\bgmm_[a-z_]+\b|\bGMM_[A-Z_]+")


def _python_name(match):
    name = match.group()
    found = _FUNCTIONS.get(name) or _CONSTANTS.get(name)
    for prefix, enumeration in _ENUMERATIONS.items():
        if found is None and name.startswith(prefix):
            found = enumeration + (name[len(prefix):] or "*")
    return found or name  # a variable of the environment, for example


def in_python(message):
    """A message of the library with the names that Python has for its functions and constants."""
    return _NAME.sub(_python_name, message)
