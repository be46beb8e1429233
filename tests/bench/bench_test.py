# SPDX-License-Identifier: Apache-2.0
"""gmm-bench: the shape of its rows, what it warns of and what it refuses. No time is judged.

Usage: bench_test.py SOURCE_ROOT GMM_BENCH FOLDER_OF_THE_TEST_PEER [FOLDER_OF_FAKE_CUDA]
"""

import gzip
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT, BENCH, PEERS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
FAKE_CUDA = sys.argv[4] if len(sys.argv) > 4 else None
KEYS = ["bench", "subject", "backend", "device", "kind", "size", "threads", "trace", "ns", "gbps",
        "reserved_over_requested", "handles"]
KINDS = {"device", "vmm", "host", "managed"}
SHORT = ["--samples", "3", "--sample-us", "20"]
GMM = ["gmm", "gmm-heap"]  # of all commands; `latency` has two more


def bench(*arguments, fake=False, environment=()):
    variables = dict(os.environ, **dict(environment))
    variables.pop("GMM_BACKEND", None)
    variables.pop("MALLOC_PERTURB_", None)  # Meson's: malloc would write the gigabytes of a trace
    if fake:
        variables["LD_LIBRARY_PATH"] = FAKE_CUDA + ":" + variables.get("LD_LIBRARY_PATH", "")
    done = subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, check=False, env=variables,
                          timeout=300)
    return done.returncode, done.stdout, done.stderr


def rows_of(name, *arguments, code=0, **options):
    """The rows of a run with --json, each with the fields that every row has."""
    got = bench(*arguments, "--json", **options)
    problems = [f"exit code {got[0]}, expected {code}", *got[2].splitlines()] if got[0] != code else []
    rows = []
    for line in got[1].splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            problems.append(f"{error}: {line}")
    for row in rows:
        if list(row)[:len(KEYS)] != KEYS or row["bench"] != arguments[0] or not row["ns"] > 0 or row["threads"] < 1:
            problems.append(f"fields: {row}")
        if row["subject"] in GMM and (row["kind"] not in KINDS or row["handles"] is None):
            problems.append(f"a row of gmm without kind or count: {row}")
        if any(not value > 0 for value in row["over"].values()) or (row["over"]
                                                                    and row["subject"] not in [*GMM, "gmm-prepared",
                                                                                               *PEER_NAMES]):
            problems.append(f"ratios: {row}")
    if code == 0 and not rows:
        problems.append("no rows")
    tap.check(not problems, name, problems + got[2].splitlines()[:5])
    return rows, got[2]


PEER_NAMES = ["malloc", "mimalloc", "jemalloc", "umf"]


def expect(name, arguments, code, out="", err="", **options):
    got = bench(*arguments, **options)
    passed = got[0] == code and re.search(out, got[1]) is not None and re.search(err, got[2]) is not None
    tap.check(passed, name, [f"exit code {got[0]}, expected {code}", *got[1].splitlines(), *got[2].splitlines()])


