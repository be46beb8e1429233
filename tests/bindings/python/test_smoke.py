# SPDX-License-Identifier: Apache-2.0
"""The steps of ../SMOKE.md, in its order; 13 to 17, 28 and 29 stand in test_pause.py, 18 in test_watch.py, 19 in
test_registration.py."""
import ctypes
import json
import os
import threading
import time

import pytest
from conftest import need, open_context, run_peer

import gmm
from gmm import Advice, Capability, Contents, FdType, IpcRoute, Kind, State

MIB = 1 << 20


def test_01_version():
    from gmm import _native

    assert _native.gmm_version() == _native.GMM_VERSION
    number = f"{_native.GMM_VERSION_MAJOR}.{_native.GMM_VERSION_MINOR}.{_native.GMM_VERSION_PATCH}"
    assert gmm.__version__.partition("-")[0] == number


def test_02_context(context):
    assert context.info.backend_name == context.info.backend.name.lower()
    assert context.info.device_count >= 1
    if context.info.backend_name == "host":
        assert context.info.device_count == 2
    info = context.device_info(context.info.device_count - 1)
    assert info.device == context.info.device_count - 1
    assert info.name and len(info.uuid) == 16
    assert info.granularity > 0 and 0 < info.free_memory <= info.total_memory
    assert Kind.DEVICE in info.kinds and Kind.HOST in info.kinds
    assert bool(info.capabilities & Capability.IS_CPU) == (context.info.backend_name == "host")


@pytest.mark.parametrize("kind", [Kind.DEVICE, Kind.VMM, Kind.HOST, Kind.MANAGED])
def test_03_alloc(context, kind):
    if kind not in context.device_info(0).kinds:
        pytest.skip(f"no {kind.name} memory here")
    with context.alloc(MIB, kind) as buffer:
        assert buffer.address % 256 == 0 and buffer.nbytes == MIB and buffer.kind == kind
        buffer.fill(0x5A)
        copied = bytearray(MIB)
        buffer.copy_to(copied)
        assert copied == b"\x5a" * MIB
        buffer.copy_from(bytes(range(256)), offset=4096)
        assert bytes(buffer)[4095:4098] == b"\x5a\x00\x01"


def test_04_zero(context):
    with context.alloc(MIB, zero=True) as first:
        first.fill(0xFF)
    with context.alloc(MIB, zero=True) as again:
        assert not any(bytes(again))


