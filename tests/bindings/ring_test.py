# SPDX-License-Identifier: Apache-2.0
"""Runs the example of a ring of frames with the consumers that were built: ring_test.py RING CONSUMER.PY [--consumer
NAME COMMAND]... [--skip NAME]...
"""
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import tap  # noqa: E402

SECONDS = 300


def ring(example, built, *arguments):
    return subprocess.run([sys.executable, example, *built, *arguments], capture_output=True, text=True,
                          timeout=SECONDS)


def checked_of(output):
    """What each consumer says: (name, frames, bad)."""
    return [(name, int(frames), int(bad)) for name, frames,
            bad in re.findall(r"^(\S+) \(\S+\): (\d+) frames checked, (\d+) bad$", output, re.MULTILINE)]


def main(example, python_consumer, *given):
    names = ["Python"] + [given[at + 1] for at, word in enumerate(given) if word == "--consumer"]
    built = ["--consumer", "Python", shlex.join([sys.executable, python_consumer]), *given]
    skipped = [given[at + 1] for at, word in enumerate(given) if word == "--skip"]
    cases = {
        "VMM memory": (["--frames", "48"], 48, 0),
        "DEVICE memory": (["--frames", "12", "--kind", "device"], 12, 0),
        "HOST memory, odd sizes": (["--frames", "9", "--kind", "host", "--slots", "2", "--frame-size", "100003"], 9, 0),
        "a damaged frame is noticed": (["--frames", "10", "--damage", "6"], 10, 1),
    }
    for name, (arguments, frames, bad) in cases.items():
        done = ring(example, built, *arguments)
        good = done.returncode == bad and done.stdout.endswith("ring: FAILED\n" if bad else "ring: ok\n")
        good = good and checked_of(done.stdout) == [(consumer, frames, bad) for consumer in names]
        good = good and all(f"{consumer}: skipped" in done.stdout for consumer in skipped)
        tap.check(good, name, [f"exit code {done.returncode}", *done.stdout.splitlines(), *done.stderr.splitlines()])
    for name in skipped:
        tap.skip("the consumer in " + name, "it was not built")
    tap.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