def test_words():
    expect("the help", ["--help"], 0, "gmm-bench pair")
    for name, arguments, message in [
            ("no command", [], "no command"), ("an unknown command", ["frobnicate"], "no command 'frobnicate'"),
            ("an unknown option", ["pair", "--frobnicate"], "no option --frobnicate"),
            ("an unknown backend", ["pair", "--backend", "abacus"], "--backend does not take 'abacus'"),
            ("an unknown kind", ["pair", "--kind", "vmm,paper"], "--kind does not take 'vmm,paper'"),
            ("a size that is none", ["pair", "--size", "12Q"], "--size does not take '12Q'"),
            ("size 0", ["pair", "--size", "0"], "--size does not take '0'"),
            ("a list with a hole", ["pair", "--size", "1,,2"], "--size does not take '1,,2'"),
            ("too many threads", ["pair", "--threads", "100000"], "--threads does not take '100000'"),
            ("a negative number", ["mixed", "--blocks", "-4"], "--blocks does not take '-4'"),
            ("an option without a value", ["pair", "--size"], "--size wants a value"),
            ("an option of another command", ["mixed", "--share"], "mixed does not take --share"),
            ("a word too many", ["pair", "more"], "pair does not take 'more'"),
            ("a block that is not whole 2 MiB", ["pause", "--size", "1M"], "pause wants a --size of whole 2M"),
            ("two sizes", ["pause", "--size", "2M,4M"], "pause takes one --size"),
            ("unknown contents", ["pause", "--contents", "paper"], "--contents does not take 'paper'"),
            ("a cold arena without contents", ["pause", "--cold"], "--cold and --pageable go with --contents host"),
            ("a pageable file", ["pause", "--contents", "file", "--pageable"],
             "--cold and --pageable go with --contents host"),
            ("cold and pageable", ["pause", "--contents", "host", "--cold", "--pageable"],
             "pause takes one of --cold and --pageable"),
            ("a kind, for pause", ["pause", "--kind", "vmm"], "pause does not take --kind"),
            ("0 blocks", ["pause", "--blocks", "0"], "--blocks does not take '0'"),
            ("contents of another command", ["mixed", "--contents", "drop"], "mixed does not take --contents"),
            ("an unknown subject of pause", ["pause", "--backend", "host", "--subject", "gmm,mimalloc"],
             "no subject 'mimalloc'; there are: gmm, gmm-prepared, "),
            ("no trace", ["replay"], "replay wants a trace"),
            ("an unknown subject", ["pair", "--backend", "host", "--subject", "gmm,abacus"],
             "no subject 'abacus'; there are: gmm, ")]:
        expect(name, arguments, 2, err=message)
    expect("a device that is not there", ["pair", "--backend", "host", "--device", "7"], 1,
           err="GMM_ERROR_INVALID_DEVICE: \\w")


def test_pair():
    rows, err = rows_of("pair", "pair", "--backend", "host", "--size", "512,64K", *SHORT)
    for subject in GMM:
        found = {(row["kind"], row["size"]) for row in rows if row["subject"] == subject}
        tap.check(found == {(kind, size) for kind in KINDS for size in (512, 65536)},
                  f"a row of {subject} for each kind and size", [str(found)])
    for peer in PEER_NAMES:
        there = any(row["subject"] == peer for row in rows)
        told = f"the peer {peer} is missing" in err
        tap.check(there != told, f"{peer} is measured, or said to be missing", err.splitlines())
        if there:
            tap.check(all(peer in row["over"] for row in rows if row["subject"] in GMM),
                      f"gmm's rows have the ratio to {peer}")
    if any(row["subject"] == "mimalloc" for row in rows):
        tap.check(all("mimalloc-1k" in row["over"] for row in rows if row["subject"] in GMM),
                  "gmm's rows have the ratio to mimalloc's pair of 1 KiB")
    tap.check(all(row["backend"] == "host" and "Fake" not in row["device"] for row in rows),
              "the rows name the backend")

    rows, _ = rows_of("pair on threads", "pair", "--backend", "host", "--kind", "vmm", "--size", "1K", "--threads", "2",
                      "--cross", *SHORT)
    for subject in GMM:
        found = {(row["mode"], row["threads"]): row for row in rows if row["subject"] == subject}
        wanted = {("local", 1), ("local", 2), ("share", 2), ("cross", 2)}
        tap.check(set(found) == wanted, f"{subject}: alone, beside another, from one to the other", [str(set(found))])
        if set(found) == wanted:
            # Of the ratios of three samples the middle one, so it is not exactly that of the middle times.
            tap.check(found["share", 2]["over_local"] > 0 and found["cross", 2]["over_local"] > 0,
                      f"{subject}: the ratio to the local pair")
            tap.check(found["local", 2]["scaling"] > 0 and "scaling" not in found["local", 1],
                      f"{subject}: the ratio to one thread")
    tap.check(any(row["subject"] == "control" and row["threads"] == 2 for row in rows),
              "a control shows what a second thread can gain")
    expect("pair for reading", ["pair", "--backend", "host", "--size", "1K", "--kind", "vmm", *SHORT], 0,
           r"backend host .*\nno GPU took part(.*\n)*1 KiB\n(.*\n)*gmm +vmm")
    rows, _ = rows_of("one sample", "pair", "--backend", "host", "--subject", "gmm,malloc", "--kind", "vmm", "--size",
                      "1K", "--threads", "1,2", "--samples", "1")
    one, two = (next(row for row in rows if row["subject"] == "gmm" and row["threads"] == threads)
                for threads in (1, 2))
    peer = next(row for row in rows if row["subject"] == "malloc" and row["threads"] == 1)
    tap.check(abs(one["over"]["malloc"] * peer["ns"] / one["ns"] - 1) < 1e-3,
              "of one sample the ratio is that of the times", [str(one), str(peer)])
    tap.check(abs(two["scaling"] * two["ns"] / one["ns"] / 2 - 1) < 1e-3, "and so is the gain of a second thread",
              [str(one), str(two)])
    rows, _ = rows_of("so many pairs", "pair", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K",
                      "--samples", "2", "--iterations", "50")
    tap.check([row["iterations"] for row in rows] == [50], "as many pairs as asked for")


