# SPDX-License-Identifier: Apache-2.0
"""Draws rows of the benchmarks as SVG, an element a line: the file stays small and its changes readable."""

import html
import math

# Distinct by colour and by dashes, also without colour vision and in print.
STYLES = {
    "gmm": ("#c1272d", ""), "gmm-heap": ("#c1272d", "6 3"), "gmm-heap-reserved": ("#7f0000", ""),
    "mimalloc": ("#0072b2", ""), "umf": ("#8c564b", ""),
    "cudaMalloc": ("#4d4d4d", ""), "cudaMallocAsync": ("#009e73", ""), "pytorch": ("#e69f00", ""),
    "pytorch-expandable": ("#e69f00", "6 3"), "rmm-pool": ("#7a5195", ""),
}
WIDTH, HEIGHT, LEFT, TOP, GAP = 430, 300, 70, 50, 80  # of a panel, and around it


def with_unit(value, step, units):
    unit = 0
    while value >= step and unit + 1 < len(units):
        value, unit = value / step, unit + 1
    return f"{value:g}{units[unit]}"


def size_text(size):
    return with_unit(size, 1024, (" B", " KiB", " MiB", " GiB"))


def time_text(ns):
    return with_unit(ns, 1000, (" ns", " µs", " ms", " s"))


def rate_text(rate):
    return with_unit(rate, 1000, ("", " k", " M", " G"))


# Title; then of each panel: name, words of the axes, texts of the numbers at them.
SIZES = ("one thread", "size of the block", "one alloc and free (less is better)", size_text, time_text)
THREADS = ("blocks of 1 KiB", "threads, each with its own stream", "pairs a second in all (more is better)", str,
           rate_text)
PANELS = (SIZES, THREADS)


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{more}>{html.escape(str(words))}</text>'


def draw_panel(panel, lines, left):
    name, x_words, y_words, x_text, y_text = panel
    columns = sorted({x for line in lines for x, _ in line["points"]})
    values = [y for line in lines for _, y in line["points"]]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    bottom = TOP + HEIGHT

    def x_of(x):
        return left + WIDTH * columns.index(x) / (len(columns) - 1)

    def y_of(y):
        return bottom - HEIGHT * (math.log10(y) - low) / (high - low)

    out = [text(left + WIDTH / 2, TOP - 8, name), text(left + WIDTH / 2, bottom + 36, x_words),
           text(left - 52, TOP + HEIGHT / 2, y_words,
                more=f' transform="rotate(-90 {left - 52:.0f} {TOP + HEIGHT / 2:.0f})"')]
    for power in range(low, high + 1):
        y = y_of(10**power)
        out.append(f'<path d="M{left} {y:.0f}h{WIDTH}" stroke="#e3e3e3"/>' +
                   text(left - 6, y + 4, y_text(10**power), "end"))
    out += [text(x_of(x), bottom + 16, x_text(x)) for x in columns]
    for line in lines:
        color, dash = STYLES.get(line["subject"], ("#999999", "2 2"))
        places = [f"{x_of(x):.0f} {y_of(y):.1f}" for x, y in line["points"]]
        marks = "".join(f"M{place}h0" for place in places)
        width = 2.4 if line["subject"].startswith("gmm") else 1.5
        out.append(f'<g stroke="{color}" fill="none"><path stroke-width="{width}" stroke-dasharray="{dash}" '
                   f'd="M{"L".join(places)}"/><path stroke-width="7" stroke-linecap="round" d="{marks}"/></g>')
    return out


def draw(lines, device):
    order = [name for name in STYLES if any(line["subject"] == name for line in lines)]
    width = LEFT + len(PANELS) * (WIDTH + GAP)
    across = 6
    height = TOP + HEIGHT + 60 + 20 * -(-len(order) // across)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="11">', f'<rect width="{width}" height="{height}" fill="white"/>',
           text(width / 2, 20, f"gmm beside other allocators: {device}", more=' font-size="14"')]
    for at, panel in enumerate(PANELS):
        own = sorted((line for line in lines if line["panel"] == panel[0]), key=lambda line: line["subject"])
        out += draw_panel(panel, own, LEFT + at * (WIDTH + GAP)) if own else []
    for at, name in enumerate(order):
        x, y = LEFT + at % across * (width - LEFT) / across, TOP + HEIGHT + 60 + 20 * (at // across)
        color, dash = STYLES[name]
        out.append(f'<path d="M{x:.0f} {y}h24" stroke="{color}" stroke-width="3" stroke-dasharray="{dash}"/>' +
                   text(x + 30, y + 4, name, "start"))
    return "\n".join([*out, "</svg>"]) + "\n"
