# SPDX-License-Identifier: Apache-2.0
"""The pictures of examples/engine are those that Mesa's CPU device draws, within a tolerance.

Usage: pictures_test.py ENGINE [--renew]     ENGINE: the program, or a folder with pictures that it wrote. The program
                                             runs on the backend that GMM_BACKEND names.

Each of three frames is cut into tiles. pictures.txt has the mean colour of each tile as lavapipe drew it from particles
of the host backend. Another device may round sines, blends and the edges of points otherwise, so a mean may be off by
TOLERANCE of 255, and the mean of all tiles by TOLERANCE_OF_ALL. --renew writes pictures.txt.
"""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

REFERENCE = pathlib.Path(__file__).with_name("pictures.txt")
FRAMES = (12, 28, 44)
TILE_WIDTH, TILE_HEIGHT = 60, 30  # pixels
TOLERANCE, TOLERANCE_OF_ALL = 3.0, 0.5


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


def write(means):
    """pictures.txt: a tile is three numbers of four hexadecimal digits, in 1/256 of a step of 255."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Mean colours of tiles, which pictures_test.py writes"]
    for frame, tiles in means.items():
        lines.append(f"frame {frame}")
        words = ["".join(f"{round(256 * part):04x}" for part in tile) for tile in tiles]
        lines += [" ".join(words[i:i + 8]) for i in range(0, len(words), 8)]
    REFERENCE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read():
    means, tiles = {}, []
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("frame "):
            tiles = means[int(line[6:])] = []
        elif not line.startswith("#"):
            tiles += [[int(word[i:i + 4], 16) / 256 for i in (0, 4, 8)] for word in line.split()]
    return means


def compare(frame, drawn, wanted):
    worst, place = max((max(abs(x - y) for x, y in zip(a, b)), i) for i, (a, b) in enumerate(zip(drawn, wanted)))
    of_all = max(abs(sum(a[c] - b[c] for a, b in zip(drawn, wanted))) / len(drawn) for c in range(3))
    print(f"# frame {frame}: tile {place} is off by {worst:.2f} of 255, all tiles by {of_all:.3f}")
    tap.check(len(drawn) == len(wanted) and worst <= TOLERANCE and of_all <= TOLERANCE_OF_ALL,
              f"frame {frame} is the picture of the host backend",
              [f"tile {place}: {drawn[place]}, expected {wanted[place]}"])


def main():
    source, renews = pathlib.Path(sys.argv[1]), "--renew" in sys.argv[2:]
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
        means = {frame: tiles_of(pathlib.Path(folder) / f"frame-{frame}.ppm") for frame in FRAMES}
    if renews:
        write(means)
    wanted = read()
    for frame, tiles in means.items():
        compare(frame, tiles, wanted[frame])
    tap.finish()


main()