def test_mixed():
    arguments = ["mixed", "--backend", "host", "--samples", "4", "--iterations", "200", "--seed", "7"]
    rows, err = rows_of("mixed", *arguments)
    held = {row["subject"]: row["reserved_over_requested"] for row in rows if row["subject"].startswith("umf")}
    without = re.search(r"the peer umf is missing: (.*)", err)
    tap.check(len(held) == 2 or without is not None, "UMF is measured, or said to be missing", err.splitlines())
    if held:
        tap.check(held["umf"] >= held["umf-trim"] >= 1, "UMF's pool holds less where it gives memory back", [str(held)])
    else:
        tap.skip("UMF's pool holds less where it gives memory back", without[1] if without else "")
    tap.check({row["kind"] for row in rows if row["subject"] == "gmm"} == {"vmm", "device"},
              "mixed: a row for each kind")
    for row in rows:
        if row["subject"] in GMM:
            tap.check(row["reserved_over_requested"] >= 1 and row["steady"] >= 1
                      and row["peak_reserved"] >= row["peak_requested"],
                      f"{row['subject']}, {row['kind']}: what is held covers what was asked for", [str(row)])
    again, _ = rows_of("mixed again", *arguments, "--subject", "malloc")
    tap.check({row["peak_requested"] for row in rows + again} == {rows[0]["peak_requested"]},
              "one seed, one sequence, for every subject")
    uniform, _ = rows_of("mixed, uniform", *arguments, "--sizes", "uniform", "--subject", "gmm")
    tap.check(uniform[0]["peak_requested"] > 2 * rows[0]["peak_requested"], "uniform sizes are larger")


