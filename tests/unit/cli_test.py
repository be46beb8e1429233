# SPDX-License-Identifier: Apache-2.0
"""The command gmm: what it prints, and what it says to bad input.

Usage: cli_test.py SOURCE_ROOT GMM
"""

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

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
    expect("the version", ["--version"], 0, r"^gmm \d+\.\d+\.\d+(-rc)?\n$")
    expect("the help", ["--help"], 0, "gmm replay")
    expect("no command", [], 2, err="gmm info")
    expect("an unknown command", ["frobnicate"], 2, err="gmm info")
    expect("an unknown option", ["info", "--frobnicate"], 2, err="--frobnicate")
    expect("an unknown backend", ["info", "--backend", "abacus"], 2, err="--backend does not take 'abacus'")
    expect("an option without a value", ["info", "--device"], 2, err="--device")
    expect("a number that is none", ["info", "--device", "-1"], 2, err="'-1'")


def test_info():
    expect("info", ["info", "--host-memory", "2"], 0,
           r"backend host .*1 device\ndevice 0: .*\n  not a GPU(.*\n)*  memory +2048\.0 MiB(.*\n)*"
           r"  kinds +device vmm host managed")


def test_replay():
    traces = sorted((ROOT / "tests/bench/traces").glob("*.trace.gz"))
    for kind in ("vmm", "device"):
        out = expect(f"replay of the stored traces, kind {kind}",
                     ["replay", "--host-memory", "64", "--kind", kind, *traces], 0, f"kind {kind}")
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
    """What the command itself does, traced through the environment."""
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
    text = expect("a binary trace as text", ["trace", traced], 0, r"^a 0 \d+ \d+\n").splitlines()
    original = gzip.open(source, "rt").read().splitlines()
    tap.check(numbered(text) == numbered(original), "what was traced of a replay is what was replayed",
              [f"{len(text)} lines", f"{len(original)} lines"])
    tap.check(numbered(expect("a text trace as text", ["trace", source], 0).splitlines()) == numbered(original),
              "a text trace stays itself")
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
    (folder / "cut.trace").write_bytes(whole[:-40])
    expect("a trace whose end is missing", ["replay", "--host-memory", "16", folder / "cut.trace"], 0,
           err="incomplete: its end is missing.* 8 bytes")
    first = int.from_bytes(whole[12:16], "little")  # where the first chunk begins
    # As a program leaves it that ends while it fills its first chunk: 100 records, and zeros.
    at, size = first + 32, int.from_bytes(whole[first + 4:first + 8], "little")
    for _ in range(100):
        at += 8 * (whole[at] & 7)
    (folder / "killed.trace").write_bytes(whole[:first + 24] + bytes(4) + whole[first + 28:at] +
                                          bytes(first + 32 + size - at))
    killed = expect("a trace of a program that was killed", ["trace", folder / "killed.trace"], 0).splitlines()
    tap.check(len(killed) > 20 and numbered(killed) == numbered(original)[:len(killed)],
              "it has what was recorded until then", [f"{len(killed)} lines"])

    def damaged(offset, data):
        return whole[:first + offset] + data + whole[first + offset + len(data):]

    for name, data, message in [
            ("only a header", whole[:first], "trace is empty"),
            ("a cut header", whole[:63], "byte 63: the file ends in its header"),
            ("another version", whole[:8] + b"\x07" + whole[9:], "byte 8: version 7 .* reads version 1"),
            ("a damaged chunk", damaged(0, b"x"), f"byte {first}: no chunk begins here"),
            ("a chunk without bounds", damaged(4, b"\xf8\xff\xff\xff"), f"byte {first + 4}: the size of the chunk"),
            ("a record of no size", damaged(32, b"\0"), f"byte {first + 32}: the record has no size"),
            ("something behind the end", whole + b"more", "behind the end")]:
        (folder / "bad.trace").write_bytes(data)
        expect(f"a bad binary trace: {name}", ["trace", folder / "bad.trace"], 1, err=message)


def test_snapshot(folder):
    (folder / "two.trace").write_text("a 0 1000 0\na 1 5000000 7\nf 0 0\n")
    for name, arguments in (("without a trace", []), ("after a trace", [folder / "two.trace"]),
                            ("after two operations", [folder / "two.trace", "--operations", "2"])):
        out = expect(f"snapshot {name}", ["snapshot", *arguments], 0)
        try:
            snapshot = json.loads(out)
        except ValueError as error:
            snapshot = {"error": str(error)}
        tap.check(snapshot.get("version") == 1, f"the snapshot {name} is JSON of version 1",
                  [out[:500], str(snapshot.get("error"))])


def main():
    test_words()
    test_info()
    test_replay()
    with tempfile.TemporaryDirectory() as folder:
        test_bad_traces(pathlib.Path(folder))
        test_binary_traces(pathlib.Path(folder))
        test_snapshot(pathlib.Path(folder))
    tap.finish()


main()
