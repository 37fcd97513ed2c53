#!/usr/bin/env python3
"""Figure 1 of the paper on recursive speculative decoding: how often one of two drafts of a token is accepted, where
draft and target choose between two tokens.

usage: figure_1.py FIGURE.svg [--rule-table build/tests/rule-table]

The panels are exact. With --rule-table the engine's own draft methods and verification rules are measured at some points
too, and the greatest difference is printed. Needs matplotlib, which longhaul-analysis brings.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

# p and q: probability of the one token by the draft and by the target.


def multi_round(p, q):
    """SpecInfer: what the first rejection leaves of the target is certain."""
    first = min(p, q) + min(1 - p, 1 - q)
    return first + (1 - first) * (p if q > p else 1 - p)


def k_seq(p, q):
    """SpecTr's K-SEQ with the best gamma."""
    low, high = 1.0, 2.0
    for _ in range(60):
        gamma = (low + high) / 2
        beta = min(p, q / gamma) + min(1 - p, (1 - q) / gamma)
        if 1 - (1 - beta) ** 2 <= gamma * beta:
            high = gamma
        else:
            low = gamma
    beta = min(p, q / high) + min(1 - p, (1 - q) / high)
    return 1 - (1 - beta) ** 2


def optimal_transport(p, q):
    """The best that any rule does with drafts drawn with replacement."""
    return min(1, 1 - q + 1 - (1 - p) ** 2, q + 1 - p**2)


def recursive(_p, _q):
    """The second draft is what the rejection of the first leaves."""
    return 1.0


PANELS = (
    ("multi-round", multi_round, ("spectr", "multi-round")),
    ("K-SEQ", k_seq, ("spectr", "k-seq")),
    ("optimal transport", optimal_transport, None),
    ("recursive", recursive, ("rsd-s", "recursive")),
)


def measured(program, pair, p, q, draws=20000):
    """What the engine accepts."""
    draft, verify = pair
    job = {"draft": draft, "draft-tree": "2x1", "verify": verify, "p": {"": [1 - p, p]}, "q": {"": [1 - q, q]},
           "emit": 1, "draws": draws}
    done = subprocess.run([program], input=json.dumps(job), capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"error: {program}: exit code {done.returncode}")
    counts = json.loads(done.stdout)
    return counts["accepted"] / counts["target_calls"]


def draw(path):
    grid = [(i + 0.5) / 50 for i in range(50)]
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    all_axes = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, accepted, _) in zip(all_axes, PANELS, strict=True):
        values = [[accepted(p, q) for p in grid] for q in grid]
        image = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), vmin=0, vmax=1, cmap="viridis")
        axes.set(title=title, xlabel="draft's probability p")
    all_axes[0].set_ylabel("target's probability q")
    figure.colorbar(image, ax=all_axes, label="accepted")
    with mpl.rc_context({"svg.hashsalt": "longhaul", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main():
    parser = argparse.ArgumentParser(description="Draws Figure 1 of the paper on recursive speculative decoding.")
    parser.add_argument("figure", type=Path, metavar="FIGURE", help="FILE.svg, .pdf or .png")
    parser.add_argument("--rule-table", metavar="PROGRAM", help="measure the engine's rules too")
    options = parser.parse_args()
    draw(options.figure)
    if options.rule_table is None:
        return
    for title, accepted, pair in PANELS:
        if pair is None:
            continue
        points = [(p, q) for p in (0.1, 0.5, 0.8) for q in (0.05, 0.4, 0.9)]
        most = max(abs(measured(options.rule_table, pair, p, q) - accepted(p, q)) for p, q in points)
        print(f"{title}: at most {most:.4f} from what the engine accepts, over {len(points)} points")


if __name__ == "__main__":
    main()