def test_latency():
    rows, err = rows_of("latency", "latency", "--backend", "host", "--iterations", "1500", "--samples", "2")
    names = ["gmm", "gmm-heap", "gmm-heap-reserved", "gmm-heap-try"]
    found = {(row["subject"], row["kind"], row["pass"]) for row in rows}
    tap.check(found >= {(name, kind, each) for name in names for kind in ("vmm", "device")
                        for each in ("first", "second")}, "a row for each subject, kind and pass", [str(found)])
    tap.check(("vma-virtual", "system", "first") in found or "the peer vma-virtual is missing" in err,
              "vma-virtual is measured, or said to be missing", err.splitlines())
    for row in rows:
        parts = [row[name] for name in ("p50", "p90", "p99", "p999", "p9999", "p99999", "max")]
        expected = 1500 + (256 if row["pass"] == "first" else 0)
        # An operation that lost the processor in the one repetition has its time from another, and none in `once`.
        tap.check(parts == sorted(parts) and (row["switched"] > 0 or row["max"] <= row["once_max"] + 1)
                  and 0 <= row["within_us"] <= 1
                  and expected - 200 <= row["operations"] <= expected,
                  f"{row['subject']}, {row['kind']}, {row['pass']} pass: percentiles ascend", [str(row)])
        if "reserved" in row["subject"] or "try" in row["subject"]:
            tap.check(row["handles"] == 0, f"{row['subject']}, {row['kind']}: no call of the driver", [str(row)])
    tap.check(any(row["handles"] > 0 for row in rows if row["subject"] == "gmm"), "without a reserve there are calls")


def peak_of(path):
    live, total, peak = {}, 0, 0
    with gzip.open(path, "rt") as lines:
        for line in lines:
            words = line.split()
            if words[0] == "a":
                live[words[1]] = int(words[2])
                total += int(words[2])
            else:
                total -= live.pop(words[1])
            peak = max(peak, total)
    return peak


def test_serving(folder):
    """Growing contexts: what is held at the peak, also when the trace runs again, and the calls that it takes."""
    for name, most, most_calls in (("concat", 1.03, 0.02), ("speculative", 1.03, 0.02), ("continuous", 1.07, 0.01),
                                   ("doubling", 1.04, 0.01), ("paged", 1.03, 0.01)):
        path = folder / f"{name}.trace"
        with open(path, "w", encoding="ascii") as out:
            subprocess.run([sys.executable, ROOT / "tests/bench/serving_trace.py", name], stdout=out, check=True)
        rows, _ = rows_of(f"{name}: replay", "replay", path, "--backend", "host", "--samples", "1", "--kind", "vmm",
                          "--subject", "gmm-heap")
        for row in rows:
            tap.check(row["reserved_over_requested"] <= row["warm_over_requested"] <= most,
                      f"{name}: at most {most} of the peak, first and warm", [str(row)])
            tap.check(row["handles"] + row["handles_warm"] <= most_calls * row["operations"],
                      f"{name}: at most {most_calls} calls an operation", [str(row)])


def test_replay(folder):
    traces = [ROOT / f"tests/bench/traces/{name}.trace.gz" for name in ("graph_train", "streams_mixed")]
    rows, _ = rows_of("replay", "replay", *traces, "--backend", "host", "--samples", "1", "--kind", "vmm,device")
    for path in traces:
        name, peak = path.name.split(".")[0], peak_of(path)
        found = [row for row in rows if row["trace"] == name]
        tap.check({row["kind"] for row in found if row["subject"] == "gmm"} == {"vmm", "device"},
                  f"{name}: a row for each kind")
        tap.check({row["peak_requested"] for row in found} == {peak}, f"{name}: the peak that was asked for",
                  [str(peak)])
        for row in found:
            if row["subject"] in ("malloc", "jemalloc"):
                tap.check(row["reserved_over_requested"] >= 0.99, f"{name}, {row['subject']}: holds what was asked for",
                          [str(row)])
            if row["subject"] in GMM:
                tap.check(row["peak_reserved"] >= peak
                          and abs(row["reserved_over_requested"] - row["peak_reserved"] / peak) < 1e-4 and
                          row["handles"] > 0 and row["peak_by"] == "counter",
                          f"{name}, {row['subject']}, {row['kind']}: the peak that is held", [str(row)])
    test_serving(folder)
    # What gmm records itself, on two threads.
    recorded = folder / "recorded.trace"
    rows_of("a recorded run", "pair", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K",
            "--threads", "2", "--share", "--samples", "1",
            "--iterations", "500", environment={"GMM_TRACE": str(recorded)})
    for arguments, threads in ([], 1), (["--recorded-threads"], 2):
        rows, _ = rows_of(f"its trace on {threads} threads", "replay", recorded, "--backend", "host", "--samples", "2",
                          *arguments)
        found = [row for row in rows if row["subject"] == "gmm"]
        tap.check(len(found) == 1 and found[0]["threads"] == threads and found[0]["operations"] >= 2 * 3 * 500 and
                  found[0]["peak_reserved"] >= found[0]["peak_requested"] > 0, f"the trace ran on {threads} threads",
                  [str(found)])

    for name, text, message in [("garbage", "a 0 512 0\nhello\n", ":2: the line is neither"),
                                ("twice", "a 0 1 0\na 0 1 0\n", ":2: the block is allocated already"),
                                ("unknown", "a 0 1 0\nf 1 0\n", ":2: the block is not allocated"),
                                ("empty", "", "empty")]:
        path = folder / f"{name}.trace"
        path.write_text(text)
        # The good one in front of it does not run either.
        expect(f"a bad trace: {name}", ["replay", traces[1], path, "--backend", "host"], 1, out="^$", err=message)
    expect("a trace that is not there", ["replay", folder / "gone", "--backend", "host"], 1, err="No such file")
    expect("a trace that does not fit",
           ["replay", traces[0], "--backend", "host", "--host-memory", "1", "--subject", "gmm"], 1,
           err=r"gmm \(vmm\): operation \d+, allocate: \w+")


