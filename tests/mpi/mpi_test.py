# SPDX-License-Identifier: Apache-2.0
"""A job over MPI: examples/job/mpi.c, and ranks that are killed where they set a register.

Usage: mpi_test.py MPIRUN EXAMPLE MPI_JOB
"""

import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

MPIRUN, EXAMPLE, MPI_JOB = sys.argv[1:]
TIMEOUT_MS = 2000
SLACK = 3.0  # of a busy machine
COMMITTED, ABORTED = 1, 2
NOT_READY = -50

#: Root and few cores are what a gate has. osc/rdma of Open MPI 4.1.4 crashes on one machine, without gmm too.
COMMAND = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--mca", "osc", "sm", "--mca", "btl", "self,vader",
           "--mca", "plm", "isolated"]


def run(arguments, ranks=2, options=()):
    begin = time.monotonic()
    done = subprocess.run([*COMMAND, *options, "-np", str(ranks), *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=60)
    return done, time.monotonic() - begin


def test_example():
    for ranks in (2, 3):
        done, _ = run([EXAMPLE], ranks)
        tap.check(done.returncode == 0 and f"{ranks} ranks on backend" in done.stdout
                  and "all ranks have paused" in done.stdout and "bit for bit as without a pause" in done.stdout,
                  f"{ranks} ranks compute as without a pause", [done.stdout, done.stderr])


def test_killed(victim, key, place, state, failed):
    """The other rank ends in time, and as the protocol says (lib/engine/job/README.md)."""
    done, seconds = run([MPI_JOB, TIMEOUT_MS, victim, key, place], options=["--enable-recovery"])
    told = {int(row[0]): [float(number) for number in row[1:]] for row in re.findall(
        r"^rank (\d+): result (\S+) state (\d+) failed (\S+) paused (\d) whole (\d) seconds (\S+)$", done.stdout,
        re.MULTILINE)}
    name = f"rank {victim} dies {place} it sets {key}"
    if set(told) != {1 - victim}:
        tap.check(False, name, [f"{seconds:.1f} s", done.stdout, done.stderr])
        return
    result, found, named, paused, whole, took = told[1 - victim]
    good = (found == state and named == failed and whole == 1 and paused == (state == COMMITTED)
            and result == (0 if state == COMMITTED else NOT_READY) and took < TIMEOUT_MS / 1000 + SLACK)
    tap.check(good, f"{name}: {'committed' if state == COMMITTED else 'aborted'}", [done.stdout])


def main():
    test_example()
    for row in [(1, "in/1", "before", ABORTED, 1), (1, "ready/1", "before", ABORTED, 1),
                (1, "ready/1", "after", COMMITTED, 1), (1, "end/1", "before", COMMITTED, 1),
                (0, "/go", "before", ABORTED, 0), (0, "/decision", "before", ABORTED, 0),
                (0, "/decision", "after", COMMITTED, 0), (0, "/result", "before", COMMITTED, 0)]:
        test_killed(*row)
    tap.finish()


main()
