#!/usr/bin/env python3
"""Question: what is the overhead per item, and does memory grow with the number of items?

usage: many_items.py LONGHAUL [--items 1000 100000] [--max-tokens 4] [--ranks 2] [--batch 4] [--option KEY=VALUE ...]

One-line prompts through a tiny random model under mpirun: a token costs almost nothing, so the time is that of reading,
sharding and writing. Prints for each number of items: the time of each part of the run (from the files in the run
folder), the same per item, and the peak memory of a rank (with draft = ngram a table shared by all items adds up to
about 50 MB). `work` is the time that the replicas spent in drafts, target passes and verification; `beside` is the rest
of the loop.
"""

import argparse
import json
import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import Bench, make_prompts  # noqa: E402


def watch(launch, run):
    """Returns when the launch had read its data and taken the run folder, and the peak memory of each rank in MiB."""
    peaks = {}
    pids = []
    taken = 0
    while launch.alive():
        if not taken and (run / "launches" / "1.json").exists():
            taken = time.time()
        if len(pids) == 0:
            pids = launch.rank_pids()
        for rank, pid in enumerate(pids):
            try:
                found = re.search(r"VmHWM:\s+(\d+)", Path("/proc", str(pid), "status").read_text())
                peaks[rank] = int(found.group(1)) / 1024
            except (OSError, AttributeError):
                pass
        time.sleep(0.02)
    return taken, [peaks[rank] for rank in sorted(peaks)]


def work_seconds(run, ranks):
    """Seconds of work of all replicas, per rank."""
    total = 0.0
    for log in (run / "log").glob("replica-*.log"):
        found = re.search(r"time in drafts ([\d.]+) s, target passes ([\d.]+) s, verification ([\d.]+) s", log.read_text())
        total += sum(map(float, found.groups()))
    return total / ranks


def measure(bench, items, options):
    run = bench.folder / f"run-{items}"
    prompts = bench.folder / f"prompts-{items}.jsonl"
    make_prompts(prompts, items)
    job = bench.job(max_tokens=options.max_tokens, batch=options.batch, data=prompts, output=run,
                    checkpoint_tokens=2000, checkpoint_seconds=60, draft="ar")
    began = time.time()
    launch = bench.start(job, options.ranks, *[f"--{option}" for option in options.option])
    taken, peaks = watch(launch, run)
    done = launch.wait(3600)
    ended = time.time()
    if done.code != 0:
        sys.exit(f"exit code {done.code}\n{done.errors}")
    summary = json.loads((run / "summary.json").read_text())
    loop = summary["launch"]["seconds"]
    loop_end = (run / "status" / "run.json").stat().st_mtime
    parts = {"read": taken - began, "plan": loop_end - loop - taken, "loop": loop, "end": ended - loop_end}
    parts["work"] = work_seconds(run, options.ranks)
    parts["beside"] = loop - parts["work"]
    shutil.rmtree(run)
    return parts, peaks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--items", type=int, nargs="+", default=[1000, 100000])
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--option", nargs="*", default=[])
    options = parser.parse_args()
    bench = Bench(options.binary)
    try:
        print(f"{'items':>8} " + " ".join(f"{name:>9}" for name in ("read", "plan", "loop", "work", "beside", "end")) + "   MiB a rank")
        before = None
        for items in options.items:
            parts, peaks = measure(bench, items, options)
            print(f"{items:8} " + " ".join(f"{parts[n]:8.2f}s" for n in ("read", "plan", "loop", "work", "beside", "end")) +
                  "   " + ", ".join(f"{peak:.1f}" for peak in peaks), flush=True)
            if before:
                more = items - before[0]
                each = {name: 1e6 * (parts[name] - before[1][name]) / more for name in parts}
                print("  µs each " + " ".join(f"{each[n]:9.1f}" for n in ("read", "plan", "loop", "work", "beside", "end")) +
                      f"   {1e6 * (sum(peaks) - sum(before[2])) / more / len(peaks) * 1.048576:.0f} bytes per item and rank", flush=True)
            before = (items, parts, peaks)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
