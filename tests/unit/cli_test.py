# SPDX-License-Identifier: Apache-2.0
"""The command gmm: its output, and its messages about bad input.

Usage: cli_test.py SOURCE_ROOT GMM
"""

import gzip
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT, GMM = pathlib.Path(sys.argv[1]), sys.argv[2]
ENVIRONMENT = dict(os.environ, GMM_BACKEND="host")


def gmm(*arguments):
    done = subprocess.run([GMM, *map(str, arguments)], capture_output=True, text=True, check=False, env=ENVIRONMENT,
                          timeout=300)
    return done.returncode, done.stdout, done.stderr


def expect(name, arguments, code, out="", err=""):
    got = gmm(*arguments)
    passed = got[0] == code and re.search(out, got[1]) is not None and re.search(err, got[2]) is not None
    tap.check(passed, name, [f"exit code {got[0]}, expected {code}", *got[1].splitlines(), *got[2].splitlines()])
    return got[1]


def test_words():
    for name, words, code, out, err in [
            ("the version", ["--version"], 0, r"^gmm \d+\.\d+\.\d+(rc\d+)?\n$", ""),
            ("the help", ["--help"], 0, "gmm replay", ""),
            ("no command", [], 2, "", "gmm info"),
            ("an unknown command", ["frobnicate"], 2, "", "no command 'frobnicate'"),
            ("an unknown option", ["info", "--frobnicate"], 2, "", "no option '--frobnicate'"),
            ("an unknown backend", ["info", "--backend", "abacus"], 2, "", "--backend does not take 'abacus'"),
            ("an option without a value", ["info", "--device"], 2, "", "--device"),
            ("a number that is none", ["info", "--device", "-1"], 2, "", "'-1'"),
            ("info", ["info", "--host-memory", "2"], 0,
             r"backend host .*1 device\ndevice 0: .*\n  not a GPU(.*\n)*  memory +2048\.0 MiB(.*\n)*"
             r"  kinds +device vmm host managed", "")]:
        expect(name, words, code, out, err)


def test_host_beside_a_gpu():
    """In a mount namespace, where /dev has the driver's file, or has not."""
    def warned(device, **environment):
        place = "mount -t tmpfs tmpfs /dev && " + ("touch /dev/nvidiactl && " if device else "") + 'exec "$0" info'
        variables = {"GMM_BACKEND": "auto", "GMM_CUDA_DRIVER": "/nowhere.so", **environment}
        run = subprocess.run(["unshare", "--mount", "sh", "-c", place, GMM], capture_output=True, text=True,
                             check=False, env=variables)
        if run.returncode != 0:
            return run.stderr
        return run.stderr.count("warning: Going on without an NVIDIA device: The CUDA driver could not")

    first = warned(True)
    if isinstance(first, str):
        tap.skip("the host backend beside an NVIDIA device is warned of", f"no mount namespace: {first.strip()}")
        return
    got = [first, warned(False), warned(True, CUDA_VISIBLE_DEVICES=""), warned(True, CUDA_VISIBLE_DEVICES="-1"),
           warned(True, CUDA_VISIBLE_DEVICES="0"), warned(True, GMM_BACKEND="host")]
    tap.check(got == [1, 0, 0, 0, 1, 0], "the host backend beside an NVIDIA device is warned of, once", [str(got)])


def test_replay():
    traces = sorted((ROOT / "tests/bench/traces").glob("*.trace.gz"))
    for kind in ("vmm", "device"):
        out = expect(f"replay of the stored traces, kind {kind}",
                     ["replay", "--host-memory", "64", "--kind", kind, traces[0].parent], 0, f"kind {kind}")
        rows = re.findall(r"^(\w+) +(\d+) +1 +([\d.]+) MiB +([\d.]+) MiB +([\d.]+)", out, re.MULTILINE)
        tap.check([row[0] for row in rows] == [path.name.split(".")[0] for path in traces],
                  f"a row for each trace, kind {kind}", out.splitlines())
        for name, operations, requested, reserved, ratio in rows:
            expected = [line.split() for line in gzip.open(ROOT / f"tests/bench/traces/{name}.trace.gz", "rt")]
            live, total, peak = {}, 0, 0
            for words in expected:
                total += int(words[2]) if words[0] == "a" else -live.pop(words[1])
                if words[0] == "a":
                    live[words[1]] = int(words[2])
                peak = max(peak, total)
            tap.check(int(operations) == len(expected) and abs(float(requested) - peak / 2**20) < 0.1 and
                      float(reserved) >= float(requested) - 0.1
                      and abs(float(ratio) - float(reserved) / float(requested)) < 0.01,
                      f"{name}, kind {kind}: operations, peaks and ratio",
                      [f"{operations} {requested} {reserved} {ratio}", f"{len(expected)} {peak / 2**20}"])
    expect("a trace that does not fit", ["replay", "--host-memory", "1", traces[0]], 1,
           err=r"operation \d+ of the trace:\ngmm: alloc: GMM_ERROR_OUT_OF_MEMORY: \w")


