#!/usr/bin/env python3
"""Kills, stops and reshapes runs of the real program; the results must be those of an uninterrupted run.

usage: crash_test.py BINARY {kill9,kill_rank,stop,reshape,double_fault,finish_race} [COUNT [SEED]]

PASS means: the same SHA-256 of results.jsonl, every item once, the killed launches had been alive, the resume started
from a round > 0, and at most one checkpoint interval was recomputed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import check, digest, journal_keys, main, make_prompts, results, runs, statistics, wait_for  # noqa: E402

ITEMS = 4
MAX_TOKENS = 4000
INTERVAL = 500


def commits(run):
    return [path.name for path in Path(run, "checkpoints").glob("*.h5") if path.name.count(".") == 1]


def newest_epoch(run):
    return max([int(path.stem) for path in Path(run, "launches").glob("*.json") if path.stem.isdigit()], default=0)


class Run:
    """A job, its uninterrupted results, and the run folder that is interrupted."""

    def __init__(self, bench, seed, **keys):
        self.bench = bench
        self.numbers = random.Random(seed)
        self.folder = bench.folder / "run"
        make_prompts(bench.folder / "prompts.jsonl", ITEMS)
        self.job = bench.job(max_tokens=MAX_TOKENS, checkpoint_tokens=INTERVAL, batch=2, token_ids="true", **keys)
        whole = bench.run(self.job, 2, f"--output={bench.folder}/whole")
        check(whole.code == 0, f"uninterrupted run: {whole.code}\n{whole.errors}")
        self.expected = digest(bench.folder / "whole")
        self.seconds = whole.seconds

    def start(self, ranks, *options):
        return self.bench.start(self.job, ranks, *options)

    def wait_for_new_round(self, launch, epoch):
        """Waits until this launch has published a round, or ended."""
        wait_for(lambda: not launch.alive() or any(f"-{epoch}-" in name for name in commits(self.folder)),
                 "the launch writes a checkpoint")

    def wait_in_checkpoint(self, launch):
        """Waits until a file is being written (a temporary exists) or the launch has ended; at most a second."""
        end = time.monotonic() + 1
        folder = self.folder / "checkpoints"
        while launch.alive() and time.monotonic() < end:
            if any(not path.name.endswith(".h5") for path in folder.iterdir()):
                return True
        return False

    def finish(self, ranks, interruptions, *options):
        done = self.start(ranks, *options).wait()
        check(done.code == 0, f"last launch: exit code {done.code}\n{done.errors}")
        check(digest(self.folder) == self.expected, f"results differ after {interruptions} interruptions")
        keys = [(line["id"], line.get("sample", 0)) for line in results(self.folder)]
        check(len(keys) == len(set(keys)) == ITEMS, f"{len(keys)} lines for {ITEMS} items")
        journal = journal_keys(self.folder)
        check(len(journal) == ITEMS, f"items finished twice: {journal}")
        lines = statistics(self.folder)
        check(not commits(self.folder), f"checkpoints left behind: {commits(self.folder)}")
        return lines


def check_resumed(lines, interruptions):
    """Checks that items resumed from a round, and that at most one interval per kill was recomputed."""
    resumed = [line for line in lines if line["resumes"] > 0]
    check(resumed, "no item was resumed")
    check(all(line["checkpoint_rounds"] > 0 for line in resumed), "resumed from a round > 0")
    again = sum(line["recomputed_tokens"] for line in lines)
    # Up to one interval per replica and kill, plus the tokens decoded while that round was being written.
    limit = interruptions * 2 * (INTERVAL + INTERVAL // 2)
    check(again <= limit, f"{again} tokens computed again, more than {limit}")
    return again


def killed_often(bench, count, seed, kill):
    """Interrupts launches with `kill(run, launch)`, `count` times; then finishes the job."""
    run = Run(bench, seed)
    kills = 0
    for attempt in range(count * 3):
        if kills == count:
            break
        epoch = newest_epoch(run.folder) + 1
        launch = run.start(2)
        run.wait_for_new_round(launch, epoch)
        if attempt % 4 == 0:
            run.wait_in_checkpoint(launch)
        else:
            time.sleep(run.numbers.uniform(0, 0.4))
        if not launch.alive():
            check(launch.wait().code == 0, "a launch that ended by itself was done")
            break
        kill(run, launch)
        kills += 1
    check(kills > 0, "nothing was killed")
    again = check_resumed(run.finish(2, kills), kills)
    print(f"{kills} kills, {again} tokens computed again")


def kill9(bench, count=3, seed=1):
    """SIGKILL to launcher and ranks at random moments, a quarter of them while a checkpoint is being written."""
    killed_often(bench, count, seed, lambda run, launch: launch.kill_all())


def kill_rank(bench, count=2, seed=2):
    """SIGKILL to one rank: the launcher ends the others, with an error."""
    def kill(run, launch):
        pids = launch.rank_pids()
        # One of which items can resume: the others may still be before their first round.
        epoch = newest_epoch(run.folder)
        replicas = {int(name.split("-")[0]) for name in commits(run.folder) if f"-{epoch}-" in name}
        os.kill(run.numbers.choice([pids[replica] for replica in sorted(replicas)]), signal.SIGKILL)
        done = launch.wait(30)
        check(done.code not in (0, 75), f"exit code {done.code} though a rank was killed")
        wait_for(lambda: not any(runs(pid) for pid in pids), "all ranks are gone", 20)
    killed_often(bench, count, seed, kill)


def stop(bench, count=2, seed=3, **keys):
    """SIGUSR1 at random moments: exit 75, nothing is recomputed."""
    run = Run(bench, seed, **keys)
    stops = 0
    for _ in range(count):
        epoch = newest_epoch(run.folder) + 1
        launch = run.start(2)
        run.wait_for_new_round(launch, epoch)
        time.sleep(run.numbers.uniform(0, 0.2))
        if not launch.alive():
            break
        launch.signal(signal.SIGUSR1)
        done = launch.wait(30)
        check(done.code in (0, 75), f"exit code {done.code}\n{done.errors}")
        stops += done.code == 75
        if done.code == 0:
            break
    check(stops > 0, "nothing was stopped")
    lines = run.finish(2, stops)
    check(check_resumed(lines, stops) == 0, "a stop loses nothing")
    check(all(line["recomputed_rows"] <= 2 for line in lines), "keys and values came from the checkpoint")
    print(f"{stops} stops")


def reshape(bench, count=3, seed=4, **keys):
    """Each launch has another number of ranks and another tensor-parallel degree."""
    run = Run(bench, seed, **keys)
    shapes = [(1, 1), (2, 2), (3, 1), (4, 4), (4, 2), (8, 8)]
    stops = 0
    for attempt in range(count):
        ranks, tensor_parallel = shapes[attempt % len(shapes)]
        epoch = newest_epoch(run.folder) + 1
        launch = run.start(ranks, f"--tensor-parallel={tensor_parallel}", f"--batch={attempt % 3 + 1}")
        run.wait_for_new_round(launch, epoch)
        if not launch.alive():
            break
        launch.signal(signal.SIGUSR1) if attempt % 2 == 0 else launch.kill_all()
        launch.wait(30)
        stops += 1
    check(stops > 1, "the run was not interrupted often enough")
    check_resumed(run.finish(2, stops, "--draft=ar"), stops)
    print(f"{stops} shapes, finished by plain decoding")


def stop_int8(bench, count=2, seed=8):
    """int8 KV and its scales are restored from checkpoints unchanged."""
    stop(bench, count, seed, kv_precision="int8")


def reshape_int8(bench, count=3, seed=9):
    """With int8 KV neither ranks nor tensor parallelism nor trees change a bit."""
    reshape(bench, count, seed, kv_precision="int8")


def double_fault(bench, count=3, seed=5):
    """Killed again at random moments of the recovery: while loading, restoring or removing old files."""
    run = Run(bench, seed)
    first = run.start(2)
    run.wait_for_new_round(first, 1)
    check(first.alive(), "the first launch was alive")
    first.kill_all()
    for _ in range(count):
        launch = run.start(2)
        time.sleep(run.numbers.uniform(0.05, 1.0))
        launch.kill_all()
    check_resumed(run.finish(2, count + 1), count + 1)


def finish_race(bench, count=2, seed=6):
    """Killed around the last record: a finished job adds nothing, an almost finished one only the missing items."""
    run = Run(bench, seed)
    for _ in range(count):
        launch = run.start(2)
        wait_for(lambda: not launch.alive() or len(set(journal_keys_safe(run.folder))) >= ITEMS - 1,
                 "the last items are being finished")
        time.sleep(run.numbers.uniform(0, 0.1))
        launch.kill_all()
    run.finish(2, count)


def journal_keys_safe(run):
    try:
        return journal_keys(run)
    except ValueError:
        return []  # a line is being written


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (
        kill9, kill_rank, stop, reshape, stop_int8, reshape_int8, double_fault, finish_race)}))
