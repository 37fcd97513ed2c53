"""Draws the loss curve of STATE/log.jsonl as an SVG; no libraries.

python plot.py --log STATE/log.jsonl --out loss.svg
"""

import argparse
import json
import pathlib

W, H, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 16, 34, 46
POINTS = 300  # a curve: enough for the eye, and the file stays small


def series(lines, keep):
    """Exponential mean of the loss over about 20 steps, thinned."""
    out, mean = [], None
    for line in lines:
        if keep(line):
            mean = line["loss"] if mean is None else mean + 0.05 * (line["loss"] - mean)
            out.append((line["tokens"] / 1e6, mean))
    every = max(1, len(out) // POINTS)
    return out[::every] + out[-1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    # A resumed run repeats the steps since its last save: the later line of a step counts.
    lines = {}
    for line in pathlib.Path(args.log).read_text().splitlines():
        line = json.loads(line)
        lines[line["step"]] = line
    lines = [lines[step] for step in sorted(lines)]
    curves = [
        ("windows of 512", "#2457a6", series(lines, lambda l: not l["long"])),
        ("windows of 8192", "#c2571a", series(lines, lambda l: l["long"])),
    ]
    x_top = max(x for _, _, points in curves for x, _ in points)
    y_low, y_high = 3.0, 6.0
    lowest = min(y for _, _, points in curves for _, y in points)
    while lowest < y_low:
        y_low -= 0.5

    def place(x, y):
        x = LEFT + (W - LEFT - RIGHT) * x / x_top
        y = TOP + (H - TOP - BOTTOM) * (y_high - min(y, y_high)) / (y_high - y_low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
        f'<rect width="{W}" height="{H}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">Training loss, nats a token (mean of about 20 steps)</text>',
    ]
    y = y_low
    while y <= y_high + 1e-9:
        py = place(0, y).split(",")[1]
        parts.append(f'<line x1="{LEFT}" x2="{W - RIGHT}" y1="{py}" y2="{py}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(py) + 4:.1f}" text-anchor="end">{y:.1f}</text>')
        y += 0.5
    step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if x_top / s <= 10)
    x = 0.0
    while x <= x_top:
        px = place(x, y_low).split(",")[0]
        parts.append(f'<text x="{px}" y="{H - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
        x += step
    parts.append(f'<text x="{(W + LEFT) / 2}" y="{H - 10}" text-anchor="middle">million tokens seen</text>')
    decay = next((l["tokens"] / 1e6 for l in lines if l["stage"] == "long"), None)
    if decay:
        px = place(decay, y_low).split(",")[0]
        parts.append(f'<line x1="{px}" x2="{px}" y1="{TOP}" y2="{H - BOTTOM}" stroke="#888" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{float(px) - 6:.1f}" y="{TOP + 14}" text-anchor="end" fill="#555">last stage: rate falls to zero</text>')
    for i, (name, colour, points) in enumerate(curves):
        if points:
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{" ".join(place(*p) for p in points)}"/>')
            parts.append(f'<text x="{W - RIGHT - 8}" y="{TOP + 16 + 16 * i}" text-anchor="end" fill="{colour}">{name}</text>')
    pathlib.Path(args.out).write_text("\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
