# SPDX-License-Identifier: Apache-2.0
"""What people read and type: kinds by name, texts and tables of objects, messages, python -m gmm."""
import re
import subprocess
import sys

import pytest

import gmm
import gmm.lease
from gmm import Capability, Kind
from gmm import _native as native

MIB = 1 << 20


def test_kinds_by_name(host):
    for kind in (Kind.DEVICE, Kind.VMM, Kind.HOST, Kind.MANAGED):
        for name in (kind.name.lower(), kind.name):
            assert host.alloc(100, name).kind == kind and host.alloc(100, kind=name).kind == kind
            assert host.empty(3, "int8", name).kind == host.zeros(3, kind=name).kind == kind
            with host.heap(name) as heap:
                assert heap.kind is kind
    assert gmm.array([1, 2], kind="host").copy("managed").kind == Kind.MANAGED
    held = host.alloc(MIB, "vmm")
    assert host.stats(kind="vmm").live_blocks == len(host.blocks(kind="vmm")) == 1 and host.trim(kind="host") >= 0
    held.free()
    for call in (lambda: host.alloc(1, "gpu"), lambda: host.heap("gpu"), lambda: host.stats(kind="gpu")):
        with pytest.raises(ValueError, match="no kind 'gpu'; the kinds are 'device', 'vmm', 'host', 'managed'"):
            call()
    with pytest.raises(gmm.InvalidKindError):
        host.alloc(1, 99)


def test_context_tells_what_it_holds(host):
    buffer = host.alloc(3 * MIB, name="<left>")
    text = repr(host)
    assert "host backend, 2 devices, 1 blocks of 3 MiB live" in text and "reserved" in text
    with host.tag("<weights>", gmm.Contents.HOST) as tag:
        host.alloc(MIB, Kind.VMM)
    html = host._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 3 and "&lt;weights&gt;" in html and "3 MiB" in html
    assert "<weights>" not in html
    kept = host.alloc(MIB, Kind.VMM, tag=tag)
    assert re.fullmatch(r"<gmm\.Tag \d+ '<weights>', HOST contents, \S+ MiB active, 0 bytes paused>", repr(tag))
    assert "active_bytes" in tag._repr_html_() and "&lt;weights&gt;" in tag._repr_html_()
    buffer.free()
    kept.free()
    host.close()
    assert repr(host) == "<gmm.Context closed>" and "closed" in host._repr_html_()
    assert repr(tag) == f"<gmm.Tag {tag.number} '<weights>'>"


