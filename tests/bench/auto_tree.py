#!/usr/bin/env python3
"""Question: how close is `draft-tree = auto` to the best fixed tree, and to plain decoding if drafts are useless?

usage: auto_tree.py LONGHAUL DRAFT_MODEL [--draft rsd-s] [--trees 2x2,3x4,...] [--rounds 3] [--threads 0] [--tokens 400]
                    [--items 4] [--option KEY=VALUE ...]

Each round runs the demo model over openings of the demo's books with plain decoding, each tree, and auto, one after
another. Prints for each the median decoding tokens per second, and the median of its ratios to plain decoding in the
same round; then auto over the best fixed tree. All texts are compared. (Drafts of a known acceptance: `longhaul bench
speculation --draft-tree=auto`.)
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import DEMO_MODEL, Bench, check  # noqa: E402

TREES = {
    "sd": "1,2,3,4,6,8",
    "spectr": "2x2,2x4,3x4,4x6",
    "rsd-c": "1,1,1;2,1,1;2,2,1;3,1,1,1;4,2,1",
    "rsd-s": "1x2,1x4,2x2,2x4,3x4,4x6,6x6",
}


def measure(bench, job, name, options):
    """Decoding tokens per second, block efficiency, and the texts."""
    run = bench.folder / name
    result = bench.run(job, 1, f"--output={run}", *options)
    check(result.code == 0, f"{name}: exit code {result.code}\n{result.errors}")
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    texts = {(line["id"], line.get("sample", 0)): line["text"] for line in lines}
    return summary["decode_tokens_per_second"], summary["block_efficiency"], texts


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("longhaul")
    parser.add_argument("draft_model", type=Path)
    parser.add_argument("--draft", default="rsd-s")
    parser.add_argument("--trees", default="", help="separated by ; where they branch, else by ,")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    listed = arguments.trees or TREES[arguments.draft]
    trees = listed.split(";" if ";" in listed else ",") + ["auto"]
    bench = Bench(arguments.longhaul)
    try:
        job = bench.job("auto.cfg", model=DEMO_MODEL, task="pg19", data=DEMO_MODEL.parent / "books", limit=arguments.items,
                        prompt_tokens=128, max_tokens=arguments.tokens, ignore_eos="true", seed=1, temperature=0.8,
                        threads=arguments.threads, batch=1)
        extra = [f"--{option}" for option in arguments.option]
        rates = {"ar": [], **{tree: [] for tree in trees}}
        efficiency, expected = {}, None
        for number in range(arguments.rounds):
            for tree in rates:
                options = ["--draft=ar"] if tree == "ar" else [
                    f"--draft={arguments.draft}", f"--draft-model={arguments.draft_model}", f"--draft-tree={tree}"]
                rate, efficiency[tree], texts = measure(bench, job, f"{number}-{tree}", options + extra)
                expected = expected or texts
                check(texts == expected, f"{tree}: another text than plain decoding's")
                rates[tree].append(rate)
    finally:
        bench.close()
    ratio = {tree: statistics.median(rate / plain for rate, plain in zip(of, rates["ar"])) for tree, of in rates.items()}
    for tree, of in rates.items():
        print(f"{tree:>12}  {statistics.median(of):8.1f} tokens/s  {ratio[tree]:5.2f} x plain  {efficiency[tree]:5.2f} tokens per call")
    best = max((tree for tree in trees if tree != "auto"), key=ratio.get)
    print(f"auto over the best fixed tree ({best}): {ratio['auto'] / max(ratio[best], 1.0):.3f}; over plain: {ratio['auto']:.3f}")


if __name__ == "__main__":
    main()