BLOCKS, SIZE = 6, 4 << 20
PAUSE = ["--blocks", str(BLOCKS), "--size", "4M", "--samples", "2"]
PAUSE_KEYS = ["operation", "contents", "arena", "setting", "blocks", "bytes", "first_ns", "first_handles", "least_ns",
              "samples"]
# What is asked for, the words of the rows, gmm's peers in the process, and where its contents lie.
PAUSE_MODES = [
    (["--contents", "drop"], ("drop", "none"), {"one_handle", "raw_best"}, ""),
    (["--contents", "host"], ("host", "warm"), {"pinned_memcpy"}, "arena 100%"),
    (["--contents", "host", "--cold"], ("host", "cold"), {"host_alloc"}, "arena 100%"),
    (["--contents", "host", "--pageable"], ("host", "pageable"), {"pageable_memcpy"}, "pageable 100%"),
    (["--contents", "file"], ("file", "none"), {"direct_write"}, "file 100%")]


def test_pause(folder, backend, fake=False):
    for words, (contents, arena), peers, where in PAUSE_MODES:
        name = f"pause {' '.join(words)}, {backend}{' (fake)' if fake else ''}"
        rows, _ = rows_of(name, "pause", "--backend", backend, "--directory", folder, *words, *PAUSE, fake=fake)
        own = {"gmm", "gmm-prepared"} if arena == "cold" else {"gmm"}
        tap.check({(row["subject"], row["operation"]) for row in rows}
                  == {(subject, operation) for subject in own | peers for operation in ("pause", "resume")},
                  f"{name}: gmm and its peers pause and resume", [str(rows)])
        problems = [str(row) for row in rows if list(row)[len(KEYS):-1] != PAUSE_KEYS
                    or (row["contents"], row["arena"]) != (contents, arena) or
                    (row["blocks"], row["size"], row["bytes"], row["samples"]) != (BLOCKS, SIZE, BLOCKS * SIZE, 2) or
                    (row["gbps"] is None) != (contents == "drop") or not row["first_ns"] > 0 or not row["least_ns"] > 0]
        problems += [str(row) for row in rows if row["gbps"] is not None
                     and abs(row["gbps"] * row["ns"] / row["bytes"] - 1) > 1e-3]
        problems += [str(row) for row in rows if row["subject"] in own
                     and (set(row["over"]) != peers or row["setting"] != where or not row["handles"] > 0 or
                                                                            row["handles"] > row["first_handles"])]
        tap.check(not problems, f"{name}: what the rows say", problems)
        # At the same time no file is left behind.
        tap.check(not list(pathlib.Path(folder).glob("gmm-bench-*")), f"{name}: no file is left")
        expected = {"one_handle": (2 * BLOCKS, (3 if fake else 2) * BLOCKS)}
        for row in rows:
            if row["subject"] in expected:
                tap.check(row["handles"] == expected[row["subject"]][row["operation"] == "resume"],
                          f"{name}: {row['subject']} makes its calls for each block", [str(row)])
            if row["subject"] == "raw_best":
                tap.check(re.match("handles of [0-9]+ MiB", row["setting"]) and row["handles"] <= 4,
                          f"{name}: raw_best says its handles", [str(row)])


