# SPDX-License-Identifier: Apache-2.0
"""Each call of the package once: its arguments reach the library, and its answers come back as Python's values."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import types

import pytest
from checks import refused
from conftest import need, open_context

import gmm
from gmm import Advice, Capability, Contents, FdType, IpcRoute, Kind, State
from gmm import _native as native

MIB = 1 << 20


def test_version():
    assert native.gmm_version() == native.GMM_VERSION
    number = f"{native.GMM_VERSION_MAJOR}.{native.GMM_VERSION_MINOR}.{native.GMM_VERSION_PATCH}"
    assert gmm.__version__.partition("rc")[0] == number


def test_context_and_devices(context):
    assert context.info.backend_name == context.info.backend.name.lower() and context.info.device_count >= 1
    info = context.device_info(context.info.device_count - 1)
    assert info.device == context.info.device_count - 1 and info.name and len(info.uuid) == 16
    assert info.granularity > 0 and 0 < info.free_memory <= info.total_memory
    assert info.budget_bytes > 0 and info.numa_node >= -1 and len(info.luid) == 8 and info.node_mask >= 0
    assert Kind.DEVICE in info.kinds and Kind.HOST in info.kinds
    assert bool(info.capabilities & Capability.IS_CPU) == (context.info.backend_name == "host")
    for options in ({"capture": False}, {"decommit_after_ms": 5}):
        with open_context(context.info.backend, **options) as other, other.stream() as stream:
            with other.alloc(MIB, stream=stream) as block:
                block.fill(5, stream=stream)
            assert other.decommit_after_ms == options.get("decommit_after_ms")
            other.decommit_after_ms = 10
            assert other.decommit_after_ms == 10
            other.decommit_after_ms = None
            assert other.decommit_after_ms is None
    with open_context(context.info.backend, strict_host=True, control=True) as strict, strict.alloc(MIB) as buffer:
        assert strict.info.flags == native.GMM_CONTEXT_STRICT_HOST | native.GMM_CONTEXT_CONTROL
        buffer.fill(6)
        assert bytes(buffer) == b"\6" * MIB and not buffer.info.flags & gmm.PointerFlags.HOST_ACCESSIBLE
        refused(BufferError, lambda: memoryview(buffer), match="copy_to")
        if context.info.backend == gmm.Backend.HOST:
            refused(BufferError, buffer.__dlpack__, buffer.__dlpack_device__, match="strict")


@pytest.mark.parametrize("kind", [Kind.DEVICE, Kind.VMM, Kind.HOST, Kind.MANAGED])
def test_alloc(context, kind):
    if kind not in context.device_info(0).kinds:
        pytest.skip(f"no {kind.name} memory here")
    with context.alloc(MIB, kind, alignment=4096, zero=True) as buffer:
        assert buffer.address % 4096 == 0 and buffer.nbytes == len(buffer) == MIB and buffer.kind == kind
        assert not any(bytes(buffer))
        buffer.fill(0x5A)
        buffer.copy_from(bytes(range(256)), offset=4096)
        copied = bytearray(MIB)
        buffer.copy_to(copied)
        assert copied[4095:4098] == b"\x5a\x00\x01" and copied[-1] == 0x5A


def test_query(context):
    external = ctypes.create_string_buffer(4096)
    with context.alloc(MIB, Kind.HOST) as buffer:
        info = context.query(buffer.address + MIB - 1)
        assert isinstance(info.kind, Kind) and isinstance(info.state, State) and isinstance(info.ipc_routes, IpcRoute)
        assert (info.kind, info.base, info.size, info.state) == (Kind.HOST, buffer.address, MIB, State.ACTIVE)
        assert info.tag == gmm.DEFAULT_TAG and info.reserved_size >= MIB and info.device == buffer.device
    assert context.query(ctypes.addressof(external)).state == State.UNKNOWN


def test_results_are_exceptions(context):
    buffer = context.alloc(4096)
    for expected, code, also, call in (
            (gmm.InvalidSizeError, -2, ValueError, lambda: context.alloc(0)),
            (gmm.SizeOverflowError, -3, OverflowError, lambda: context.alloc((1 << 64) - 1)),
            (gmm.InteriorPointerError, -14, gmm.Error, lambda: context.free(buffer.address + 256)),
            (gmm.InvalidKindError, -5, ValueError, lambda: context.alloc(1, 77))):
        with pytest.raises(gmm.Error) as caught:
            call()
        assert type(caught.value) is expected and isinstance(caught.value, also) and caught.value.code == code
        assert caught.value.name.startswith("GMM_ERROR_") and len(str(caught.value)) > 10


def test_heap(context):
    need(context, Capability.PAUSE, Kind.VMM)
    with context.heap(Kind.VMM, exportable=True) as heap:
        first = heap.alloc(5 * MIB, name="of a heap")
        assert first.kind == heap.kind == Kind.VMM and context.blocks()[0].name == "of a heap"
        refused(gmm.BusyError, heap.close)
        first.close()
        heap.reserve(16 * MIB)
        assert context.stats(kind=Kind.VMM).reserved_bytes >= 16 * MIB
        done = context.compact(tag=gmm.DEFAULT_TAG, max_bytes=1, max_us=10**6)
        assert done == (0, 0, done.largest_free) and done.largest_free > 0
    refused(gmm.ClosedError, lambda: heap.alloc(1))


def test_streams_and_events(context):
    first, second = context.stream(), context.stream()
    flag = threading.Event()
    with context.alloc(MIB, stream=first) as buffer:
        first.call(lambda: (time.sleep(0.05), flag.set()))
        event = first.record()
        second.wait(event)
        buffer.record_use(second)
        second.synchronize()
        assert flag.is_set() and event.done
        event.synchronize()
    for one in (event, first, second):
        one.close()
        assert one.closed


def test_pin(context):
    need(context, Capability.PIN)
    data = bytearray(MIB)
    with context.pin(data) as pin, context.alloc(MIB) as buffer:
        address = pin.address
        assert context.query(address).state == State.PINNED
        assert pin.object is data and pin.nbytes == MIB and pin.device_pointer
        buffer.fill(3)
        context.copy(pin, buffer, MIB)
        context.synchronize()
        assert data == b"\x03" * MIB
        refused(BufferError, lambda: data.append(1))
    assert context.query(address).state == State.UNKNOWN and pin.object is None
    data.append(1)  # free to move again
    refused(BufferError, lambda: context.pin(bytes(MIB)))
    context.pin(bytes(MIB), read_only=True).close()


def test_residency(context):
    if Kind.MANAGED not in context.device_info(0).kinds:
        pytest.skip("no MANAGED memory here")
    with context.alloc(4 * MIB, Kind.MANAGED) as buffer:
        buffer.fill(9)
        buffer.advise(Advice.SET_PREFERRED_LOCATION, 0)
        buffer.prefetch(gmm.HOST, size=MIB)
        assert buffer.move(gmm.HOST) is buffer and memoryview(buffer)[4 * MIB - 1] == 9
        buffer.move(0, non_blocking=True)
        context.synchronize(buffer.stream)
        assert bytes(buffer) == b"\x09" * (4 * MIB)


def test_tags(context):
    tag = context.tag("smoke", Contents.HOST, 5, read_only=True)
    assert context.tag("smoke") == tag and tag == tag.number and hash(tag) == hash(tag.number)
    info = context.tag_info("smoke")
    assert info[:3] == (tag, Contents.HOST, 5) and info.flags == gmm.TagFlags.READ_ONLY and info == tag.info
    tag.update(priority=1, read_only=False)
    assert (tag.info.contents, tag.info.priority, tag.info.flags) == (Contents.HOST, 1, 0)
    with tag:
        buffer = context.alloc(MIB)
    assert buffer.tag == tag and context.alloc(MIB).tag == gmm.DEFAULT_TAG
    assert context.alloc(MIB, tag="smoke").tag == tag.number
    assert context.tags() == [gmm.DEFAULT_TAG, tag] and context.tags()[1].name == "smoke"
    context.tag("gone").destroy()
    assert len(context.tags()) == 2
    refused(gmm.InvalidTagError, lambda: context.tag_info("nobody"))


def test_ipc(context):
    """Here the import has the original address; test_multiprocessing.py has other processes, and events."""
    need(context, Capability.EXPORT_FD, Kind.VMM)
    with context.alloc(4 * MIB, Kind.VMM) as buffer:
        with context.ipc_import(buffer.ipc_export(offset=256)) as own:
            assert own.address == buffer.address + 256
        assert len(context.ipc_export(buffer.address + MIB)) == 256
    for handle, error, words in ((bytes(256), gmm.IPCInvalidHandleError, None), (b"short", ValueError, "256")):
        refused(error, lambda: context.ipc_import(handle), match=words)
    refused(gmm.InvalidHandleError, context.event().ipc_export)
    with open_context("host") as other, pytest.raises(gmm.InvalidValueError):
        other.ipc_configure(users=[os.getuid() + 1])  # needs a directory


def test_descriptors(context):
    need(context, Capability.EXPORT_FD, Kind.VMM)
    with context.alloc(2 * MIB, Kind.VMM, dedicated=True) as buffer:
        buffer.fill(1)
        fd, offset, size = buffer.ipc_export_fd()
        # The fake driver's are files, too.
        kind_of_fd = FdType.FILE if context.info.backend_name == "host" else FdType.OPAQUE
        with context.import_fd(fd, size, type=kind_of_fd) as again:
            os.close(fd)
            assert again.nbytes == size and again.address != buffer.address and again.state == State.IMPORTED
            again.fill(2, offset=offset, size=2 * MIB)
            assert bytes(buffer) == b"\x02" * (2 * MIB)
        refused(gmm.InvalidValueError, lambda: buffer.ipc_export_fd(type=99))
    with context.alloc(MIB, Kind.DEVICE) as buffer:
        if buffer.info.ipc_routes & IpcRoute.LEGACY:
            handle, offset, size = buffer.ipc_export_legacy(offset=512)
            assert len(handle) == 64 and any(handle) and offset >= 512 and size >= offset + MIB - 512
        else:
            refused(gmm.NotSupportedError, buffer.ipc_export_legacy)


def test_limits_and_counters(context):
    device, tag = context.info.device_count - 1, context.tag("counted")
    context.set_limit(64 * MIB, device=device)
    refused(gmm.LimitExceededError, lambda: context.alloc(128 * MIB, Kind.VMM, device=device))
    context.set_limit(None, device=device)
    with context.alloc(MIB, tag=tag), context.alloc(3 * MIB):
        assert context.stats().live_bytes == 4 * MIB and context.stats().live_blocks == 2
        assert context.stats(tag=tag).live_bytes == MIB and context.stats(tag="counted").live_blocks == 1
        assert context.stats(kind=Kind.DEVICE).reserved_bytes >= 4 * MIB
    with context.defer():
        context.alloc(64 * MIB, Kind.VMM).close()
        assert context.trim() == 0
    context.alloc(64 * MIB, Kind.VMM).close()
    assert context.trim() > 0


def test_snapshot_and_names(context):
    with context.alloc(MIB + 7, name="Größe") as buffer:
        snapshot, pieces = context.snapshot(), []
        assert snapshot["version"] == 1 and context.snapshot(pieces.append) is None
        assert json.loads(b"".join(pieces))["version"] == 1
        found, = context.blocks(kind=Kind.DEVICE)
        assert (found.address, found.size, found.name) == (buffer.address, MIB + 7, "Größe")
        assert found.kind is Kind.DEVICE and found.state is State.ACTIVE and context.blocks(kind=Kind.HOST) == []
        context.name(buffer.address + 1, "bodies")
        assert context.blocks()[0].name == "bodies"
        buffer.set_name(None)
        assert context.blocks()[0].name == ""
        for name, error in (("n" * 64, gmm.InvalidValueError), (b"bytes", TypeError), ("a\0b", ValueError)):
            refused(error, lambda: context.alloc(MIB, name=name))
        assert len(context.blocks()) == 1


def test_metrics(context):
    prometheus = pytest.importorskip("prometheus_client")
    with context.alloc(MIB + 7):
        families = {family.name: family for family in context.metrics()}
        assert [sample.value for sample in families["gmm_live_bytes"].samples] == [MIB + 7]
        assert [families[name].type for name in ("gmm_live_bytes", "gmm_allocations", "gmm_pause_seconds")] == [
            "gauge", "counter", "histogram"]
        registry = prometheus.CollectorRegistry()
        registry.register(type("Collector", (), {"collect": lambda self: context.metrics()})())
        assert b"\ngmm_live_bytes{" in prometheus.generate_latest(registry)


def test_trace(context, tmp_path):
    path = tmp_path / "of.trace"
    with context.trace(path):
        context.alloc(12345).close()
    assert path.read_bytes()[:8] == b"gmmtrace"
    refused(gmm.UnbalancedError, lambda: native.gmm_trace_end(context))


def alloc_in_a_function(context):
    return context.alloc(12345, name="<kept>")


@pytest.fixture
def command(monkeypatch):
    """The command gmm of this build, which the package finds on the PATH."""
    command = pathlib.Path(native.__file__).parents[3] / "lib/cli/gmm"
    if not command.exists():
        pytest.skip("the command gmm is not built")
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return command


def test_stacks(context, tmp_path, command):
    path = tmp_path / "of.trace"
    with context.trace(path, stack_bytes=1):
        alloc_in_a_function(context).close()
    shown = subprocess.run([command, "trace", path], capture_output=True, text=True, check=True).stdout.splitlines()
    line = alloc_in_a_function.__code__.co_firstlineno
    calls = shown.index(f"{' ' * 25}alloc_in_a_function ({__file__}:{line + 1})")
    assert shown[calls + 1].startswith(f"{' ' * 25}test_stacks ({__file__}:")
    assert " alloc " in shown[calls - 1]


def test_profile(context, tmp_path, command):
    with gmm.profile(context=context) as profile:
        alloc_in_a_function(context).close()
    (nbytes, blocks, stack), = profile.top()
    assert (nbytes, blocks) == (12345, 1) and stack.startswith(f"alloc_in_a_function ({__file__}:")
    with gmm.profile(stacks=False, context=context) as profile, context.tag("first"):
        kept = alloc_in_a_function(context), context.alloc(MIB)
    assert profile.top() == [(MIB, 1, "first, DEVICE, 0, "), (12345, 1, "first, DEVICE, 0, <kept>")]
    assert profile.top(1) == profile.top()[:1] and kept
    page = profile.save(tmp_path / "page.html")
    assert page == str(tmp_path / "page.html") and '"first","DEVICE",0,"<kept>",12345,1' in (
        tmp_path / "page.html").read_text().replace("\\u003c", "<")
    trace = pathlib.Path(profile.trace)
    assert gmm.report(tmp_path / "same.html", trace=trace) and (tmp_path / "same.html").read_text() == (
        tmp_path / "page.html").read_text()
    del profile
    assert not trace.exists()
    refused(RuntimeError, lambda: gmm.report(tmp_path / "no" / "page.html", context=context), match="cannot be written")


def test_report_opens_the_page(context, command, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for variable in ("WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(variable, raising=False)
    for screen in ("", ":0"):
        monkeypatch.setenv("DISPLAY", screen)
        path = pathlib.Path(gmm.report(context=context))
        assert "gmm: who held the memory" in path.read_text() and opened == ([path.as_uri()] if screen else [])
    for name in ("ipykernel", "IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(HTML=str, display=opened.append))
    gmm.report(context=context)
    assert "srcdoc=\"&lt;!DOCTYPE html&gt;" in opened[1] and len(opened) == 2


def test_progress_is_shown(context, monkeypatch, capsys):
    with context.tag("weights", contents=gmm.Contents.HOST) as tag, context.alloc(8 * MIB, kind="vmm"):
        tag.pause(progress=gmm.progress("pause"))
        assert capsys.readouterr().err.endswith("pause: 8.0 of 8.0 MiB\n")
        shown = []
        handle = types.SimpleNamespace(update=shown.append)
        display = types.SimpleNamespace(HTML=str, display=lambda bar, display_id: shown.append(bar) or handle)
        for name in ("ipykernel", "IPython", "IPython.display"):
            monkeypatch.setitem(sys.modules, name, display)
        tag.resume(progress=gmm.progress("resume"))
    assert shown[-1] == f'<progress value="{8 * MIB}" max="{8 * MIB}"></progress> resume: 8.0 of 8.0 MiB'


def test_the_bar_of_a_notebook(context):
    with context.tag("<b>"), context.alloc(MIB):
        bar = context._repr_html_()
    assert f"1 MiB, 0 bytes paused\" style=\"overflow: hidden; flex: {MIB} 0 0" in bar and ">&lt;b&gt;</div>" in bar
    context.close()
    assert context._repr_html_() == "&lt;gmm.Context closed&gt;<div style=\"display: flex\"></div>"


def test_log(context):
    heard = []
    for report in (True, False):
        heard.clear()
        leaking = gmm.Context(context.info.backend, log=lambda level, message: heard.append((level, message)),
                              leak_report=report)
        kept = leaking.alloc(12345, name="left over")
        leaking.close()
        assert kept.closed and any(level is gmm.LogLevel.INFO and message for level, message in heard)
        warnings = [message for level, message in heard if level is gmm.LogLevel.WARNING]
        assert bool(warnings) == report and (not report or '"left over"' in warnings[0])
