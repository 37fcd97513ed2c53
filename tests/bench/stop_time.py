#!/usr/bin/env python3
"""Question: how long does a run take from the stop request (SIGUSR1) to exit code 75 with everything saved?

usage: stop_time.py LONGHAUL [--tokens 20000] [--times 5] [--ranks 1] [--option KEY=VALUE ...]

The demo model under mpirun is stopped (a) after it has generated `--tokens` tokens of one item, (b) in the middle of a
prompt of `--tokens` tokens. Prints the seconds from the signal to mpirun's exit, and the run's own `stop_seconds`,
which excludes the shutdown of MPI: median and maximum over `--times` stops. Takes about five minutes on two cores.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import DEMO_MODEL, Bench, check, wait_for  # noqa: E402

WORDS = "the old captain went down to the sea and the wind came in from the dark little house by the shore ".split()
LIMIT = 900.0


def heartbeat(run):
    """The last heartbeat of replica 0 of the newest launch."""
    beats = []
    for path in (run / "status").glob("0-*.json"):
        try:
            beats.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue
    return max(beats, key=lambda beat: beat["epoch"], default={})


def stop(launch, run):
    """Seconds from the signal to the exit, and the `stop_seconds` that the run measured."""
    start = time.monotonic()
    launch.signal(signal.SIGUSR1)
    done = launch.wait(LIMIT)
    seconds = time.monotonic() - start
    check(done.code == 75, f"expected exit code 75, got {done.code}\n{done.errors}")
    newest = max(run.glob("launches/*.ended.json"), key=lambda path: int(path.name.split(".")[0]))
    return seconds, json.loads(newest.read_text())["stop_seconds"]


def in_generation(bench, arguments):
    (bench.folder / "prompts.jsonl").write_text(json.dumps({"id": "long", "prompt": "It was a dark night"}) + "\n")
    run = bench.folder / "generation"
    job = bench.job("generation.cfg", model=DEMO_MODEL, output=run, max_tokens=6 * arguments.tokens, threads=0,
                    checkpoint_tokens=2000, checkpoint_seconds=60)
    times = []
    for count in range(arguments.times):
        launch = bench.start(job, arguments.ranks, *arguments.options)
        wanted = arguments.tokens + 1000 * count
        # Only a heartbeat with this launch's epoch counts; older ones are of earlier launches.
        wait_for(lambda: heartbeat(run).get("epoch") == count + 1
                 and heartbeat(run)["unfinished_tokens"] >= wanted, f"{wanted} tokens", LIMIT)
        times.append(stop(launch, run))
    return times


def in_prefill(bench, arguments):
    prompt = " ".join(WORDS[i * i % len(WORDS)] for i in range(arguments.tokens))
    (bench.folder / "long.jsonl").write_text(json.dumps({"id": "long", "prompt": prompt}) + "\n")
    run = bench.folder / "whole"
    keys = {"model": DEMO_MODEL, "data": bench.folder / "long.jsonl", "max_tokens": 1, "threads": 0}
    whole = bench.run(bench.job("whole.cfg", output=run, **keys), arguments.ranks, *arguments.options, limit=LIMIT)
    check(whole.code == 0, whole.errors)
    line = json.loads((run / "stats.jsonl").read_text())
    print(f"a prompt of {line['prompt_tokens']} tokens: {line['prefill_seconds']:.1f} s", flush=True)
    times = []
    for count in range(arguments.times):
        run = bench.folder / f"prefill-{count}"
        launch = bench.start(bench.job(f"prefill-{count}.cfg", output=run, **keys), arguments.ranks, *arguments.options)
        wait_for(lambda: (run / "identity.json").exists(), "the model is loaded", LIMIT)
        time.sleep(line["prefill_seconds"] / 2)
        times.append(stop(launch, run))
        beat = heartbeat(run)
        check(beat["emitted_tokens"] == 0, f"stopped after its prompt: {beat}")
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    arguments.options = ["--" + option for option in arguments.option]
    bench = Bench(arguments.binary)
    try:
        for name, measure in (("in a prompt", in_prefill), ("in generation", in_generation)):
            outside, inside = zip(*measure(bench, arguments))
            print(f"{name} at {arguments.tokens} tokens: {statistics.median(outside):.2f} s to the exit (longest "
                  f"{max(outside):.2f}), stop_seconds {statistics.median(inside):.2f} (longest {max(inside):.2f})", flush=True)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