def test_ipc(backend, fake=False):
    name = f"ipc, {backend}{' (fake)' if fake else ''}"
    rows, _ = rows_of(name, "ipc", "--backend", backend, "--samples", "5", "--iterations", "300", "--blocks", "10",
                      "--threads", "8", fake=fake)
    operations = {"export", "export again", "import", "import, connecting", "import of what is mapped", "cycle",
                  "processes in turn", "processes at once"}
    for kind in ("device", "vmm", "host"):
        of_kind = [row for row in rows if row["kind"] == kind]
        tap.check({row["operation"] for row in of_kind} == operations
                  and {row["subject"] for row in of_kind} == {"gmm", "raw"},
                  f"{name}: all operations of {kind} memory, and raw", [str(of_kind)])
        tap.check(all(row.get("lost", 0) == 0 and row.get("descriptors_more", 0) == 0 for row in of_kind),
                  f"{name}: {kind}: no process is lost, no descriptor is left", [str(of_kind)])
        calls = {row["operation"]: row["handles"] for row in of_kind if row["subject"] == "gmm"}
        mapping = 4 if kind == "vmm" else 1  # reserve, import, map, access
        tap.check([calls.get(name)
                   for name in ("import", "import, connecting", "import of what is mapped", "export again")]
                   == [mapping, mapping, 0, 0],
                  f"{name}: {kind}: the driver is called to map, and not for what is mapped or exported", [str(calls)])
        more = [row["resident_bytes_more"] for row in of_kind if row["operation"] == "cycle"]
        tap.check(all(value < 4 << 20 for value in more), f"{name}: {kind}: cycles leave the memory as it was",
                  [str(more)])


def test_pause_calls(backend, fake=False):
    """A figure that no machine changes: 1,000 blocks of 2 MiB under a tag go in few calls, also the first time."""
    rows, _ = rows_of(f"pause of 1,000 blocks, {backend}", "pause", "--backend", backend, "--subject", "gmm",
                      "--samples", "2", fake=fake)
    row = next(row for row in rows if row["operation"] == "pause")
    tap.check((row["blocks"], row["size"]) == (1000, 2 << 20) and max(row["handles"], row["first_handles"]) <= 100,
              "it makes at most 100 calls", [str(row)])


