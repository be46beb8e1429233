# SPDX-License-Identifier: Apache-2.0
"""The pictures of examples/engine are those that Mesa's CPU device draws, within a tolerance.

Usage: pictures_test.py ENGINE     ENGINE: the program, or a folder with pictures that it wrote. The program runs on
                                   the backend that GMM_BACKEND names.

Each of three frames is cut into tiles. FRAMES has the mean colour of each tile as lavapipe drew it from particles of
the host backend. Another device may round sines, blends and the edges of points otherwise, so a mean may be off by
TOLERANCE of 255, and the mean of all tiles by TOLERANCE_OF_ALL. A failure shows the colours that were drawn.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

TILE_WIDTH, TILE_HEIGHT = 60, 30  # pixels
TOLERANCE, TOLERANCE_OF_ALL = 3.0, 0.75  # the digits of FRAMES take 0.25 of the latter
FRAMES = {  # rows of tiles from the top, each rrggbb
    12: """
        040309 040309 050309 050309 040309 040309 040309 040309 040309 040309 0b040b 2b0917 0e040d 050309 040309 040309
        040309 040308 170510 793e4c 13050e 040309 040308 040309 040309 040309 12040e 370e1d 0c040c 12050e 0f040d 040309
        040309 07030a 160510 0d040c 0c040c 441e2b 300e1c 040309 040309 0c040c 552835 200813 0c040c 461f2c 2f0e1b 040309
        040309 11040e 4e212f 1e0713 050309 16050f 09040b 040309 040309 050309 12050e 08030a 040309 050309 040309 040309
        040309 040309 040309 040309 040309 040309 040309 040309""",
    28: """
        030308 030308 04040a 04050b 06080f 04040a 030308 030308 030308 030308 04050a 0e1825 132131 05060d 030308 030308
        030308 030409 04050b 1e3142 3b5565 05070d 030409 030308 030308 04040a 080b13 101a29 13202f 05070d 04040a 030308
        030308 0b121d 172839 0a0f19 090e17 142233 080b14 030308 030308 111e2c 436070 080c14 0d1420 456474 0c131e 030308
        030308 0a0f18 132031 05070d 080c15 192c3e 080d16 030308 030308 030409 05060d 04050b 04050b 090d16 030409 030308
        030308 030308 04040a 04050a 04050a 04040a 030308 030308""",
    44: """
        040309 040309 040309 040309 08030a 050309 040309 040309 040309 040309 050309 08030a 260816 10050d 040309 040309
        040309 050309 050309 0d040c 6c3b47 280a17 040308 040309 040309 16050f 190611 08030a 370e1d 1c0612 040309 040309
        040309 3a1522 5c2e3b 060309 14040f 11040e 040309 040309 050309 280b17 37111f 060309 2a0b18 461a28 060309 040309
        040309 08030a 0d040c 040308 310f1c 562a37 09040b 040309 040309 040309 050309 040309 10040d 1c0612 050309 040309
        040309 040309 040309 040309 040309 040309 040309 040309""",
}


def tiles_of(path):
    """The mean red, green and blue of each tile, by rows."""
    head, pixels = path.read_bytes().split(b"\n", 1)
    width, height = map(int, head.split()[1:3])
    means = []
    for top in range(0, height, TILE_HEIGHT):
        for left in range(0, width, TILE_WIDTH):
            rows = [pixels[3 * (y * width + left):3 * (y * width + left + TILE_WIDTH)]
                    for y in range(top, top + TILE_HEIGHT)]
            means.append([sum(sum(row[c::3]) for row in rows) / TILE_WIDTH / TILE_HEIGHT for c in range(3)])
    return means


def compare(frame, drawn, words):
    wanted = [[int(word[i:i + 2], 16) for i in (0, 2, 4)] for word in words.split()]
    worst, place = max((max(abs(x - y) for x, y in zip(a, b)), i) for i, (a, b) in enumerate(zip(drawn, wanted)))
    of_all = max(abs(sum(a[c] - b[c] for a, b in zip(drawn, wanted))) / len(drawn) for c in range(3))
    print(f"# frame {frame}: tile {place} is off by {worst:.2f} of 255, all tiles by {of_all:.3f}")
    tap.check(len(drawn) == len(wanted) and worst <= TOLERANCE and of_all <= TOLERANCE_OF_ALL,
              f"frame {frame} is the picture of the host backend",
              [" ".join("".join(f"{round(part):02x}" for part in tile) for tile in drawn)])


def main():
    source = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        if source.is_dir():
            folder = source
        else:
            done = subprocess.run([source, folder], capture_output=True, text=True, check=False, timeout=200)
            lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
            skipped = [line[9:] for line in lines if line.startswith("skipped: ")]
            if skipped:
                print(f"1..0 # SKIP {skipped[0]}")
                return
            tap.check(done.returncode == 0, "the engine runs", lines)
            if done.returncode != 0:
                tap.finish()
            print(*(f"# {line}" for line in lines if " computed " in line), sep="\n")
        for frame, words in FRAMES.items():
            compare(frame, tiles_of(pathlib.Path(folder) / f"frame-{frame}.ppm"), words)
    tap.finish()


main()
