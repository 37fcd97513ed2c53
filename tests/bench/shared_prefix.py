#!/usr/bin/env python3
"""Question: how much faster are items whose prompts begin alike (prefix caching)?

usage: shared_prefix.py LONGHAUL [--model MODEL] [--items 48] [--bytes 2200] [--tokens 16] [--rounds 3] [--batch 8]
                        [--option KEY=VALUE ...]

Every prompt is a page of a novel and a question of its own. With `alike` the page comes first, so that it is computed
once; with `unlike` a number stands before it, so that no two prompts begin alike. Both run one after another in each
round. Prints the median seconds of each (wall time of the launch, model loaded), and the median of their ratios.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import DEMO_MODEL, Bench, check  # noqa: E402


def write_prompts(path, text, num_bytes, items, alike):
    page = text[2000 : 2000 + num_bytes]
    with path.open("w") as file:
        for item in range(items):
            at = 2000 + num_bytes + 150 * item
            question = f"\n\nNote {item}: {text[at : at + 120]}"
            number = "" if alike else f"{item:04d} "
            file.write(json.dumps({"id": str(item), "prompt": number + page + question}) + "\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("longhaul")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    parser.add_argument("--items", type=int, default=48)
    parser.add_argument("--bytes", type=int, default=2200)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    text = next((DEMO_MODEL.parent / "books").glob("*.txt")).read_text()
    seconds, cached, prompts = {"alike": [], "unlike": []}, {}, {}
    bench = Bench(arguments.longhaul)
    try:
        for number in range(arguments.rounds):
            for kind in seconds:
                data = bench.folder / f"{kind}.jsonl"
                write_prompts(data, text, arguments.bytes, arguments.items, kind == "alike")
                job = bench.job(f"{kind}.cfg", model=arguments.model, task="prompts", data=data, temperature=0, draft="ar",
                                max_tokens=arguments.tokens, ignore_eos="true", batch=arguments.batch)
                run = bench.folder / f"{kind}-{number}"
                result = bench.run(job, 1, f"--output={run}", *(f"--{option}" for option in arguments.option), limit=3600)
                check(result.code == 0, f"{kind}: exit code {result.code}\n{result.errors}")
                summary = json.loads((run / "summary.json").read_text())
                seconds[kind].append(summary["working_seconds"])
                cached[kind], prompts[kind] = summary["cached_tokens"], summary["prompt_tokens"]
    finally:
        bench.close()
    for kind, of in seconds.items():
        print(f"{kind:>7}  {statistics.median(of):7.2f} s  {cached[kind]:,} of {prompts[kind]:,} prompt tokens copied")
    ratios = [unlike / alike for alike, unlike in zip(seconds["alike"], seconds["unlike"], strict=True)]
    print(f"prompts that begin alike: {statistics.median(ratios):.2f} times as fast")


if __name__ == "__main__":
    main()
