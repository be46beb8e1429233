# SPDX-License-Identifier: Apache-2.0
"""gmm-bench: the shape of its rows, what it warns of and what it refuses. No time is judged.

Usage: bench_test.py SOURCE_ROOT GMM_BENCH FOLDER_OF_THE_TEST_PEER [FOLDER_OF_FAKE_CUDA]
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

ROOT, BENCH, PEERS = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
FAKE_CUDA = sys.argv[4] if len(sys.argv) > 4 else None
KEYS = ["bench", "subject", "backend", "device", "kind", "size", "threads", "trace", "ns", "gbps", "reserved_over_requested", "handles"]
KINDS = {"device", "vmm", "host", "managed"}
SHORT = ["--samples", "3", "--sample-us", "20"]
GMM = ["gmm", "gmm-heap"]


def bench(*arguments, fake=False, environment=()):
    variables = dict(os.environ, **dict(environment))
    variables.pop("GMM_BACKEND", None)
    variables.pop("MALLOC_PERTURB_", None)  # Meson's: malloc would write the gigabytes of a trace
    if fake:
        variables["LD_LIBRARY_PATH"] = FAKE_CUDA + ":" + variables.get("LD_LIBRARY_PATH", "")
    done = subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, check=False, env=variables, timeout=300)
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
        if any(not value > 0 for value in row["over"].values()) or (row["over"] and row["subject"] not in GMM + PEER_NAMES):
            problems.append(f"ratios: {row}")
    if code == 0 and not rows:
        problems.append("no rows")
    tap.check(not problems, name, problems + got[2].splitlines()[:5])
    return rows, got[2]


PEER_NAMES = ["malloc", "mimalloc", "jemalloc"]


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
            ("no trace", ["replay"], "replay wants a trace"),
            ("an unknown subject", ["pair", "--backend", "host", "--subject", "gmm,abacus"], "no subject 'abacus'; there are: gmm, ")]:
        expect(name, arguments, 2, err=message)
    expect("a device that is not there", ["pair", "--backend", "host", "--device", "7"], 1, err="GMM_ERROR_INVALID_DEVICE: \\w")


def test_pair():
    rows, err = rows_of("pair", "pair", "--backend", "host", "--size", "512,64K", *SHORT)
    for subject in GMM:
        found = {(row["kind"], row["size"]) for row in rows if row["subject"] == subject}
        tap.check(found == {(kind, size) for kind in KINDS for size in (512, 65536)}, f"a row of {subject} for each kind and size", [str(found)])
    for peer in PEER_NAMES:
        there = any(row["subject"] == peer for row in rows)
        told = f"the peer {peer} is missing" in err
        tap.check(there != told, f"{peer} is measured, or said to be missing", err.splitlines())
        if there:
            tap.check(all(peer in row["over"] for row in rows if row["subject"] in GMM), f"gmm's rows have the ratio to {peer}")
    if any(row["subject"] == "mimalloc" for row in rows):
        tap.check(all("mimalloc-1k" in row["over"] for row in rows if row["subject"] in GMM), "gmm's rows have the ratio to mimalloc's pair of 1 KiB")
    tap.check(all(row["backend"] == "host" and "Fake" not in row["device"] for row in rows), "the rows name the backend")

    rows, _ = rows_of("pair on threads", "pair", "--backend", "host", "--kind", "vmm", "--size", "1K", "--threads", "2", "--cross", *SHORT)
    for subject in GMM:
        found = {(row["mode"], row["threads"]): row for row in rows if row["subject"] == subject}
        wanted = {("local", 1), ("local", 2), ("share", 2), ("cross", 2)}
        tap.check(set(found) == wanted, f"{subject}: alone, beside another, from one to the other", [str(set(found))])
        if set(found) == wanted:
            # Of the ratios of three samples the middle one, so it is not exactly that of the middle times.
            tap.check(found["share", 2]["over_local"] > 0 and found["cross", 2]["over_local"] > 0, f"{subject}: the ratio to the local pair")
            tap.check(found["local", 2]["scaling"] > 0 and "scaling" not in found["local", 1], f"{subject}: the ratio to one thread")
    tap.check(any(row["subject"] == "control" and row["threads"] == 2 for row in rows), "a control shows what a second thread can gain")
    expect("pair for reading", ["pair", "--backend", "host", "--size", "1K", "--kind", "vmm", *SHORT], 0, r"backend host .*\nno GPU took part(.*\n)*1 KiB\n(.*\n)*gmm +vmm")
    rows, _ = rows_of("one sample", "pair", "--backend", "host", "--subject", "gmm,malloc", "--kind", "vmm", "--size", "1K", "--threads", "1,2", "--samples", "1")
    one, two = (next(row for row in rows if row["subject"] == "gmm" and row["threads"] == threads) for threads in (1, 2))
    peer = next(row for row in rows if row["subject"] == "malloc" and row["threads"] == 1)
    tap.check(abs(one["over"]["malloc"] * peer["ns"] / one["ns"] - 1) < 1e-3, "of one sample the ratio is that of the times", [str(one), str(peer)])
    tap.check(abs(two["scaling"] * two["ns"] / one["ns"] / 2 - 1) < 1e-3, "and so is the gain of a second thread", [str(one), str(two)])
    rows, _ = rows_of("so many pairs", "pair", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K", "--samples", "2", "--iterations", "50")
    tap.check([row["iterations"] for row in rows] == [50], "as many pairs as asked for")


def test_mixed():
    arguments = ["mixed", "--backend", "host", "--samples", "4", "--iterations", "200", "--seed", "7"]
    rows, _ = rows_of("mixed", *arguments)
    tap.check({row["kind"] for row in rows if row["subject"] == "gmm"} == {"vmm", "device"}, "mixed: a row for each kind")
    for row in rows:
        if row["subject"] in GMM:
            tap.check(row["reserved_over_requested"] >= 1 and row["steady"] >= 1 and row["peak_reserved"] >= row["peak_requested"],
                      f"{row['subject']}, {row['kind']}: what is held covers what was asked for", [str(row)])
    again, _ = rows_of("mixed again", *arguments, "--subject", "malloc")
    tap.check({row["peak_requested"] for row in rows + again} == {rows[0]["peak_requested"]}, "one seed, one sequence, for every subject")
    uniform, _ = rows_of("mixed, uniform", *arguments, "--sizes", "uniform", "--subject", "gmm")
    tap.check(uniform[0]["peak_requested"] > 2 * rows[0]["peak_requested"], "uniform sizes are larger")


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


def test_replay(folder):
    traces = [ROOT / f"tests/bench/traces/{name}.trace.gz" for name in ("graph_train", "streams_mixed")]
    rows, _ = rows_of("replay", "replay", *traces, "--backend", "host", "--samples", "1", "--kind", "vmm,device")
    for path in traces:
        name, peak = path.name.split(".")[0], peak_of(path)
        found = [row for row in rows if row["trace"] == name]
        tap.check({row["kind"] for row in found if row["subject"] == "gmm"} == {"vmm", "device"}, f"{name}: a row for each kind")
        tap.check({row["peak_requested"] for row in found} == {peak}, f"{name}: the peak that was asked for", [str(peak)])
        for row in found:
            if row["subject"] in ("malloc", "jemalloc"):
                tap.check(row["reserved_over_requested"] >= 0.99, f"{name}, {row['subject']}: holds what was asked for", [str(row)])
            if row["subject"] in GMM:
                tap.check(row["peak_reserved"] >= peak and abs(row["reserved_over_requested"] - row["peak_reserved"] / peak) < 1e-4 and
                          row["handles"] > 0 and row["peak_by"] == "counter", f"{name}, {row['subject']}, {row['kind']}: the peak that is held", [str(row)])
    # What gmm records itself, on two threads.
    recorded = folder / "recorded.trace"
    rows_of("a recorded run", "pair", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K", "--threads", "2", "--share", "--samples", "1",
            "--iterations", "500", environment={"GMM_TRACE": str(recorded)})
    for arguments, threads in ([], 1), (["--recorded-threads"], 2):
        rows, _ = rows_of(f"its trace on {threads} threads", "replay", recorded, "--backend", "host", "--samples", "2", *arguments)
        found = [row for row in rows if row["subject"] == "gmm"]
        tap.check(len(found) == 1 and found[0]["threads"] == threads and found[0]["operations"] >= 2 * 3 * 500 and
                  found[0]["peak_reserved"] >= found[0]["peak_requested"] > 0, f"the trace ran on {threads} threads", [str(found)])

    for name, text, message in [("garbage", "a 0 512 0\nhello\n", ":2: neither"), ("twice", "a 0 1 0\na 0 1 0\n", ":2: the block is allocated already"),
                                ("unknown", "a 0 1 0\nf 1 0\n", ":2: the block is not allocated"), ("empty", "", "empty")]:
        path = folder / f"{name}.trace"
        path.write_text(text)
        # The good one in front of it does not run either.
        expect(f"a bad trace: {name}", ["replay", traces[1], path, "--backend", "host"], 1, out="^$", err=message)
    expect("a trace that is not there", ["replay", folder / "gone", "--backend", "host"], 1, err="No such file")
    expect("a trace that does not fit", ["replay", traces[0], "--backend", "host", "--host-memory", "1", "--subject", "gmm"], 1,
           err=r"gmm \(vmm\): operation \d+, allocate: \w+")


def test_peers(folder):
    peers = ["--peers", PEERS, "--backend", "host"]
    PEER_NAMES.extend(["test-working", "test-failing"])
    rows, err = rows_of("a peer from a file", "pair", *peers, "--size", "512,8K", "--kind", "vmm", *SHORT)
    found = {(row["subject"], row["size"]) for row in rows if row["subject"].startswith("test-")}
    tap.check(("test-working", 512) in found and ("test-working", 8192) in found, "it is measured", [str(found)])
    tap.check(all("test-working" in row["over"] for row in rows if row["subject"] == "gmm"), "gmm is held against it")
    tap.check(("test-failing", 512) in found and ("test-failing", 8192) not in found and "left out: test-failing (vmm): allocate: no block of a page" in err,
              "a peer that fails is left out and told", [str(found), *err.splitlines()])
    tap.check("the peer test-missing is missing: its library is not here" in err, "a peer that cannot be opened is told", err.splitlines())
    tap.check("is of ABI" in err and "build it anew" in err, "a peer of another ABI is told", err.splitlines())
    rows, _ = rows_of("replay with a peer", "replay", ROOT / "tests/bench/traces/streams_mixed.trace.gz", *peers, "--samples", "1", "--subject", "test-working")
    tap.check([(row["peak_by"], row["reserved_over_requested"]) for row in rows] == [("sampling", 1)], "its peak is found by looking", [str(rows)])
    rows, _ = rows_of("mixed with a peer", "mixed", *peers, "--samples", "2", "--subject", "test-working")
    tap.check([row["steady"] for row in rows] == [1], "what it holds is what was asked for", [str(rows)])

    (folder / "gmm_bench_noise.so").write_bytes(b"noise")
    expect("a peer that is no library", ["pair", "--peers", folder, "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K", *SHORT], 0,
           err="warning: the peer .*gmm_bench_noise.so cannot be opened")
    expect("a folder of peers that is not there", ["pair", "--peers", folder / "gone", "--backend", "host", "--subject", "gmm", "--kind", "vmm", "--size", "1K", *SHORT], 0,
           err="warning: --peers .*No such file")


def test_fake_cuda():
    if FAKE_CUDA is None:
        tap.skip("the fake CUDA driver", "this build has no CUDA backend")
        return
    rows, err = rows_of("pair on the fake driver", "pair", "--backend", "cuda", "--size", "1K", *SHORT, fake=True)
    tap.check(rows and all(row["backend"] == "cuda" and "Fake" in row["device"] for row in rows), "the rows say that the driver is the fake one", [str(rows[:1])])
    for peer in ("cudaMallocAsync", "pytorch", "cupy", "rmm-pool"):
        there = any(row["subject"] == peer for row in rows)
        tap.check(there or f"the peer {peer} is missing" in err, f"{peer}: measured, or said to be missing", err.splitlines())
    expect("for reading", ["mixed", "--backend", "cuda", "--samples", "2", "--subject", "gmm"], 0, "THE DRIVER IS THE FAKE ONE", fake=True)
    rows, _ = rows_of("replay on the fake driver", "replay", ROOT / "tests/bench/traces/streams_mixed.trace.gz", "--backend", "cuda", "--samples", "1",
                      "--subject", "gmm", fake=True, environment={"FAKE_CUDA_MEMORY": str(16 << 30)})
    tap.check(len(rows) == 1 and rows[0]["reserved_over_requested"] >= 1, "what is held covers what was asked for", [str(rows)])


def test_figures(folder):
    """The judgement over rows whose figures are known."""
    def row(subject, size, **more):
        return dict({"run": "small", "bench": "pair", "subject": subject, "backend": "host", "device": "Host", "kind": "vmm", "size": size, "threads": 1, "trace": None,
                     "ns": 10.0, "least_ns": 9.0, "gbps": None, "reserved_over_requested": None, "handles": 0, "mode": "local", "over": {}}, **more)

    about = {"backend": "host", "device": "Host", "machine": "m", "date": "d", "quick": False, "commands": {"small": "gmm-bench pair"}, "warnings": ["warning: w"]}
    rows = [row("gmm", 512, over={"mimalloc-1k": 1.5}), row("gmm", 4096, over={"mimalloc-1k": 3.25}), row("gmm-heap", 512, over={"mimalloc-1k": 1.75}),
            row("mimalloc", 512, over={"mimalloc-1k": 99.0})]
    path, readme = folder / "known.json", folder / "README.md"

    def figures(part, device="Host"):
        path.write_text("\n".join(json.dumps(line) for line in [dict(about, device=device), *rows]))
        return subprocess.run([sys.executable, ROOT / "tests/bench/figures.py", part, path, "--readme", readme], capture_output=True, text=True, check=False)

    lines = [line for line in figures("show").stdout.splitlines() if line.startswith("| pair, 512 B to 1 MiB")]
    tap.check(len(lines) == 1 and "| 3.25 (vmm, 4 KiB) **missed** | 1.75 (vmm, 512 B) |" in lines[0], "the worst row of gmm is held against the goal", lines)
    tap.check("| replay of gpt_train, VMM: peak reserved/requested | at most 1.03 | not measured |" in figures("show").stdout, "what was not measured is said")
    readme.write_text("before\n<!-- figures: host -->\nold\n<!-- end of figures: host -->\nafter\n")
    done = figures("write")
    text = readme.read_text()
    tap.check(done.returncode == 0 and text.startswith("before\n") and text.endswith("after\n") and "old" not in text and "- warning: w" in text,
              "the tables are put between the marks", [*text.splitlines(), done.stderr])
    done = figures("write", "Fake CUDA device for tests")
    tap.check(done.returncode == 1 and "no figures" in done.stderr and readme.read_text() == text, "rows of the fake driver are no figures", [done.stderr])
    readme.write_text("no marks\n")
    done = figures("write")
    tap.check(done.returncode == 1 and "has no marks" in done.stderr, "a README without the marks is left alone", [done.stderr])


def test_picture(folder):
    script = ROOT / "tests/bench/plot.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        tap.skip("the picture", "matplotlib is not installed")
        return
    rows = bench("pair", "--backend", "host", "--size", "1K,4K", "--threads", "1,2", "--kind", "vmm", "--json", *SHORT)[1]
    (folder / "rows.json").write_text(rows)
    done = subprocess.run([sys.executable, script, folder / "rows.json", "-o", folder / "picture.svg"], capture_output=True, text=True, check=False)
    picture = folder / "picture.svg"
    tap.check(done.returncode == 0 and picture.exists() and "<svg" in picture.read_text(), "the picture is drawn", done.stderr.splitlines())
    (folder / "none.json").write_text("")
    done = subprocess.run([sys.executable, script, folder / "none.json", "-o", folder / "none.svg"], capture_output=True, text=True, check=False)
    tap.check(done.returncode == 1 and "no rows" in done.stderr, "no picture of nothing", done.stderr.splitlines())


def main():
    test_words()
    test_pair()
    test_mixed()
    with tempfile.TemporaryDirectory() as folder:
        test_replay(pathlib.Path(folder))
        test_peers(pathlib.Path(folder))
        test_figures(pathlib.Path(folder))
        test_picture(pathlib.Path(folder))
    test_fake_cuda()
    tap.finish()


main()