def test_05_query(context):
    foreign = ctypes.create_string_buffer(4096)
    with context.alloc(MIB, Kind.DEVICE) as first, context.alloc(MIB, Kind.HOST) as second:
        for buffer, kind in ((first, Kind.DEVICE), (second, Kind.HOST)):
            for offset in (0, 1, MIB // 2, MIB - 1):
                info = context.query(buffer.address + offset)
                assert (info.kind, info.base, info.size, info.state) == (kind, buffer.address, MIB, State.ACTIVE)
                assert info.tag == gmm.DEFAULT_TAG and info.reserved_size >= MIB
            assert context.query(buffer.address + MIB).base != buffer.address
        assert first.info.device == 0
    assert context.query(ctypes.addressof(foreign)).state == State.UNKNOWN
    assert context.query(0).state == State.UNKNOWN


def test_06_errors(context):
    buffer = context.alloc(4096)
    foreign = ctypes.create_string_buffer(4096)
    cases = [
        (gmm.InvalidSizeError, -2, lambda: context.alloc(0)),
        (gmm.SizeOverflowError, -3, lambda: context.alloc((1 << 64) - 1)),
        (gmm.InteriorPointerError, -14, lambda: context.free(buffer.address + 256)),
        (gmm.UnknownPointerError, -12, lambda: context.free(ctypes.addressof(foreign))),
        (gmm.InvalidKindError, -5, lambda: context.alloc(1, 77)),
        (gmm.InvalidDeviceError, -6, lambda: context.alloc(1, device=99)),
        (gmm.InvalidTagError, -7, lambda: context.alloc(1, tag=3999)),
        (gmm.InvalidAlignmentError, -4, lambda: context.alloc(1, alignment=24)),
    ]
    for expected, code, call in cases:
        with pytest.raises(gmm.Error) as caught:
            call()
        assert type(caught.value) is expected and caught.value.code == code
        assert caught.value.name.startswith("GMM_ERROR_") and len(str(caught.value)) > 10
    buffer.close()


def test_07_heap(context):
    need(context, Capability.PAUSE, Kind.VMM)
    heap = context.heap(Kind.VMM)
    first, second = heap.alloc(MIB), heap.alloc(5 * MIB)
    assert first.kind == second.kind == Kind.VMM
    with pytest.raises(gmm.BusyError):
        heap.close()
    assert not heap.closed
    first.close()
    second.close()
    heap.reserve(16 * MIB)
    context.trim()
    assert context.stats(kind=Kind.VMM).reserved_bytes >= 16 * MIB
    with pytest.raises(OverflowError):
        heap.reserve(-1)
    done = context.compact(tag=gmm.DEFAULT_TAG)
    assert done.largest_free >= 16 * MIB and done.moved_bytes == 0
    assert context.compact(max_bytes=1, max_us=10**6) == (0, 0, done.largest_free)
    assert context.compact(live=True) == (0, 0, done.largest_free)
    heap.reserve(0)
    heap.close()
    assert heap.closed
    with pytest.raises(gmm.ClosedError):
        heap.alloc(1)


def test_07_exportable_heap(context):
    need(context, Capability.EXPORT_FD, Kind.VMM)
    # More than one extent of a heap without the option.
    with context.heap(Kind.VMM, exportable=True) as heap, heap.alloc(64 * MIB) as buffer:
        fd, offset, size = buffer.ipc_export_fd()
        os.close(fd)
        assert offset + 64 * MIB <= size


def test_08_stream(context):
    first, second = context.stream(), context.stream()
    flag = threading.Event()

    def work():
        time.sleep(0.05)
        flag.set()

    with context.alloc(MIB, stream=first) as buffer:
        first.call(work)
        event = first.record()
        second.wait(event)
        buffer.record_use(second)
        second.synchronize()
        assert flag.is_set() and event.done
        event.synchronize()
    event.close()
    first.close()
    second.close()


def test_09_pin(context):
    need(context, Capability.PIN)
    data = bytearray(MIB)
    with context.pin(data) as pin:
        assert context.query(pin.address).state == State.PINNED
        assert pin.object is data and pin.nbytes == MIB and pin.device_pointer
        again = context.pin(data)
        with context.alloc(MIB) as buffer:
            buffer.fill(3)
            context.copy(pin, buffer, MIB)
            context.synchronize()
        assert data == b"\x03" * MIB
        address = pin.address
        again.close()
        assert context.query(address).state == State.PINNED
    assert context.query(address).state == State.UNKNOWN
    with pytest.raises(gmm.NotPinnedError):
        from gmm import _native

        _native.gmm_unpin(context, address)
    data.append(1)  # free to move again


def test_10_residency(context):
    if Kind.MANAGED not in context.device_info(0).kinds:
        pytest.skip("no MANAGED memory here")
    with context.alloc(4 * MIB, Kind.MANAGED) as buffer, context.alloc(4096, Kind.HOST) as host:
        address = buffer.address
        buffer.fill(9)
        with pytest.raises(gmm.InvalidKindError):
            host.advise(Advice.SET_PREFERRED_LOCATION, 0)
        try:
            buffer.advise(Advice.SET_PREFERRED_LOCATION, 0)
            buffer.prefetch(0)
            buffer.prefetch(gmm.HOST, size=MIB)
            assert buffer.move(gmm.HOST) is buffer
            assert memoryview(buffer)[4 * MIB - 1] == 9
            buffer.move(0)
        except gmm.NotSupportedError:
            assert not context.device_info(0).capabilities & Capability.CONCURRENT_MANAGED
            raise
        context.synchronize(buffer.stream)
        assert buffer.address == address and bytes(buffer) == b"\x09" * (4 * MIB)


def test_11_tag(context):
    need(context, Capability.PAUSE, Kind.VMM)
    tag = context.tag("smoke", Contents.HOST)
    assert context.tag("smoke") == tag and context.tag_info("smoke").contents == Contents.HOST
    with pytest.raises(gmm.InvalidValueError):
        context.tag("smoke", Contents.DROP)
    with tag:
        buffer = context.alloc(MIB, Kind.VMM)
    assert buffer.tag == tag and context.alloc(MIB).tag == gmm.DEFAULT_TAG
    assert context.alloc(MIB, Kind.VMM, tag="smoke").tag == tag.number
    assert tag in context.tags() and context.tags()[0] == gmm.DEFAULT_TAG
    assert [listed.name for listed in context.tags() if listed == tag] == ["smoke"]
    gone = context.tag("gone")
    gone.destroy()
    assert "gone" not in [listed.name for listed in context.tags()]
    with pytest.raises(gmm.InvalidTagError):
        context.tag_info("nobody")


def test_12_pause(context):
    need(context, Capability.PAUSE, Kind.VMM)
    tag = context.tag("kept", Contents.HOST)
    buffer = context.alloc(8 * MIB, Kind.VMM, tag=tag)
    address = buffer.address
    buffer.fill(0x77)
    went = tag.pause()
    assert went >= 8 * MIB and buffer.state == State.PAUSED
    assert tag.info.paused_bytes == went and tag.info.backup_host_bytes > 0
    with pytest.raises(gmm.PausedError):
        buffer.fill(1)
    with pytest.raises(BufferError):
        memoryview(buffer)
    assert tag.pause() == 0
    assert tag.resume() == went and tag.resume() == 0
    assert buffer.address == address and buffer.state == State.ACTIVE
    assert bytes(buffer) == b"\x77" * (8 * MIB)
    assert tag.info.pauses == 1 and tag.info.name == "kept"
    buffer.close()


@pytest.mark.parametrize("kind", [Kind.VMM, Kind.HOST, Kind.DEVICE])
def test_18_ipc(context, kind):
    need(context, Capability.LEGACY_IPC if kind == Kind.DEVICE else Capability.EXPORT_FD, kind)
    with context.alloc(4 * MIB, kind) as buffer:
        buffer.fill(0x11)
        backend = context.info.backend_name
        assert run_peer(backend, 4 * MIB, 0x11, 0x22, handle=buffer.ipc_export()) == "changed\n"
        assert bytes(buffer) == b"\x22" * (4 * MIB)
        run_peer(backend, 4096, 0x22, 0x33, handle=context.ipc_export(buffer.address + MIB))
        seen = bytes(buffer)
        assert seen[MIB - 1] == 0x22 and seen[MIB : MIB + 4096] == b"\x33" * 4096 and seen[MIB + 4096] == 0x22
        with context.ipc_import(buffer.ipc_export(offset=256)) as own:  # here: the original address
            assert own.address == buffer.address + 256
    with pytest.raises(gmm.IPCInvalidHandleError):
        context.ipc_import(bytes(256))
    with pytest.raises(ValueError, match="256"):
        context.ipc_import(b"short")


def test_18_ipc_event(context):
    flag = []
    first, second, event = context.stream(), context.stream(), context.event(ipc=True)
    first.call(lambda: (time.sleep(0.05), flag.append(1)))
    event.record(first)
    with context.ipc_import_event(event.ipc_export()) as imported:
        second.wait(imported)
        second.synchronize()
        assert flag == [1] and imported.done and event.done
        imported.synchronize()
    with pytest.raises(gmm.InvalidHandleError):
        context.event().ipc_export()
    with pytest.raises(gmm.BusyError):
        context.ipc_configure(directory="/tmp")


def test_18_ipc_configure(host, tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(gmm.InvalidValueError):
        host.ipc_configure(directory="not/absolute")
    with pytest.raises(gmm.InvalidValueError):
        host.ipc_configure(users=[os.getuid() + 1])  # needs a directory
    host.ipc_configure(directory=tmp_path)
    with host.alloc(MIB, Kind.VMM) as buffer:
        buffer.ipc_export()
        assert list(tmp_path.iterdir())


def test_19_fd(context):
    need(context, Capability.EXPORT_FD, Kind.VMM)
    with context.alloc(2 * MIB, Kind.VMM, dedicated=True) as buffer:
        buffer.fill(1)
        fd, offset, size = buffer.ipc_export_fd()
        try:
            assert os.fstat(fd) and offset + 2 * MIB <= size
            # The fake driver's are files, too.
            kind_of_fd = FdType.FILE if context.info.backend_name == "host" else FdType.OPAQUE
            with context.import_fd(fd, size, type=kind_of_fd) as again:
                os.close(fd)
                fd = -1
                assert again.nbytes == size and again.address != buffer.address and again.state == State.IMPORTED
                assert bytes(again)[offset : offset + 2 * MIB] == b"\x01" * (2 * MIB)
                again.fill(2, offset=offset, size=2 * MIB)
                assert bytes(buffer) == b"\x02" * (2 * MIB)
        finally:
            if fd >= 0:
                os.close(fd)
        with pytest.raises(gmm.InvalidValueError):
            buffer.ipc_export_fd(type=99)
    with pytest.raises(gmm.InvalidValueError):
        context.import_fd(-1, size)


def test_19_legacy_handle(context):
    with context.alloc(MIB, Kind.DEVICE) as buffer:
        if buffer.info.ipc_routes & IpcRoute.LEGACY:
            handle, offset, size = buffer.ipc_export_legacy(offset=512)
            assert len(handle) == 64 and any(handle) and offset >= 512 and size >= offset + MIB - 512
        else:
            with pytest.raises(gmm.NotSupportedError):
                buffer.ipc_export_legacy()


def test_20_limit(context):
    device = context.info.device_count - 1
    context.set_limit(64 * MIB, device=device)
    with pytest.raises(gmm.LimitExceededError) as caught:
        context.alloc(128 * MIB, Kind.VMM, device=device)
    assert isinstance(caught.value, MemoryError)
    context.set_limit(None, device=device)
    context.alloc(128 * MIB, Kind.VMM, device=device).close()


def test_21_out_of_memory():
    # On the host backend only: filling a real GPU would disturb whoever shares it.
    with open_context("host", host_memory=256 * MIB) as context:
        ballast = context.alloc(192 * MIB, Kind.VMM)
        asked = []

        def refuse(info):
            asked.append(info)
            return False

        context.set_oom_handler(refuse)
        with pytest.raises(gmm.OutOfMemoryError):
            context.alloc(128 * MIB, Kind.VMM)
        assert asked[0].requested == 128 * MIB and asked[0].attempt == 1 and asked[0].kind == Kind.VMM

        def help_once(info):
            ballast.close()
            return info.attempt == 1

        context.set_oom_handler(help_once)
        context.alloc(128 * MIB, Kind.VMM).close()
        assert ballast.closed
        context.set_oom_handler(None)


def test_22_stats(context):
    before = context.stats()
    tag = context.tag("counted")
    with context.alloc(MIB, tag=tag), context.alloc(3 * MIB):
        now = context.stats()
        assert now.live_bytes - before.live_bytes == 4 * MIB and now.live_blocks - before.live_blocks == 2
        assert context.stats(tag=tag).live_bytes == MIB and context.stats(tag="counted").live_blocks == 1
        assert context.stats(kind=Kind.DEVICE).reserved_bytes >= 4 * MIB
    after = context.stats()
    assert after.live_bytes == before.live_bytes and after.frees - before.frees == 2


def test_23_snapshot(context):
    with context.alloc(MIB + 7) as buffer:
        snapshot = context.snapshot()
        assert snapshot["version"] == 1 and "gmm-snapshot" in snapshot.values()
        pieces = []
        assert context.snapshot(pieces.append) is None
        assert json.loads(b"".join(pieces))["version"] == 1
        blocks = context.blocks()
        found = [block for block in blocks if block.address == buffer.address]
        assert len(found) == 1 and found[0].size == MIB + 7 and found[0].reserved_size >= MIB + 7
        assert found[0].kind == Kind.DEVICE and found[0].state == gmm.State.ACTIVE and found[0].tag == gmm.DEFAULT_TAG
        assert found[0] in context.blocks(kind=Kind.DEVICE) and context.blocks(kind=Kind.HOST) == []
        text = json.dumps(snapshot)
        assert str(MIB + 7) in text or str(buffer.address) in text or f"{buffer.address:x}" in text


def test_23_names(context):
    def names():
        return sorted(block["name"] for heap in context.snapshot()["heaps"] for block in heap["blocks"]
                      if "name" in block)

    before = context.stats().live_blocks
    with context.heap() as heap, heap.alloc(5000, name="Größe"), context.alloc(MIB, name="weights") as buffer, \
            context.zeros((4, 4), name="zeros"):
        assert names() == ["Größe", "weights", "zeros"]
        buffer.set_name("heads")
        context.name(buffer.address + 1, "bodies")
        assert names() == ["Größe", "bodies", "zeros"]
        buffer.set_name(None)
        assert names() == ["Größe", "zeros"]
        with pytest.raises(gmm.InvalidValueError, match="63 bytes"):
            context.alloc(MIB, name="n" * 64)
        with pytest.raises(gmm.InvalidValueError, match="63 bytes"):
            buffer.set_name("")
        with pytest.raises(TypeError, match="name"):
            context.alloc(MIB, name=b"weights")
        with pytest.raises(ValueError, match="null"):
            context.alloc(MIB, name="a\0b")
        assert context.stats().live_blocks == before + 3
    assert names() == []


def test_24_trace(context, tmp_path):
    path = tmp_path / "of.trace"
    with context.trace(path):
        context.alloc(12345).close()
    data = path.read_bytes()
    assert data[:12] == b"gmmtrace\x01\0\0\0"
    assert (12345).to_bytes(8, "little") in data  # the alloc; tests/api reads the file
    with pytest.raises(gmm.UnbalancedError):
        from gmm import _native

        _native.gmm_trace_end(context)


def test_25_trim_and_defer(context):
    context.alloc(64 * MIB, Kind.VMM).close()
    with context.defer():
        assert context.trim() == 0
    context.alloc(64 * MIB, Kind.VMM).close()
    held = context.stats().cached_bytes
    given_back = context.trim()
    assert context.stats().cached_bytes < max(held, 1)
    assert given_back > 0 or held == 0


def test_28_log(context):
    heard = []
    with gmm.Context(context.info.backend, log=lambda level, message: heard.append((level, message))):
        pass
    assert any(level == gmm.LogLevel.INFO and message for level, message in heard)
    for report in (True, False):
        heard.clear()
        leaking = gmm.Context(context.info.backend, log=lambda level, message: heard.append((level, message)),
                              leak_report=report)
        leaking.alloc(12345, name="left over").free()
        kept = leaking.alloc(12345, name="left over")
        leaking.close()
        assert kept.closed
        warnings = [message for level, message in heard if level == gmm.LogLevel.WARNING]
        assert len(warnings) == (2 if report else 0)
        assert not report or ('1 x 12345 bytes of DEVICE' in warnings[0] and '"left over"' in warnings[0])


def test_29_reset(context):
    buffer = context.alloc(MIB)
    address = buffer.address
    context.reset()
    assert context.stats().live_blocks == 0
    assert context.query(address).state in (State.UNKNOWN, State.FREE)
    assert buffer.closed
    buffer.close()


def test_30_close():
    context = open_context("host")
    buffer = context.alloc(MIB)
    context.close()
    context.close()
    assert context.closed and buffer.closed
    for call in (lambda: context.alloc(1), lambda: context.stats(), lambda: buffer.address, lambda: buffer.fill(1),
                 lambda: context.stream()):
        with pytest.raises(gmm.ClosedError, match="closed"):
            call()
    buffer.close()
