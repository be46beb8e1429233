#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What memory costs from Python: gmm against CuPy (device) and NumPy (host), all in this process, as ratios.

    python_cost.py [--json] [--size BYTES] [--repeat N] [--stand-in]

A row for each of: a buffer allocated and dropped, one freed by hand, an array made and dropped. Each figure is the best
of many short runs, in which the subjects take turns, so that what else the machine does meets all of them. The goal: no
row of gmm above the peer's (ratio at most 1) on a GPU.

Prints in the Test Anything Protocol: a row that has a goal is a test. The exit code is 1 when a goal is missed. What is
missing is said in the last rows, and makes the exit code 3. --stand-in: without a GPU, NumPy takes CuPy's part; such
rows say so, and the exit code stays 3.
"""
import argparse
import json
import pathlib
import sys
import time

import gmm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402


def best(subjects, repeat, number):
    """ns for each of {name: callable that runs the pair `number` times}, in turns."""
    found = dict.fromkeys(subjects, float("inf"))
    for run in subjects.values():
        run(number)  # caches fill
    for _ in range(repeat):
        for name, run in subjects.items():
            begin = time.perf_counter_ns()
            run(number)
            found[name] = min(found[name], (time.perf_counter_ns() - begin) / number)
    return found


def loop(make):
    def run(number):
        for _ in range(number):
            make()
    return run


def nothing():
    pass


def gmm_subjects(context, kind, size):
    """The three rows of gmm: what the loop calls is made once, as the user's program would have it."""
    alloc, empty, shape = context.alloc, context.empty, (size // 4,)
    return {
        "alloc, dropped": loop(lambda: alloc(size, kind)),
        "alloc, freed": loop(lambda: alloc(size, kind).free()),
        "array": loop(lambda: empty(shape, "float32", kind)),
    }


def default_subjects(size):
    """By the module's functions, where the default context is that of the row."""
    shape = (size // 4,)
    return {
        "alloc, dropped": loop(lambda: gmm.alloc(size)),
        "alloc, freed": loop(lambda: gmm.alloc(size).free()),
        "array": loop(lambda: gmm.empty(shape, "float32")),
    }


def numpy_peer(size):
    import numpy
    shape = (size // 4,)
    array = loop(lambda: numpy.empty(shape, "float32"))
    buffer = loop(lambda: numpy.empty(size, "uint8"))
    return numpy.__version__, {"alloc, dropped": buffer, "alloc, freed": buffer, "array": array}


def cupy_peer(size):
    import cupy
    if cupy.cuda.runtime.getDeviceCount() == 0:
        raise RuntimeError("CuPy sees no device")
    pool = cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    malloc, shape = pool.malloc, (size // 4,)
    buffer = loop(lambda: malloc(size))
    return cupy.__version__, {"alloc, dropped": buffer, "alloc, freed": buffer,
                              "array": loop(lambda: cupy.empty(shape, "float32"))}


def rows_of(where, context, kind, size, peer, peer_name, repeat, note):
    version, peers = peer(size)
    mine = {"gmm": gmm_subjects(context, kind, size)}
    if where == "device" and context is gmm.context():
        mine["gmm (default context)"] = default_subjects(size)
    rows = []
    for what in ("alloc, dropped", "alloc, freed", "array"):
        subjects = {peer_name: peers[what], "an empty call": loop(nothing),
                    **{name: made[what] for name, made in mine.items()}}
        ns = best(subjects, repeat, 2000)
        for name in mine:
            rows.append({
                "bench": "python-cost", "where": where, "what": what, "subject": name,
                "backend": context.info.backend_name, "kind": kind.name, "size": size,
                "ns": ns[name],
                "peer": peer_name, "peer_version": version, "peer_ns": ns[peer_name],
                "empty_call_ns": ns["an empty call"],
                "ratio": ns[name] / ns[peer_name], **({"note": note} if note else {})})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object a row")
    parser.add_argument("--size", type=int, default=4096, help="bytes; at least 4")
    parser.add_argument("--repeat", type=int, default=60, help="runs of 2,000 pairs each")
    parser.add_argument("--stand-in", action="store_true",
                        help="without CuPy and a GPU: rehearse the rows for the device with NumPy")
    options = parser.parse_args()
    rows, missing = [], []
    try:
        with gmm.Context("host") as context:
            rows += rows_of("host", context, gmm.Kind.HOST, options.size, numpy_peer, "numpy", options.repeat, None)
    except ImportError as error:
        missing.append({"missing": "numpy", "why": str(error)})
    context = gmm.context()
    why = None
    if context.info.backend_name != "cuda":
        why = f"the default context is of the {context.info.backend_name} backend"
    else:
        try:
            rows += rows_of("device", context, gmm.Kind.DEVICE, options.size, cupy_peer, "cupy", options.repeat, None)
        except Exception as error:  # whatever CuPy raises without a GPU
            why = f"{type(error).__name__}: {error}"
    if why is not None:
        missing.append({"missing": "cupy", "why": why})
        if options.stand_in and not any("numpy" == entry["missing"] for entry in missing):
            note = "a stand-in: NumPy instead of CuPy, so no figure of a GPU"
            rows += rows_of("device", context, gmm.Kind.DEVICE, options.size, numpy_peer, "numpy", options.repeat, note)
    above = [row for row in rows if row["where"] == "device" and "note" not in row and row["ratio"] > 1]
    if options.json:
        for row in rows + missing:
            print(json.dumps({"bench": "python-cost", **row}))
    else:
        print_tap(rows, missing, above)
    return 3 if missing else 1 if above else 0


def print_tap(rows, missing, above):
    """A test for each row that has a goal; the others are remarks."""
    for row in rows:
        text = (f"{row['where']} {row['what']}: {row['subject']} {row['ns']:.0f} ns, {row['peer']} "
                f"{row['peer_version']} {row['peer_ns']:.0f} ns, "
                f"ratio {row['ratio']:.2f}")
        if row["where"] == "device" and "note" not in row:
            tap.check(row not in above, text)
        else:
            print(f"# {text}{' (' + row['note'] + ')' if 'note' in row else ''}")
    for row in missing:
        tap.check(False, f"missing: {row['missing']}: {row['why']}")
    tap.end()


if __name__ == "__main__":
    sys.exit(main())