def test_pause_peers(folder):
    arguments = ["pause", "--backend", "host", "--peers", PEERS, "--contents", "host", *PAUSE, "--subject"]
    PEER_NAMES.append("test-pausing")
    rows, err = rows_of("pause with a peer from a file", *arguments, "gmm,test-pausing")
    found = {row["operation"]: row for row in rows if row["subject"] == "test-pausing"}
    tap.check([found[name]["handles"] for name in ("pause", "resume")] == [3, 5]
              and found["pause"]["setting"] == "as set", "its counts and words are shown", [str(found)])
    tap.check(all(list(row["over"]) == ["test-pausing"] for row in rows if row["subject"] == "gmm"),
              "gmm is held against it")
    tap.check("is of ABI" in err and "build it anew" in err, "a pausing peer of another ABI is told", err.splitlines())
    rows, _ = rows_of("a sample", *arguments, "gmm,test-pausing", "--samples", "1")
    one, other = (next(row for row in rows if (row["subject"], row["operation"]) == (subject, "pause"))
                  for subject in ("gmm", "test-pausing"))
    tap.check(abs(one["over"]["test-pausing"] * other["ns"] / one["ns"] - 1) < 1e-3,
              "of one sample the ratio is that of the times", [str(one), str(other)])
    for subject, message in [("test-pause-missing", "its library is not here"),
                             ("test-pause-failing", "resume: not a second time"),
                             ("test-pause-forgetting",
                              r"the contents of block 5 are wrong after the resume, from byte 4097 on")]:
        rows, err = rows_of(f"pause beside {subject}", *arguments, f"gmm,{subject}")
        tap.check({row["subject"] for row in rows} == {"gmm"}
                  and re.search(f"left out: {subject}: {message}", err) is not None, f"{subject} is left out and told",
                  [str(rows), *err.splitlines()])
    rows, err = rows_of("pause beside a peer that ends the process", *arguments, "gmm,test-pause-ending", code=3)
    tap.check({row["subject"] for row in rows} == {"gmm"} and "a peer has ended the process" in err,
              "what was measured until then is printed", [str(rows), err])
    expect("nothing is left", [*arguments, "test-pause-missing"], 1, out="^$", err="no subject is left")
    expect("pause for reading", ["pause", "--backend", "host", *PAUSE], 0,
           r"6 blocks of 4 MiB, contents: drop\n(.*\n)*gmm +pause(.*\n)*raw_best: handles of")
    began = time.monotonic()
    expect("a rest before each operation", ["pause", "--backend", "host", "--subject", "gmm", "--rest", "100", *PAUSE],
           0, "gmm +pause")
    tap.check(time.monotonic() - began > 0.6, "six operations and more rest 100 ms each")
    expect("a rest of more than a minute", ["pause", "--backend", "host", "--rest", "60001"], 2, out="^$",
           err="--rest does not take '60001'")
    expect("a folder for files that is not there",
           ["pause", "--backend", "host", "--contents", "file", "--directory", folder / "gone", *PAUSE], 1, out="^$",
           err="gmm-bench: gmm: gmm_backup_configure: GMM_ERROR_IO")
    expect("blocks that do not fit",
           ["pause", "--backend", "host", "--host-memory", "1", "--blocks", "3", "--size", "512M"], 1,
           err="gmm-bench: gmm: gmm_alloc: GMM_ERROR_OUT_OF_MEMORY")


def test_peers(folder):
    peers = ["--peers", PEERS, "--backend", "host"]
    PEER_NAMES.extend(["test-working", "test-failing"])
    rows, err = rows_of("a peer from a file", "pair", *peers, "--size", "512,8K", "--kind", "vmm", *SHORT)
    found = {(row["subject"], row["size"]) for row in rows if row["subject"].startswith("test-")}
    tap.check(("test-working", 512) in found and ("test-working", 8192) in found, "it is measured", [str(found)])
    tap.check(all("test-working" in row["over"] for row in rows if row["subject"] == "gmm"), "gmm is held against it")
    tap.check(("test-failing", 512) in found and ("test-failing", 8192) not in found
              and "left out: test-failing (vmm): allocate: no block of a page" in err,
              "a peer that fails is left out and told", [str(found), *err.splitlines()])
    tap.check("the peer test-missing is missing: its library is not here" in err,
              "a peer that cannot be opened is told", err.splitlines())
    tap.check("is of ABI" in err and "build it anew" in err, "a peer of another ABI is told", err.splitlines())
    rows, _ = rows_of("replay with a peer", "replay", ROOT / "tests/bench/traces/streams_mixed.trace.gz", *peers,
                      "--samples", "1", "--subject", "test-working")
    tap.check([(row["peak_by"], row["reserved_over_requested"]) for row in rows] == [("sampling", 1)],
              "its peak is found by looking", [str(rows)])
    rows, _ = rows_of("mixed with a peer", "mixed", *peers, "--samples", "2", "--subject", "test-working")
    tap.check([row["steady"] for row in rows] == [1], "what it holds is what was asked for", [str(rows)])

    (folder / "libumf.so.1").write_bytes(b"noise")
    expect("UMF that cannot be opened is told",
           ["mixed", "--backend", "host", "--subject", "gmm,umf", "--kind", "vmm", "--samples", "1"], 0,
           err=r"warning: the peer umf is missing: \S*libumf.so.1: .* \(PyPI: umf",
           environment={"LD_LIBRARY_PATH": str(folder)})
    (folder / "gmm_bench_noise.so").write_bytes(b"noise")
    expect("a peer that is no library",
           ["pair", "--peers", folder, "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K",
            *SHORT], 0,
           err="warning: the peer .*gmm_bench_noise.so cannot be opened")
    expect("a folder of peers that is not there",
           ["pair", "--peers", folder / "gone", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size",
            "1K", *SHORT], 0,
           err="warning: --peers .*No such file")


