# SPDX-License-Identifier: Apache-2.0
"""The pictures of examples/engine are those that Mesa's CPU device draws, within a tolerance.

Usage: pictures_test.py ENGINE [--renew]     ENGINE: the program, or a folder with pictures that it wrote. The program
                                             runs on the backend that GMM_BACKEND names.

Each of three frames is cut into tiles. pictures.txt has the mean colour of each tile as lavapipe drew it from particles
of the host backend. Another device may round sines, blends and the edges of points otherwise, so a mean may be off by
TOLERANCE of 255, and the mean of all tiles by TOLERANCE_OF_ALL. The tiles under the statistics are left out, because
what they tell differs from machine to machine. --renew writes pictures.txt.
"""

import itertools
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import tap  # noqa: E402

REFERENCE = pathlib.Path(__file__).with_name("pictures.txt")
FRAMES = (12, 28, 44)
TILE = 30  # pixels
STATISTICS = (12, 3)  # columns and rows of tiles
TOLERANCE, TOLERANCE_OF_ALL = 3.0, 0.5


def pixels_of(path):
    """Width, height, and reds, greens and blues by rows, of a PNG that examples/engine/picture.cpp wrote."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        if name == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        elif name == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    rows, stride = zlib.decompress(packed), 1 + 3 * width
    if len(rows) != height * stride or set(rows[::stride]) != {1}:  # each point less the one on its left
        raise ValueError(f"{path.name} is no picture of the engine")
    channels = [rows[y * stride + 1 + c:(y + 1) * stride:3] for y in range(height) for c in range(3)]
    whole = [bytes(value & 255 for value in itertools.accumulate(channel)) for channel in channels]
    return width, height, [whole[3 * y:3 * y + 3] for y in range(height)]


def tiles_of(path):
    """The mean red, green and blue of each tile, or None, by rows."""
    width, height, rows = pixels_of(path)
    means = []
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            if left // TILE < STATISTICS[0] and top // TILE < STATISTICS[1]:
                means.append(None)
                continue
            tile = rows[top:top + TILE]
            means.append([sum(sum(row[c][left:left + TILE]) for row in tile) / TILE / TILE for c in range(3)])
    return width // TILE, means


def write(means):
    """pictures.txt: a tile is three numbers of four hexadecimal digits, in 1/256 of a step of 255."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", "# Mean colours of tiles, which pictures_test.py writes"]
    for frame, (columns, tiles) in means.items():
        lines.append(f"frame {frame}")
        words = ["-" if tile is None else "".join(f"{round(256 * part):04x}" for part in tile) for tile in tiles]
        half = columns // 2
        lines += [" ".join(words[i:i + half]) for i in range(0, len(words), half)]
    REFERENCE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read():
    means, tiles = {}, []
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("frame "):
            tiles = means[int(line[6:])] = []
        elif not line.startswith("#"):
            for word in line.split():
                parts = None if word == "-" else [int(word[i:i + 4], 16) / 256 for i in (0, 4, 8)]
                tiles.append(parts)
    return means


def compare(frame, drawn, wanted):
    pairs = [(place, a, b) for place, (a, b) in enumerate(zip(drawn, wanted)) if a is not None and b is not None]
    worst, place = max((max(abs(x - y) for x, y in zip(a, b)), place) for place, a, b in pairs)
    of_all = max(abs(sum(a[c] - b[c] for _, a, b in pairs)) / len(pairs) for c in range(3))
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
        means = {frame: tiles_of(pathlib.Path(folder) / f"frame-{frame}.png") for frame in FRAMES}
    if renews:
        write(means)
    wanted = read()
    for frame, (_, tiles) in means.items():
        compare(frame, tiles, wanted[frame])
    tap.finish()


main()
