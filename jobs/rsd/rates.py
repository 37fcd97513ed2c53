#!/usr/bin/env python3
"""Token rates of the paper's decoders from measured times and the paper's block efficiencies.

usage: rates.py BENCH.json

BENCH.json is `longhaul bench speculation --draft-shape … --json`: the time of the draft passes and of the target's pass
of a tree. That time hardly depends on how many drafts are accepted, so the rate of a decoder is its block efficiency
divided by it. The block efficiencies are those of Llama 2-Chat-7B with its 115M draft model on Dolly: table 36 of
the paper (arXiv 2402.14160).
"""

import json
import sys

NAMES = {"sd": "SD", "spectr": "SpecTr", "rsd-c": "RSD-C", "rsd-s": "RSD-S"}
PAPER = {
    ("sd", "6"): 2.872, ("spectr", "2x3"): 2.510, ("rsd-c", "2,1,1"): 2.491, ("rsd-s", "2x3"): 2.598,
    ("sd", "10"): 3.077, ("spectr", "2x5"): 2.898, ("rsd-c", "2,1,1,1,1"): 2.837, ("rsd-s", "2x5"): 3.026,
    ("sd", "30"): 3.158, ("spectr", "6x5"): 3.072, ("rsd-c", "2,2,2,2"): 2.914, ("rsd-s", "6x5"): 3.221,
}  # fmt: skip


def depth_of(tree):
    """Levels of a tree: "5", "6x5", "2,2,1"."""
    return len(tree.split(",")) if "," in tree else int(tree.split("x")[-1])


def main():
    """Prints the table."""
    if len(sys.argv) != 2:
        sys.exit("usage: rates.py BENCH.json")
    with open(sys.argv[1], encoding="utf-8") as file:
        bench = json.load(file)
    print(f"Shape {bench['shape']}, {bench['precision']}, {bench['kernels']} kernels, {bench['threads']} threads.\n")
    head = ["Dec.", "Spec.", "ms drafts", "ms target", "accept", "Eff.", "tokens/s", "/ AR"]
    head += ["Eff. (paper)", "MBSU", "tokens/s", "/ AR"]
    print(f"| {' | '.join(head)} |\n|---|---|{'---:|' * (len(head) - 2)}")
    for line in bench["lines"]:
        draft, target = line["draft_seconds"], line["target_seconds"]
        cells = [NAMES.get(line["draft"], line["draft"]), line["tree"], f"{1000 * draft:.1f}", f"{1000 * target:.1f}",
                 f"{line['accept']:.2f}", f"{line['block_efficiency']:.2f}", f"{line['tokens_per_second']:.2f}",
                 f"{line['speedup']:.2f}"]  # fmt: skip
        efficiency = PAPER.get((line["draft"], line["tree"]))
        if efficiency is None:
            cells += [""] * 4
        else:
            rate = efficiency / (draft + target)
            mbsu = efficiency / (depth_of(line["tree"]) * line["ratio"] + 1)
            cells += [f"{efficiency:.3f}", f"{mbsu:.3f}", f"{rate:.2f}", f"{rate / line['ar_tokens_per_second']:.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
