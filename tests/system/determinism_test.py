#!/usr/bin/env python3
"""One seed, one text: the whole program over ranks, tensor parallel, batch, threads, kernels, drafts and kills.

Every pair of values of these factors occurs in some run (a covering array, made greedily from a fixed seed); all runs
of one temperature must have one SHA-256 of results.jsonl. Each run also proves that it tested something: drafts were
accepted and rejected, trees branched, ranks held their share of the weights, killed launches were alive and went on
from a round above 0.

    determinism_test.py PROGRAM MODEL BOOKS [--kernels reference,avx2] [--seed 1] [--kills 5]
"""

import argparse
import itertools
import pathlib
import random
import shutil
import tempfile
import time

import launch

FACTORS = {
    "ranks": [1, 2, 4, 8],
    "tensor-parallel": [1, 2, 4, 8],
    "batch": [1, 3, 8],
    "threads": [1, 2],
    "kernels": ["reference", "avx2"],
    "draft": ["ar", "ngram"],
    "temperature": ["0", "0.8"],
}

SAMPLING = {
    "0": {"temperature": "0", "repetition-penalty": "1.1", "penalty-window": "64"},
    "0.8": {"temperature": "0.8", "min-p": "0.05", "repetition-penalty": "1.1", "penalty-window": "64"},
}


def allowed(row):
    return "ranks" not in row or "tensor-parallel" not in row or row["ranks"] % row["tensor-parallel"] == 0


def covering_array(factors, seed):
    """Rows that hold every allowed pair of values of two factors, greedily few."""
    rng = random.Random(seed)
    names = list(factors)
    missing = set()
    for a, b in itertools.combinations(names, 2):
        for va, vb in itertools.product(factors[a], factors[b]):
            if allowed({a: va, b: vb}):
                missing.add((a, va, b, vb))
    rows = []
    while missing:
        best, best_gain = None, -1
        for _ in range(200):
            row = {name: rng.choice(values) for name, values in factors.items()}
            if not allowed(row):
                continue
            gain = sum(row[a] == va and row[b] == vb for a, va, b, vb in missing)
            if gain > best_gain:
                best, best_gain = row, gain
        rows.append(best)
        missing = {(a, va, b, vb) for a, va, b, vb in missing if best[a] != va or best[b] != vb}
    return rows


class Matrix:
    def __init__(self, arguments, work):
        self.arguments, self.work = arguments, pathlib.Path(work)
        self.job = self.work / "job.cfg"
        self.job.write_text(
            f"task = pg19\ndata = {pathlib.Path(arguments.books).resolve()}\nmodel = {pathlib.Path(arguments.model).resolve()}\n"
            "output = unset\nlimit = 3\nprompt-tokens = 40\nignore-eos = true\n"
        )
        self.counter = 0

    def options(self, row, max_tokens, output):
        options = {"output": output, "max-tokens": max_tokens}
        options.update({key: row[key] for key in ("tensor-parallel", "batch", "threads", "kernels", "draft")})
        options.update(SAMPLING[row["temperature"]])
        return options

    def output(self):
        self.counter += 1
        return self.work / f"run-{self.counter}"

    def run(self, row, max_tokens):
        output = self.output()
        launch.run(self.arguments.program, row["ranks"], self.job, self.options(row, max_tokens, output), self.work / f"{output.name}.log")
        self.check_drafts(row, output)
        return output

    def check_drafts(self, row, output):
        stats = launch.statistics(output)
        drafted, accepted = sum(s["drafted"] for s in stats), sum(s["accepted"] for s in stats)
        if row["draft"] == "ar":
            assert drafted == 0, "autoregressive decoding drafted"
        else:
            assert 0 < accepted < drafted, f"drafts accepted {accepted} of {drafted}: nothing was tested"

    def run_killed(self, row, max_tokens, kills, rng):
        """Killed `kills` times at random moments, resumed each time, ended at last."""
        output = self.output()
        options = self.options(row, max_tokens, output)
        options.update({"checkpoint-tokens": 60, "checkpoint-kv": rng.choice(["store", "recompute"])})
        alive = 0
        for number in range(kills):
            log = self.work / f"{output.name}-{number}.log"
            started = launch.Launch(self.arguments.program, row["ranks"], self.job, options, log)
            wait_for_progress(output, started, number)
            time.sleep(rng.uniform(0, 0.3))
            alive += started.alive()
            started.kill()
        assert alive == kills, f"only {alive} of {kills} launches were alive when killed"
        launch.run(self.arguments.program, row["ranks"], self.job, options, self.work / f"{output.name}.log")
        self.check_drafts(row, output)
        stats = launch.statistics(output)
        resumes = sum(s["resumes"] for s in stats)
        assert resumes >= kills, f"{resumes} resumes after {kills} kills: nothing went on from a checkpoint"
        return output


def newest(folder):
    return max((p.name for p in folder.glob("*.h5")), default="", key=lambda name: [int(x) for x in name.split(".")[0].split("-")])


def wait_for_progress(output, started, epoch_before):
    """Until this launch has committed a round of its own."""
    seen = {p.name for p in (output / "checkpoints").glob("*.h5")} if epoch_before else set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and started.alive():
        now = {p.name for p in (output / "checkpoints").glob("*.h5") if p.name.count(".") == 1}
        if now - seen:
            return
        time.sleep(0.01)
    assert started.alive(), "the launch ended before its first checkpoint round: make the job longer"
    raise AssertionError("no checkpoint round within a minute")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("books")
    parser.add_argument("--kernels", default="reference,avx2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24, help="of a pairwise run")
    parser.add_argument("--kill-tokens", type=int, default=1500, help="of a killed run")
    arguments = parser.parse_args()
    factors = dict(FACTORS, kernels=arguments.kernels.split(","))
    work = tempfile.mkdtemp(prefix="longhaul-determinism-")
    try:
        matrix = Matrix(arguments, work)
        hashes = {}
        rows = covering_array(factors, arguments.seed)
        for number, row in enumerate(rows):
            digest = launch.sha(matrix.run(row, arguments.tokens))
            print(f"{number + 1}/{len(rows)} {row} {digest[:12]}", flush=True)
            expected = hashes.setdefault(row["temperature"], digest)
            assert digest == expected, f"{row}: another text than the first run of temperature {row['temperature']}"
        assert len(set(hashes.values())) == len(SAMPLING), "two temperatures gave one text: the comparison sees nothing"

        rng = random.Random(arguments.seed)
        kernels = factors["kernels"][-1]
        plain = {"ranks": 1, "tensor-parallel": 1, "batch": 4, "threads": 2, "kernels": kernels, "draft": "ar"}
        for temperature in SAMPLING:
            expected = launch.sha(matrix.run(dict(plain, temperature=temperature), arguments.kill_tokens))
            for ranks, split in ((2, 1), (2, 2)):
                row = dict(plain, temperature=temperature, ranks=ranks, draft="ngram", threads=1)
                row["tensor-parallel"] = split
                digest = launch.sha(matrix.run_killed(row, arguments.kill_tokens, arguments.kills, rng))
                print(f"killed {arguments.kills} times: {row} {digest[:12]}", flush=True)
                assert digest == expected, f"{row}: another text after {arguments.kills} kills"
        print(f"{len(rows)} runs and {2 * len(SAMPLING)} killed runs: one text a temperature")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