def test_bad_traces(folder):
    long_line = "a 1 " + "9" * 200 + " 0\n"
    for name, text, message in [
            ("empty", "", "empty"), ("words", "hello\n", ":1: the line is neither"),
            ("cut", "a 1 2\n", ":1: the line is neither"), ("rest", "a 0 1 0 0\n", ":1: the line is neither"),
            ("negative", "a 0 -5 0\n", ":1: the line is neither"),
            ("huge", "a 0 99999999999999999999999 0\n", ":1: the line is neither"), ("zero", "a 0 0 0\n", "0 bytes"),
            ("twice", "a 0 1 0\na 0 1 0\n", ":2: the block is allocated already"),
            ("unknown", "a 0 1 0\nf 1 0\n", ":2: the block is not allocated"),
            ("long", long_line, ":1: the line is too long"), ("identifier", "a 99999999999 1 0\n", "above 50,000,000"),
            ("sum", f"a 0 {2**62 - 1} 0\na 1 {2**62 - 1} 0\n", "more bytes")]:
        path = folder / f"{name}.trace"
        path.write_text(text)
        expect(f"a bad trace: {name}", ["replay", path], 1, err=message)
    whole = (ROOT / "tests/bench/traces/streams_mixed.trace.gz").read_bytes()
    (folder / "half.trace.gz").write_bytes(whole[:len(whole) // 2])
    expect("a trace that is cut off", ["replay", folder / "half.trace.gz"], 1, err="damaged or cut off")
    expect("a trace that is not there", ["replay", folder / "gone"], 1, err="cannot be opened: No such file")


def record(path, *arguments):
    """Traces the command itself, through the environment."""
    done = subprocess.run([GMM, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
                          env=dict(ENVIRONMENT, GMM_TRACE=str(path)))
    return done.returncode


def numbered(lines):
    """Text lines with the blocks numbered by their allocs, and streams by their first use."""
    blocks, streams, out = {}, {"0": 0}, []
    for words in (line.split() for line in lines):
        if words[0] == "a":
            blocks[words[1]] = len(out)
        out.append((words[0], blocks[words[1]], words[2] if words[0] == "a" else "",
                    streams.setdefault(words[-1], len(streams))))
    return out


def test_binary_traces(folder):
    source, traced = ROOT / "tests/bench/traces/streams_mixed.trace.gz", folder / "recorded.trace"
    # A replay frees what is left over and runs again: the first pass is what the snapshot's replay runs alone.
    tap.check(record(traced, "snapshot", source, "--host-memory", "16") == 0, "a replay is traced")
    text = expect("a binary trace as text", ["trace", "--view", "plain", traced], 0, r"^a 0 \d+ \d+\n").splitlines()
    original = gzip.open(source, "rt").read().splitlines()
    tap.check(numbered(text) == numbered(original), "the trace of a replay has the replayed operations",
              [f"{len(text)} lines", f"{len(original)} lines"])
    itself = expect("a text trace as text", ["trace", "--view", "plain", source], 0).splitlines()
    tap.check(numbered(itself) == numbered(original), "a text trace stays itself")
    (folder / "as.text").write_text("\n".join(text) + "\n")
    counts = []
    for name, arguments in (("", []), (" with threads", ["--threads"])):
        for path in (traced, folder / "as.text"):
            out = expect(f"replay of {path.name}{name}", ["replay", "--host-memory", "16", *arguments, path], 0)
            counts.append(re.search(r"^\w+ +(\d+) +1 +([\d.]+) MiB", out, re.MULTILINE).groups())
    tap.check(len(set(counts)) == 1, "binary and text are the same operations", [str(counts)])
    (folder / "zipped.trace.gz").write_bytes(gzip.compress(traced.read_bytes()))
    expect("a binary trace through gzip", ["replay", "--host-memory", "16", folder / "zipped.trace.gz"], 0)

    whole = traced.read_bytes()
    killed = whole[:-BLOCK]  # as a program leaves it that ends: its last block has zeros behind the records
    (folder / "killed.trace").write_bytes(killed)
    expect("a trace whose end is missing", ["replay", "--host-memory", "16", folder / "killed.trace"], 0,
           err="incomplete: its end is missing")
    (folder / "cut.trace").write_bytes(whole[:BLOCK + 20000])
    text = expect("a trace that was cut", ["trace", "--view", "plain", folder / "cut.trace"], 0,
                  err="end is missing").splitlines()
    tap.check(len(text) > 20 and numbered(text) == numbered(original)[:len(text)], "it has all until then",
              [f"{len(text)} lines"])

    def damaged(offset, data):
        return whole[:offset] + data + whole[offset + len(data):]

    for name, data, message in [
            ("only a header", whole[:BLOCK], "trace is empty"),
            ("a cut header", whole[:40], "byte 40: the file ends in its header"),
            ("another version", damaged(8, b"\x07"), "another version than 1"),
            ("other blocks", damaged(12, b"\x07"), "blocks of the trace have another size"),
            ("a record of no size", damaged(BLOCK + 2, b"\0"), f"byte {BLOCK}: the record has no size"),
            ("an unknown form", damaged(BLOCK, b"\x09"), f"byte {BLOCK}: the record has an unknown form"),
            ("an unknown heap", binary([(ALLOC, 4096, 10, 3)]), "the allocation is of an unknown heap"),
            ("a block allocated twice", binary([(HEAP, 0, 1, 1)] + [(ALLOC, 4096, 10, 0)] * 2),
             "at the address of a live block"),
            ("something behind the end", whole + b"more", "behind the end")]:
        (folder / "bad.trace").write_bytes(data)
        expect(f"a bad binary trace: {name}", ["trace", folder / "bad.trace"], 1, err=message)
    # 3 GB of zeros behind a header take the memory of a block.
    zeros = gzip.compress(bytes(1 << 27), 1)
    (folder / "bomb.gz").write_bytes(gzip.compress(whole[:BLOCK]) + zeros * 24)
    # The address sanitizer reserves more addresses than that for itself.
    limit = resource.RLIM_INFINITY if b"__asan_init" in pathlib.Path(GMM).read_bytes() else 1 << 30
    done = subprocess.run([GMM, "trace", folder / "bomb.gz"], capture_output=True, text=True, check=False, timeout=120,
                          env=ENVIRONMENT, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    tap.check(done.returncode == 1 and "trace is empty" in done.stderr, "zeros that gzip packed", done.stderr)


BLOCK = 1 << 16
ALLOC, FREE, BLOCK_NAME, END, THREAD, HEAP, LONG = 1, 2, 11, 13, 14, 16, 15  # lib/engine/trace/format.h


def binary(records):
    """A trace of one thread's records. ALLOC: address, size, slot of the heap. FREE: address. Others: their values."""
    body = b""
    for kind, *values in [(THREAD, 7), *records, (END, 0)]:
        if kind in (ALLOC, FREE):
            numbers = [kind | 1 << 8 | values[0] << 16] + ([values[1] | values[2] << 48] if kind == ALLOC else [])
            body += b"".join(number.to_bytes(8, "little") for number in numbers)
            continue
        data = b"".join(v.to_bytes(8, "little") if isinstance(v, int) else v.ljust(64, b"\0") for v in values)
        body += bytes([LONG, kind, 2 + len(data) // 8]).ljust(8, b"\0") + len(body).to_bytes(8, "little") + data
    header = b"gmmtrace" + (1).to_bytes(4, "little") + BLOCK.to_bytes(4, "little")
    return header.ljust(BLOCK, b"\0") + body.ljust(BLOCK, b"\0")


def recorded_by_hand():
    """A trace of three heaps: a thread allocates a block in each, names two, and frees and allocates one."""
    def heap(slot, kind, device, tag, name):
        return HEAP, slot, 70 + slot, kind | device << 16 | tag << 32, name

    long_name = ("w" * 61 + "\u00fc").encode()
    return binary([heap(0, 1, 0, 1, b"default"), (ALLOC, 0x100000, 1000, 0),
                   heap(1, 2, 1, 7, long_name), (ALLOC, 0x200000, 5000000, 1),
                   (BLOCK_NAME, 0x200000, b"first"), (BLOCK_NAME, 0x200000, long_name),
                   heap(255, 3, 0, 9, b""), (ALLOC, 0x300000, 3000, 255),
                   (BLOCK_NAME, 0x100000, b"gone"), (BLOCK_NAME, 0x100000, b""),
                   (FREE, 0x100000), (ALLOC, 0x100000, 2000, 1)])


def blocks_of(text):
    """The blocks of a snapshot: kind, device, tag, size, name."""
    return sorted((heap["kind"], heap["device"], heap["tag"], block["size"], block.get("name", ""))
                  for heap in json.loads(text)["heaps"] for block in heap["blocks"])


def test_snapshot_of_trace(folder):
    path, again = folder / "by_hand.trace", folder / "again.trace"
    path.write_bytes(recorded_by_hand())
    long_name = "w" * 61 + "\u00fc"
    expected = [("host", 0, "tag 9", 3000, ""), ("vmm", 1, long_name, 2000, ""),
                ("vmm", 1, long_name, 5000000, long_name)]
    got = blocks_of(expect("snapshot of a binary trace", ["snapshot", path], 0))
    tap.check(got == expected, "kinds, devices, tags and names are the trace's", [str(got)])
    tap.check(record(again, "snapshot", path) == 0, "the snapshot's replay is traced")
    got = blocks_of(expect("snapshot of that trace", ["snapshot", again], 0))
    tap.check(got == expected, "and so are those of its own trace", [str(got)])
    got = blocks_of(expect("snapshot of one kind", ["snapshot", path, "--kind", "managed", "--device", "0"], 0))
    tap.check({block[:2] for block in got} == {("managed", 0)} and [block[2:] for block in got] ==
              [block[2:] for block in expected], "--kind and --device are for all blocks", [str(got)])
    text = expect("its text", ["trace", "--view", "plain", path], 0)
    tap.check(text == "a 0 1000 0\na 1 5000000 0\na 2 3000 0\nf 0 0\na 3 2000 0\n", "the text has no names",
              text.splitlines())
    path.write_bytes(binary([(HEAP, 0, 70, 1 | 9 << 32, b"\x1b[2Jtag\xff\xc3"), (ALLOC, 0x100000, 1000, 0)]))
    expect("a name that is no text", ["trace", path], 0, r"  \?\[2Jtag\?\?, stream")
    path.write_bytes(recorded_by_hand())
    expect("replay of names", ["replay", path, "--host-memory", "16"], 0, r"by_hand +9 ")


def test_snapshot(folder):
    (folder / "two.trace").write_text("a 0 1000 0\na 1 5000000 7\nf 0 0\n")
    for name, arguments in (("without a trace", []), ("after a trace", [folder / "two.trace"]),
                            ("after two operations", [folder / "two.trace", "--operations", "2"])):
        snapshot = json.loads(expect(f"snapshot {name}", ["snapshot", *arguments], 0) or "{}")
        tap.check(snapshot.get("version") == 1, f"the snapshot {name} is JSON of version 1", [str(snapshot)[:500]])


def test_serve(folder):
    """One server a folder, which runs until it is ended; the next one takes its place."""
    place = ["--folder", str(folder / "leases")]
    expect("the status without a server", ["serve", "--status", *place], 1, err="NOT_READY.*no server runs")
    expect("a folder that is no path", ["serve", "--folder", "here"], 2, err="--folder does not take 'here'")
    expect("a user who is none", ["serve", "--user", "root"], 2, err="--user does not take 'root'")
    numbers = []
    for which in ("the first", "a later"):
        with subprocess.Popen([GMM, "serve", *place], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as server:
            deadline = time.monotonic() + 60
            while gmm("serve", "--status", *place)[0] != 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            out = expect(f"the status of {which} server", ["serve", "--status", *place], 0,
                         rf"^server \d+, process {server.pid}, leases by device: 0$")
            expect(f"a second server beside {which} one", ["serve", *place], 1, err="BUSY.*Another server")
            server.kill()
        numbers.append(int((re.search(r"\d+", out) or [0])[0]))
    tap.check(0 < numbers[0] < numbers[1], "a later server has a greater number", [str(numbers)])
    expect("the status after its end", ["serve", "--status", *place], 1, err="NOT_READY")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        (folder / "leases" / "serve.sock").unlink()
        listener.bind(str(folder / "leases" / "serve.sock"))
        listener.listen()
        expect("a server beside somebody else's socket", ["serve", *place], 1, err="Somebody else listens")
        # As systemd gives it. The process is the one that runs gmm, as exec keeps its number.
        start = f'exec 3<&{listener.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'
        with subprocess.Popen(["bash", "-c", start, "-", GMM, "serve", *place], env=ENVIRONMENT,
                              pass_fds=[listener.fileno()]) as server:
            expect("a server on a socket of systemd", ["serve", "--status", *place], 0)
            server.kill()


def main():
    test_words()
    test_host_beside_a_gpu()
    test_replay()
    with tempfile.TemporaryDirectory() as folder:
        test_bad_traces(pathlib.Path(folder))
        test_binary_traces(pathlib.Path(folder))
        test_snapshot(pathlib.Path(folder))
        test_snapshot_of_trace(pathlib.Path(folder))
        test_serve(pathlib.Path(folder))
    tap.finish()


main()
