#!/usr/bin/env python3
"""One seed gives one text: the whole program over ranks, tensor parallel, batch, threads, kernels, drafts and kills.

usage: determinism_test.py BINARY {pairwise_greedy,pairwise_sampled,in_blocks,killed} [COUNT [SEED]]

pairwise_greedy, pairwise_sampled
           Every pair of values of the factors below occurs in some run of the two cases (a covering array, built
           greedily from the seed). Each case does the runs of one temperature, which must all give the same SHA-256 of
           results.jsonl. COUNT: new tokens per item.
in_blocks  Ranks, tensor parallel, batch, threads and drafts once more with kernels = amx-bf16.
killed     Launches killed COUNT times at random moments and resumed, against an uninterrupted autoregressive run.

Each run also checks that it tested something: drafts were accepted and rejected, trees branched, killed launches were
alive, and items resumed from a checkpoint.
"""

import itertools
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import DEMO_MODEL, REPOSITORY, check, digest, main, statistics, wait_for  # noqa: E402

BOOKS = REPOSITORY / "jobs" / "demo" / "books"

FACTORS = {
    "ranks": [1, 2, 4, 8],
    "tensor-parallel": [1, 2, 4, 8],
    "batch": [1, 3, 8],
    "threads": [1, 2],
    "kernels": ["reference", "avx2"],  # plus avx512 and amx if /proc/cpuinfo has their flags
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
    """Rows that cover every allowed pair of values of two factors, greedily minimised."""
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


def processor_kernels():
    """The variants that this processor supports, the best last. The program, not the test, refuses the others."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    names = ["reference"]
    if {"avx2", "fma"} <= flags:
        names.append("avx2")
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
        names.append("avx512")
    if "avx512" in names and {"amx_tile", "amx_int8"} <= flags:
        names.append("amx")
    return names


def make_job(bench, **keys):
    return bench.job(task="pg19", data=BOOKS, model=DEMO_MODEL, limit=3, prompt_tokens=40, **keys)


def options_of(row, output):
    options = {key: row[key] for key in ("tensor-parallel", "batch", "threads", "kernels", "draft")}
    options.update(SAMPLING[row["temperature"]], output=output)
    if row["draft"] != "ar":
        options["draft-tree"] = "4x6:8"  # an automatic size depends on measured time, but these runs must draft
    return [f"--{key}={value}" for key, value in options.items()]


def check_drafts(row, output):
    stats = statistics(output)
    drafted, accepted, branched = (sum(s[key] for s in stats) for key in ("drafted", "accepted", "branched_trees"))
    if row["draft"] == "ar":
        check(drafted == 0, "autoregressive decoding drafted")
    else:
        check(0 < accepted < drafted and branched > 0, f"accepted {accepted} of {drafted}, {branched} trees branched: nothing was tested")


def run_whole(bench, job, row, output):
    done = bench.run(job, row["ranks"], *options_of(row, output))
    check(done.code == 0, f"{row}: exit code {done.code}\n{done.errors[-2000:]}")
    check_drafts(row, output)
    return digest(output)


def pairwise(bench, temperature, tokens, seed):
    job = make_job(bench, max_tokens=tokens)
    rows = covering_array(dict(FACTORS, kernels=processor_kernels()), seed)
    rows = [row for row in rows if row["temperature"] == temperature]
    expected = None
    for number, row in enumerate(rows):
        got = run_whole(bench, job, row, bench.folder / f"run-{number}")
        print(f"{number + 1}/{len(rows)} {row} {got[:12]}", flush=True)
        expected = expected or got
        check(got == expected, f"{row}: another text than the first run")
    (other,) = SAMPLING.keys() - {temperature}
    got = run_whole(bench, job, dict(rows[-1], temperature=other), bench.folder / "other-temperature")
    check(got != expected, "two temperatures gave one text: the comparison sees nothing")


def pairwise_greedy(bench, tokens=24, seed=1):
    pairwise(bench, "0", tokens, seed)


def pairwise_sampled(bench, tokens=24, seed=1):
    pairwise(bench, "0.8", tokens, seed)


def in_blocks(bench, tokens=24):
    """kernels = amx-bf16, by tiles or emulated: a text of its own, however it is computed, that other kernels do not resume."""
    job = make_job(bench, max_tokens=tokens)
    plain = {"ranks": 1, "tensor-parallel": 1, "batch": 1, "threads": 1, "kernels": "amx-bf16", "draft": "ar", "temperature": "0.8"}
    others = ({"batch": 8, "threads": 2}, {"ranks": 2, "tensor-parallel": 2, "batch": 3, "draft": "ngram"}, {"ranks": 4, "draft": "ngram"})
    expected = run_whole(bench, job, plain, bench.folder / "plain")
    for number, other in enumerate(others):
        got = run_whole(bench, job, {**plain, **other}, bench.folder / f"run-{number}")
        check(got == expected, f"{other}: another text than {plain}")
    done = bench.run(job, 1, *options_of(dict(plain, kernels="avx2"), bench.folder / "plain"))
    check(done.code == 2 and "kernels = amx-bf16 resumes it" in done.errors, f"exit code {done.code}\n{done.errors[-2000:]}")


def commits(output):
    return {path.name for path in Path(output, "checkpoints").glob("*.h5") if path.name.count(".") == 1}


def run_killed(bench, job, row, output, kills, numbers):
    """Kills the run `kills` times, each at a random moment after a round of that launch, then lets it finish."""
    options = options_of(row, output)
    for _ in range(kills):
        before = commits(output)
        launch = bench.start(job, row["ranks"], *options)
        wait_for(lambda: not launch.alive() or commits(output) - before, "the launch commits a round")
        time.sleep(numbers.uniform(0, 0.03))
        check(launch.alive(), "the launch had ended before it was killed: make the job longer")
        launch.kill_all()
    done = bench.run(job, row["ranks"], *options)
    check(done.code == 0, f"{row}: exit code {done.code} after {kills} kills\n{done.errors[-2000:]}")
    check_drafts(row, output)
    resumes = sum(s["resumes"] for s in statistics(output))
    check(resumes >= kills, f"{resumes} resumes after {kills} kills: nothing went on from a checkpoint")
    return digest(output)


def killed(bench, kills=5, seed=1):
    numbers = random.Random(seed)
    plain = {"ranks": 2, "tensor-parallel": 1, "batch": 4, "threads": 1, "kernels": processor_kernels()[-1], "draft": "ar"}
    for temperature in SAMPLING:
        for kv, split in (("store", 1), ("recompute", 2)):
            job = make_job(bench, max_tokens=900, checkpoint_tokens=60, checkpoint_kv=kv)
            whole = bench.folder / f"whole-{temperature}"
            expected = digest(whole) if whole.exists() else run_whole(bench, job, dict(plain, temperature=temperature), whole)
            row = dict(plain, temperature=temperature, draft="ngram")
            row["tensor-parallel"] = split
            got = run_killed(bench, job, row, bench.folder / f"killed-{temperature}-{kv}", kills, numbers)
            print(f"killed {kills} times, {kv}: {row} {got[:12]}", flush=True)
            check(got == expected, f"{row}: another text after {kills} kills")


if __name__ == "__main__":
    sys.exit(main({"pairwise_greedy": pairwise_greedy, "pairwise_sampled": pairwise_sampled, "in_blocks": in_blocks, "killed": killed}))
