# SPDX-License-Identifier: Apache-2.0
"""The views of `gmm trace`, each read by its viewer's own code: Perfetto's and pprof's protobuf definitions, PyTorch's
reader of snapshots, and the HTML page in headless Chromium.

Usage: views_test.py GMM TOUR PLANTED DEPS       The programs are traced; DEPS has the viewers' Python environments
"""
import csv
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

GMM, TOUR, PLANTED, DEPS = *sys.argv[1:4], pathlib.Path(sys.argv[4])
BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
MIB = 1 << 20
PERFETTO = """
import collections, json, sys
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as definitions
trace, event = definitions.Trace(), definitions.TrackEvent
trace.ParseFromString(open(sys.argv[1], "rb").read())
names, last, most, slices, open_at = {}, {}, collections.Counter(), [], {}
for packet in trace.packet:
    track, of = packet.track_descriptor, packet.track_event
    if packet.HasField("track_descriptor"):
        names[track.uuid] = track.name
        assert not track.HasField("counter") or track.counter.unit == definitions.CounterDescriptor.UNIT_SIZE_BYTES
    elif of.type == event.TYPE_COUNTER:
        last[names[of.track_uuid]] = of.counter_value
        most[names[of.track_uuid]] = max(most[names[of.track_uuid]], of.counter_value)
    elif of.type == event.TYPE_SLICE_BEGIN:
        open_at[of.track_uuid] = (of.name, packet.timestamp, of.debug_annotations[0].uint_value)
    elif of.type == event.TYPE_SLICE_END:
        name, began, size = open_at.pop(of.track_uuid)
        slices.append([name, packet.timestamp - began, size])
    else:
        slices.append([of.name, 0, [each.name + each.string_value for each in of.debug_annotations]])
assert not open_at
print(json.dumps({"most": most, "last": last, "slices": slices}))
"""
PPROF = """
import gzip, json, sys
from pypprof import profile_pb2
profile = profile_pb2.Profile()
profile.ParseFromString(gzip.open(sys.argv[1]).read())
text = profile.string_table
functions = {each.id: text[each.name] for each in profile.function}
lines = {each.id: functions[each.line[0].function_id] for each in profile.location}
print(json.dumps({"types": [text[each.type] + " " + text[each.unit] for each in profile.sample_type],
                  "mappings": [[text[each.filename], text[each.build_id]] for each in profile.mapping],
                  "samples": [[[lines[each] for each in sample.location_id], list(sample.value),
                               {text[label.key]: text[label.str] for label in sample.label}]
                              for sample in profile.sample]}))
"""
PYTORCH = """
import json, sys
from torch.cuda import _memory_viz
data = json.load(open(sys.argv[1]))
print(_memory_viz.segsum(data), _memory_viz.trace(data))
"""


def view(traces, kind, target, *options):
    subprocess.run([GMM, "trace", "--view", kind, "--output", target, *options, *traces], check=True, timeout=300)
    return target


