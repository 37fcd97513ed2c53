"""Draws the curves of a training as an SVG; no libraries.

python plot.py --log STATE/log.jsonl --out loss.svg                        of train.py: the loss
python plot.py --layers NAME=STATE/layer.jsonl … --out layers.svg          of layer.py: loss and accuracy, means over the levels
"""

import argparse
import html
import json
import math
import pathlib

W, H, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 16, 34, 46
POINTS = 300  # a curve: enough for the eye, and the file stays small
COLOURS = ("#2457a6", "#c2571a", "#2e8b57", "#8a3ffc", "#555555")


def read_log(path):
    """The lines of a log by step. A resumed run repeats the steps since its last save: the later line of a step counts."""
    lines = {}
    for line in pathlib.Path(path).read_text().splitlines():
        try:
            line = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off when the training was killed
        lines[line["step"]] = line
    return [lines[step] for step in sorted(lines)]


def smoothed(points, share):
    """Exponential mean of the values, thinned."""
    out, mean = [], None
    for x, y in points:
        mean = y if mean is None else mean + share * (y - mean)
        out.append((x, mean))
    every = max(1, math.ceil(len(out) / POINTS))
    return out[::every] + out[-1:]


class Panel:
    """One set of axes, width wide from left on, over the values low to high; what is above is cut."""

    def __init__(self, title, left, width, x_top, low, high, y_step):
        self.x0, self.width, self.x_top, self.low, self.high = left + LEFT, width - LEFT - RIGHT, x_top, low, high
        self.right = self.x0 + self.width
        self.parts = [f'<text x="{self.x0}" y="20" font-size="14">{title}</text>']
        for i in range(round((high - low) / y_step) + 1):
            y = low + i * y_step
            py = self.place(0, y)[1]
            self.parts.append(f'<line x1="{self.x0}" x2="{self.right}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
            self.parts.append(f'<text x="{self.x0 - 8}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>')
        step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 1e9) if x_top / s <= 10)
        for i in range(int(x_top / step) + 1):
            px = self.place(i * step, low)[0]
            self.parts.append(f'<text x="{px:.1f}" y="{H - BOTTOM + 18}" text-anchor="middle">{i * step:g}</text>')
        self.parts.append(f'<text x="{self.x0 + self.width / 2}" y="{H - 10}" text-anchor="middle">million tokens seen</text>')

    def place(self, x, y):
        high = self.high - min(max(y, self.low), self.high)
        return self.x0 + self.width * x / self.x_top, TOP + (H - TOP - BOTTOM) * high / (self.high - self.low)

    def mark(self, x, text):
        px = self.place(x, self.low)[0]
        self.parts.append(f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{H - BOTTOM}" stroke="#888" stroke-dasharray="4 3"/>')
        self.parts.append(f'<text x="{px - 6:.1f}" y="{TOP + 14}" text-anchor="end" fill="#555">{text}</text>')

    def curves(self, curves):
        for colour, points in zip(COLOURS, curves):
            line = " ".join("{:.1f},{:.1f}".format(*self.place(*point)) for point in points)
            self.parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{line}"/>')

    def names(self, names, y):
        for i, (colour, name) in enumerate(zip(COLOURS, names)):
            self.parts.append(f'<text x="{self.right - 8}" y="{y + 16 * i}" text-anchor="end" fill="{colour}">{html.escape(name)}</text>')


def write(path, panels):
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
        f'<rect width="{W}" height="{H}" fill="white"/>',
    ]
    path.write_text("\n".join(head + [part for panel in panels for part in panel.parts]) + "\n</svg>\n")


def training_loss(path):
    lines = read_log(path)
    points = lambda long: smoothed([(l["tokens"] / 1e6, l["loss"]) for l in lines if l["long"] == long], 0.05)
    named = {"windows of 512": points(False), "windows of 8192": points(True)}
    named = {name: curve for name, curve in named.items() if curve}
    lowest = min(y for curve in named.values() for _, y in curve)
    panel = Panel("Training loss, nats a token (mean of about 20 steps)", 0, W, lines[-1]["tokens"] / 1e6,
                  min(3.0, math.floor(2 * lowest) / 2), 6.0, 0.5)  # fmt: skip
    last = next((l["tokens"] / 1e6 for l in lines if l["stage"] == "long"), None)
    if last:
        panel.mark(last, "last stage: rate falls to zero")
    panel.curves(named.values())
    panel.names(named, TOP + 16)
    return [panel]


def layer_training(logs):
    """A line of such a log is a mean of up to ten steps, with one number per level."""
    logs = {name: read_log(path) for name, path in logs.items()}
    if len(logs) > len(COLOURS):
        raise SystemExit(f"--layers: expected at most {len(COLOURS)} logs, got {len(logs)}")
    if not all("accuracy" in line for lines in logs.values() for line in lines):
        raise SystemExit("--layers: expected logs of layer.py, got one without accuracy")
    x_top = max(lines[-1]["tokens"] for lines in logs.values()) / 1e6
    mean = lambda values: sum(values) / len(values)
    curve = lambda key, by: [smoothed([(l["tokens"] / 1e6, by * mean(l[key])) for l in lines], 0.3) for lines in logs.values()]
    loss, accuracy = curve("loss", 1), curve("accuracy", 100)
    lowest = min(y for points in loss for _, y in points)
    highest = max(y for points in accuracy for _, y in points)
    panels = [
        Panel("Loss, nats a token", 0, W // 2, x_top, math.floor(2 * lowest) / 2, math.floor(2 * lowest) / 2 + 3, 0.5),
        Panel("Right first guesses, percent", W // 2, W // 2, x_top, 0, max(10, 10 * math.ceil(highest / 10)), 10),
    ]
    for panel, curves in zip(panels, (loss, accuracy)):
        panel.curves(curves)
    panels[0].names(logs, TOP + 16)
    return panels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--log", help="of train.py")
    what.add_argument("--layers", nargs="+", metavar="NAME=LOG", help="of layer.py")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()
    if args.layers and not all("=" in each for each in args.layers):
        parser.error("--layers: expected NAME=LOG")
    write(args.out, training_loss(args.log) if args.log else layer_training(dict(each.split("=", 1) for each in args.layers)))


if __name__ == "__main__":
    main()