def test_answers_as_text(host):
    buffer = host.alloc(MIB + MIB // 2)
    stats = host.stats()
    lines = str(stats).splitlines()
    assert lines[0] == "Statistics" and len(lines) == 1 + len(stats)
    assert re.search(r"^  live_bytes +1\.5 MiB$", str(stats), re.M) and re.search(r"live_blocks +1$", str(stats), re.M)
    assert "<td>live_bytes</td><td>1.5 MiB</td>" in stats._repr_html_()
    assert repr(stats).startswith("Statistics(live_tags=") and stats == host.stats()
    for answer in (host.info, host.device_info(), buffer.info, host.blocks()[0], host.tag_info(1), host.backup_info):
        assert str(answer).startswith(type(answer).__name__ + "\n") and "<table>" in answer._repr_html_()
    assert "DEVICE" in str(buffer.info)


def test_print_shows_values(context):
    tag = context.tag("printed", gmm.Contents.HOST)
    array = context.array([[1, 2], [3, 4]], "int8", Kind.VMM, tag=tag)
    assert str(array) == "[[1 2]\n [3 4]]" and repr(array).startswith("<gmm.Array (2, 2) of int8 at 0x")
    if context.device_info(0).capabilities & Capability.PAUSE:
        with tag.paused():
            assert str(array) == repr(array)
    array.free()
    assert str(array) == repr(array) == "<gmm.Array (2, 2) of int8, closed>"


def test_messages_have_pythons_names(host):
    host.set_limit(64 * MIB)
    with pytest.raises(gmm.LimitExceededError, match=r"Context\.alloc of 134217728 bytes.*Context\.set_limit\(\)"):
        host.alloc(128 * MIB)
    with pytest.raises(gmm.Error) as caught:
        host.trace("/nowhere/at/all").__enter__()
    assert "gmm_" not in str(caught.value) and "/nowhere/at/all" in str(caught.value)


def test_every_function_has_a_name_in_python():
    """A message may name any function of the library."""
    from gmm import _native
    from gmm._core.words import in_python

    functions = [name for name in dir(_native) if name.startswith("gmm_") and callable(getattr(_native, name))
                 and not isinstance(getattr(_native, name), type)]
    left = {name for name in functions if in_python(name) == name}
    # What no message names, as it answers nothing or fails in no way.
    assert left <= {"gmm_context_query", "gmm_context_retain", "gmm_heap_try_alloc", "gmm_last_error_message",
                    "gmm_last_native_code", "gmm_result_name", "gmm_result_text", "gmm_snapshot_json", "gmm_try_alloc",
                    "gmm_try_free", "gmm_version", "gmm_version_string"}, left
    assert in_python("GMM_KIND_VMM and GMM_ALLOC_DEDICATED; GMM_IPC_DIR") == "Kind.VMM and dedicated=True; GMM_IPC_DIR"
    for name in {in_python(name) for name in functions if name not in left}:
        if " " not in name:
            first, *rest = name.split(".")
            assert not rest or hasattr(getattr(gmm, first), rest[0]), name


def test_the_module_as_a_program():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "gmm", *arguments], capture_output=True, text=True, timeout=300)

    done = run("--backend", "host")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"gmm {gmm.__version__}\nbackend host") and "device 0: " in done.stdout
    assert "DEVICE, VMM, HOST, MANAGED" in done.stdout and "can: " in done.stdout
    assert run("--version").stdout == f"gmm {gmm.__version__}\n"
    missing = run("--backend", "sycl")
    assert missing.returncode in (0, 1) and (missing.returncode == 0 or "SYCL" in missing.stderr.upper())


@pytest.mark.parametrize("number", [-1, 1 << 64, (1 << 64) + 1])
def test_numbers_are_taken_whole(context, number):
    """No sign and no bit of a number is dropped: what does not fit raises OverflowError."""
    tag, told = context.tag("whole", gmm.Contents.HOST), []
    calls = [
        lambda: context.watch(budget=told.append, below=number),
        lambda: context.watch(number, losing=told.append),
        lambda: context.watch(memory=4096, size=number, losing=told.append),
        lambda: context.watch(tag, losing=told.append, order=number << 40),
        lambda: gmm.lease.Lease("whole", floor=number, context=context),
        lambda: gmm.lease.Lease("whole", residency=abs(number) << 64, context=context),
        lambda: gmm.lease.Lease("whole", priority=number << 40, context=context),
        lambda: gmm.lease.Lease("whole", [number], context=context),
        lambda: context.alloc(number), lambda: context.alloc(1, alignment=number),
        lambda: context.alloc(1, tag=number), lambda: context.heap(limit=number), lambda: context.heap(tag=number),
        lambda: context.set_limit(number), lambda: context.trim(tag=number), lambda: context.pause(number),
        lambda: native.memory_resource(context, number, 0, 0), lambda: native.memory_resource(context, 1, 0, number)]
    for i, call in enumerate(calls):
        with pytest.raises(OverflowError):
            made = call()
            getattr(made, "close", bool)()
            print(f"call {i} took {number}: {made!r}")


@pytest.mark.parametrize("number", [1 << 32, (1 << 32) + 1])
def test_numbers_of_32_bits_are_taken_whole(context, number):
    for call in (lambda: context.watch(number, losing=print),
                 lambda: gmm.lease.Lease("whole", [number], context=context),
                 lambda: native.memory_resource(context, number, 0, 0), lambda: context.alloc(1, tag=number)):
        with pytest.raises(OverflowError):
            call()


def test_no_time_is_below_0(context):
    for call in (lambda: gmm.lease.Lease("time", residency=-1, context=context),
                 lambda: context.ipc_import(bytes(64), timeout=-1)):
        with pytest.raises(ValueError, match="0 seconds or more"):
            call()
    with gmm.lease.Lease("time", context=context) as lease:
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError):
                lease.request(timeout=timeout)