def read_by(environment, program, path):
    """The output of the program, by an environment in DEPS; None: it is not there."""
    python = DEPS / environment / "bin" / "python"
    if not (DEPS / environment / "ready").exists():
        return None
    run = subprocess.run([python, "-c", program, path], capture_output=True, text=True, check=False, timeout=300,
                         env=dict(os.environ, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python"))
    return run.stdout if run.returncode == 0 else run.stderr


def check_read(name, environment, program, path, check):
    text = read_by(environment, program, path)
    if text is None:
        return tap.skip(name, f"there is no Python environment .deps/{environment}")
    try:
        good = check(text)
    except (ValueError, KeyError, IndexError) as error:
        good, text = False, f"{error!r}: {text}"
    tap.check(good, name, text.splitlines()[:40])


def test_lines(trace, folder):
    rows = list(csv.DictReader(view([trace], "csv", folder / "t.csv").read_text().splitlines()))
    allocs = [row for row in rows if row["event"] == "alloc"]
    tap.check(all(re.search(r"^step_alloc \([^;]*tour\.c:\d+\); .*main \(", row["stack"]) and
                  row["stack_bytes"] == row["bytes"] for row in allocs), "csv: stacks name functions and lines",
              [allocs[0]["stack"]])
    pauses = [row for row in rows if row["event"] in ("pause", "resume")]
    tap.check(allocs and all(row["tag"] == "tour" and int(row["bytes"]) % MIB == 0 for row in allocs), "csv: allocs",
              [str(rows[:5])])
    tap.check([row["event"] for row in pauses] == ["pause", "resume"] and
              all(int(row["duration_ns"]) > 0 for row in pauses), "csv: pauses take their time", [str(pauses)])
    failed = [row for row in rows if row["event"] == "failed"]
    tap.check(failed and all(row["result"] == "GMM_ERROR_LIMIT_EXCEEDED" and "limit" in row["message"] and
                             "step_limit (" in row["stack"] for row in failed), "csv: failures", [str(failed)])
    text = view([trace], "text", folder / "t.txt").read_text()
    tap.check(all(re.search(rf"^ *[\d.]+ +\d+  {word} ", text, re.MULTILINE)
                  for word in ("alloc", "free", "pause", "resume", "move", "trim", "failed", "held")),
              "text: each event", text.splitlines()[:40])
    tap.check(re.search(r"  alloc .*\n {25}step_alloc \(.*tour\.c:\d+\)\n", text), "text: a call a line",
              text.splitlines()[:40])
    for options, expected in (["--kind", "vmm"], {"VMM"}), (["--tag", "nobody's"], set()), (["--least", "1T"], set()):
        rows = csv.DictReader(view([trace], "csv", folder / "part.csv", *options).read_text().splitlines())
        kinds = {row["kind"] for row in rows if row["event"] in ("alloc", "free")}
        tap.check(kinds == expected, f"csv {' '.join(options)}", [str(kinds)])


def test_perfetto(trace, folder):
    def check(text):
        got = json.loads(text)
        names = [name for name, *_ in got["slices"]]
        vmm = "device 0, tour, "
        return (got["most"][vmm + "live"] > 0 and got["most"][vmm + "reserved"] >= got["most"][vmm + "live"] and
                got["most"][vmm + "paused"] > 0 and not any(got["last"].values()) and
                all(name in names for name in ("pause tour", "resume tour", "move", "trim", "GMM_ERROR_LIMIT_EXCEEDED"))
                and any(name == "pause tour" and took > 0 and size > 0 for name, took, size in got["slices"]) and
                all(any(name == mark and call in " ".join(notes) for name, _, notes in got["slices"] if name in marks)
                    for mark, call in marks.items()))
    marks = {"GMM_ERROR_LIMIT_EXCEEDED": "step_limit (", "peak": "step_alloc ("}
    check_read("perfetto: its own definitions read the counters and slices", "viewers", PERFETTO,
               view([trace], "perfetto", folder / "t.perfetto"), check)


def test_pprof(trace, folder):
    def check(text):
        got = json.loads(text)
        sample = next(each for each in got["samples"] if each[2]["kind"] == "VMM")
        return (got["types"] == ["alloc_objects count", "alloc_space bytes", "inuse_objects count",
                                 "inuse_space bytes"] and
                sample[2] == {"device": "device 0", "kind": "VMM", "tag": "tour", "state": "active"} and
                sample[0][0] == "step_alloc" and "main" in sample[0] and
                sample[0][-3:] == ["tour", "VMM", "device 0"] and
                any(name.endswith("/traced") and len(build_id) >= 16 for name, build_id in got["mappings"]) and
                sample[1][1] > 0 and sample[1][3] == 0)
    check_read("pprof: its own definitions read the samples", "viewers", PPROF,
               view([trace], "pprof", folder / "t.pb.gz"), check)
    check_read("pprof: at the peak somebody holds it", "viewers", PPROF,
               view([trace], "pprof", folder / "peak.pb.gz", "--peak"),
               lambda text: sum(each[1][3] for each in json.loads(text)["samples"]) > 0)


def lies_in_segments(data):
    """Whether each block does, as the viewer's picture of the allocator's state wants it: back from the end."""
    for device, events in enumerate(data["device_traces"]):
        mapped = [(each["address"], each["address"] + each["total_size"]) for each in data["segments"]
                  if each["device"] == device]
        for event in reversed([each for each in events if each["action"] != "oom"]):
            begin, end = event["addr"], event["addr"] + event["size"]
            if event["action"] == "segment_unmap":
                mapped.append((begin, end))
            around = [each for each in mapped if each[0] <= begin and end <= each[1]]
            if not around:
                return False
            if event["action"] == "segment_map":
                mapped.remove(around[0])
                mapped += [(around[0][0], begin), (end, around[0][1])]
    return True


def test_pytorch(trace, folder):
    path = view([trace], "memory-viz", folder / "t.json", "--to", "1.0")
    data = json.loads(path.read_text())
    frames = [frame for events in data["device_traces"] for event in events for frame in event["frames"]]
    tap.check(any(frame["name"] == "step_alloc" and frame["filename"].endswith("tour.c") and frame["line"] > 0
                  for frame in frames), "memory-viz: stacks", [str(frames)[:1000]])
    tap.check(set(data) == {"segments", "device_traces", "allocator_settings", "external_annotations"} and
              all(block["frames"] is not None for segment in data["segments"] for block in segment["blocks"]),
              "memory-viz: the fields of PyTorch's snapshot", [str(data)[:1000]])
    tap.check(all(lies_in_segments(json.loads(view([trace], "memory-viz", folder / "s.json", *options).read_text()))
                  for options in ([], ["--to", "0.001"], ["--to", "1.0"])), "memory-viz: each block lies in a segment")
    check_read("memory-viz: PyTorch reads it", "torch", PYTORCH, view([trace], "memory-viz", folder / "whole.json"),
               lambda text: all(word in text for word in ("Device 0", "MEM[", "segment_unmap",
                                                          "raise OutOfMemoryError")))


def check_shown(name, page, *words):
    """Chromium shows the words, in this order."""
    if BROWSER is None:
        return tap.skip(name, "there is no Chromium")
    run = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
                          "--dump-dom", page.as_uri()], capture_output=True, text=True, check=False, timeout=120)
    tap.check(re.search(".*".join(map(re.escape, words)), run.stdout, re.DOTALL), name,
              [*run.stdout.splitlines()[-40:], *run.stderr.splitlines()[-10:]])