def test_fake_cuda(folder):
    if FAKE_CUDA is None:
        tap.skip("the fake CUDA driver", "this build has no CUDA backend")
        return
    rows, err = rows_of("pair on the fake driver", "pair", "--backend", "cuda", "--size", "1K", *SHORT, fake=True)
    tap.check(rows and all(row["backend"] == "cuda" and "Fake" in row["device"] for row in rows),
              "the rows say that the driver is the fake one", [str(rows[:1])])
    for peer in ("cudaMallocAsync", "pytorch", "cupy", "rmm-pool"):
        there = any(row["subject"] == peer for row in rows)
        tap.check(there or f"the peer {peer} is missing" in err, f"{peer}: measured, or said to be missing",
                  err.splitlines())
    there, without = ({row["kind"] for row in rows if row["subject"] == "umf"},
                      re.search(r"the peer umf is missing: (libumf.so.1: .*)", err))
    if without:
        tap.skip("UMF's pools over the driver's memory", without[1])
    else:
        tap.check(there == KINDS - {"vmm"}, "UMF's pools over the driver's memory", [str(there), *err.splitlines()])
    expect("for reading", ["mixed", "--backend", "cuda", "--samples", "2", "--subject", "gmm"], 0,
           "THE DRIVER IS THE FAKE ONE", fake=True)
    rows, _ = rows_of("replay on the fake driver", "replay", ROOT / "tests/bench/traces/streams_mixed.trace.gz",
                      "--backend", "cuda", "--samples", "1",
                      "--subject", "gmm", fake=True, environment={"FAKE_CUDA_MEMORY": str(16 << 30)})
    tap.check(len(rows) == 1 and rows[0]["reserved_over_requested"] >= 1, "what is held covers what was asked for",
              [str(rows)])
    test_pause(folder, "cuda", fake=True)
    test_pause_calls("cuda", fake=True)
    test_ipc("cuda", fake=True)
    test_job("cuda", fake=True)
    got = bench("pause", "--backend", "cuda", "--subject", "gmm", *PAUSE, fake=True)
    tap.check("the peer torch_memory_saver is missing" in got[2] and "THE DRIVER IS THE FAKE ONE" in got[1],
              "torch_memory_saver is said to be missing", [*got[1:]])


def main():
    test_words()
    test_pair()
    test_mixed()
    test_latency()
    with tempfile.TemporaryDirectory() as folder:
        test_replay(pathlib.Path(folder))
        test_peers(pathlib.Path(folder))
        test_pause(pathlib.Path(folder), "host")
        test_pause_calls("host")
        test_ipc("host")
        test_job("host")
        test_job_ends()
        test_pause_peers(pathlib.Path(folder))
        test_fake_cuda(pathlib.Path(folder))
    tap.finish()


main()
