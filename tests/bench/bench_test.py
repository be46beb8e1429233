# SPDX-License-Identifier: Apache-2.0
"""gmm-bench: each command prints its rows, and refuses unknown options. Times are not judged, but the figures that
no machine changes are: calls of the driver, and memory held.

Usage: bench_test.py SOURCE_ROOT GMM_BENCH [FOLDER_OF_FAKE_CUDA]
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

ROOT, BENCH = pathlib.Path(sys.argv[1]), sys.argv[2]
FAKE_CUDA = sys.argv[3] if len(sys.argv) > 3 else None
KINDS = {"device", "vmm", "host", "managed"}
GMM = {"gmm", "gmm-heap"}
SHORT = ["--samples", "3", "--sample-us", "20"]
# The fake driver has a descriptor for each handle, and a replayed trace has 1,900.
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])


def bench(backend, *arguments):
    environment = dict(os.environ, FAKE_CUDA_MEMORY=str(16 << 30))
    environment.pop("MALLOC_PERTURB_", None)  # Meson's: malloc would write the gigabytes of a trace
    if backend == "cuda":
        environment["LD_LIBRARY_PATH"] = FAKE_CUDA + ":" + environment.get("LD_LIBRARY_PATH", "")
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment,
                          timeout=300)


def rows_of(backend, *arguments):
    """The rows of a run with --json; gmm is among them, and every time is above 0."""
    done = bench(backend, *arguments, "--backend", backend, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    good = done.returncode == 0 and any(row["subject"] == "gmm" for row in rows) and all(
        (row["bench"], row["backend"]) == (arguments[0], backend) and row["ns"] > 0 for row in rows)
    tap.check(good, f"{' '.join(map(str, arguments))}, {backend}",
              [f"exit code {done.returncode}", *done.stderr.splitlines()[:9], *done.stdout.splitlines()[:9]])
    return rows if good else []


def must(name, rows, condition):
    wrong = [str(row) for row in rows if not condition(row)]
    tap.check(rows and not wrong, name, wrong or ["no rows"])


def test_words():
    for arguments, message in [
            ([], "no command"), (["frobnicate"], "no command 'frobnicate'"),
            (["pair", "--frobnicate"], "no option --frobnicate"),
            (["pair", "--kind", "vmm,paper"], "--kind does not take 'vmm,paper'"),
            (["pair", "--size", "12Q"], "--size does not take '12Q'"), (["pair", "--size"], "--size wants a value"),
            (["mixed", "--share"], "mixed does not take --share"), (["pair", "more"], "pair does not take 'more'"),
            (["pause", "--size", "1M"], "pause wants a --size of whole 2M"),
            (["pause", "--cold"], "--cold and --pageable go with --contents host"),
            (["replay"], "replay wants a trace"),
            (["pair", "--backend", "host", "--subject", "gmm,abacus"], "no subject 'abacus'; there are: gmm, ")]:
        done = bench("host", *arguments)
        tap.check(done.returncode == 2 and message in done.stderr, f"refused: {message}", done.stderr)
    done = bench("host", "pair", "--backend", "host", "--device", "7")
    tap.check(done.returncode == 1 and "GMM_ERROR_INVALID_DEVICE: " in done.stderr, "a device that is not there",
              done.stderr)


def test_backend(backend, folder):
    rows = rows_of(backend, "pair", "--size", "512,64K", *SHORT)
    found = {(row["subject"], row["kind"], row["size"]) for row in rows}
    wanted = {(name, kind, size) for name in GMM for kind in KINDS for size in (512, 65536)}
    tap.check(wanted <= found, "a row for each kind and size", [str(wanted - found)])
    rows = rows_of(backend, "pair", "--kind", "vmm", "--size", "1K", "--threads", "2", "--share", *SHORT)
    tap.check({(row["mode"], row["threads"]) for row in rows if row["subject"] == "gmm"} ==
              {("local", 1), ("local", 2), ("share", 2)}, "alone, beside another, from one to the other")
    rows = rows_of(backend, "mixed", "--samples", "2", "--iterations", "200")
    must("mixed: the memory held covers the blocks", [row for row in rows if row["subject"] in GMM],
         lambda row: row["reserved_over_requested"] >= 1)
    rows = rows_of(backend, "latency", "--iterations", "1500", "--samples", "2")
    must("latency: percentiles ascend", rows, lambda row: row["p50"] <= row["p99"] <= row["p9999"] <= row["max"])
    must("latency: no call of the driver with a reserve", [row for row in rows if "reserved" in row["subject"]],
         lambda row: row["handles"] == 0)
    # A busy machine ends the work of streams late, and their memory is held until then: the least of some runs counts.
    rows = [row for _ in range(4) for row in rows_of(backend, "replay", ROOT / "tests/bench/traces", "--samples", "1",
                                                     "--subject", "gmm,gmm-heap")]
    least = [min((row for row in rows if row["subject"] == subject), key=lambda row: row["reserved_over_requested"])
             for subject in sorted({row["subject"] for row in rows})]
    must("replay: at most 1.03 of the peak is held", least,
         lambda row: row["trace"] == "streams_mixed" and 1 <= row["reserved_over_requested"] <= 1.03)

    rows = rows_of(backend, "pause", "--subject", "gmm", "--samples", "2")
    must("pause: 1,000 blocks of 2 MiB go in at most 100 calls, also at first",
         [row for row in rows if row["operation"] == "pause"],
         lambda row: row["blocks"] == 1000 and max(row["handles"], row["first_handles"]) <= 100)
    for words in ([], ["--contents", "host"], ["--contents", "host", "--cold"], ["--contents", "host", "--pageable"],
                  ["--contents", "file", "--directory", folder]):
        rows = rows_of(backend, "pause", *words, "--blocks", "4", "--size", "4M", "--samples", "2")
        peers = {row["subject"] for row in rows} - GMM
        tap.check({row["operation"] for row in rows} == {"pause", "resume"} and
                  (peers or backend == "host" and "file" not in words or "--pageable" in words), "beside its peers")
    rows = rows_of(backend, "ipc", "--samples", "5")
    must("ipc: an import calls the driver to map alone", [row for row in rows if row["subject"] == "gmm"],
         lambda row: row["handles"] == (4 if row["kind"] == "vmm" else 1) and row["over"]["raw"] > 0)


def test_figures(folder):
    tool, rows = ROOT / "tests/bench/figures.py", pathlib.Path(folder) / "rows.json"
    done = subprocess.run([sys.executable, tool, "run", "--quick", "--backend", "host", "--bench", BENCH, "--only",
                           "replay,pause-small", "-o", rows], capture_output=True, text=True, check=False)
    tap.check(done.returncode == 0 and rows.exists() and "peak reserved/requested" in done.stdout,
              "the figures are judged", [done.stdout, done.stderr])
    done = subprocess.run([sys.executable, tool, "take", rows], capture_output=True, text=True, check=False)
    tap.check(done.returncode == 1 and "no figures" in done.stderr, "a quick run gives no figures", done.stderr)


def main():
    test_words()
    with tempfile.TemporaryDirectory() as folder:
        test_backend("host", folder)
        test_figures(folder)
        if FAKE_CUDA:
            test_backend("cuda", folder)
    tap.finish()


main()