def test_html(traces, folder):
    page = view(traces, "html", folder / "t.html")
    text = page.read_text()
    tap.check("http" not in text.replace("http-equiv", ""), "html: it names no network")
    check_shown("html: Chromium shows it", page, 'data-ready="yes"', "At the peak", "<td>tour</td>", "step_alloc (",
                "GMM_ERROR_LIMIT_EXCEEDED", "<td>pause</td>")


def test_diagnosis(folder):
    """examples/diagnose/README.md is right about its program."""
    trace = folder / "planted.trace"
    recording = dict(os.environ, GMM_TRACE=str(trace), GMM_TRACE_STACKS="1", GMM_LOG="warning",
                     GMM_DEBUG="off")  # else the address sanitizer, where there is one, ends it at the third mistake
    run = subprocess.run([PLANTED], env=recording, timeout=300, capture_output=True, text=True, check=True)
    tap.check('Leak: 200 x 98304 bytes of VMM memory on device 0, tag "thumbnails"' in run.stderr, "guide: the leak",
              run.stderr.splitlines())
    check_shown("guide: the page", view([trace], "html", folder / "planted.html"), "At the end: 18.8 MiB",
                "<td>thumbnails</td>", "add_thumbnail (", "when the heaps held the most", "22.8 MiB in ")
    run = subprocess.run([PLANTED], env=dict(os.environ, GMM_DEBUG="redzone"), timeout=300, capture_output=True,
                         text=True, check=False)
    tap.check(run.returncode == 1 and any(words in run.stderr for words in (
        'tag "labels": byte 1000 is the first wrong one', "AddressSanitizer: use-after-poison")),
              "guide: the write past a block", run.stderr.splitlines())


def test_many_events(folder):
    """A million events in each view, and the page below 20 MB."""
    path = folder / "many.trace.gz"
    with gzip.open(path, "wt", compresslevel=1) as out:
        for i in range(500_000):
            out.write(f"a {i % 50_000} {1 + i % 977} {i % 3}\nf {i % 50_000} {i % 3}\n")
    for kind in ("text", "csv", "perfetto", "memory-viz", "pprof", "html"):
        size = view([path], kind, folder / "many").stat().st_size
        tap.check(size > 0 and (kind != "html" or size < 20 * MIB), f"{kind}: a million events", [f"{size} bytes"])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        trace = folder / "t%p.trace"
        subprocess.run([TOUR], check=True, timeout=300, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, GMM_TRACE=str(trace), GMM_TRACE_STACKS="1"))
        traces = sorted(folder.glob("t*.trace"), key=lambda path: path.stat().st_size)
        test_lines(traces[-1], folder)
        test_perfetto(traces[-1], folder)
        test_pprof(traces[-1], folder)
        test_pytorch(traces[-1], folder)
        test_html(traces[-1:] + traces[:-1], folder)
        test_diagnosis(folder)
        test_many_events(folder)
    tap.finish()


main()
