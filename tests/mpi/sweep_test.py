#!/usr/bin/env python3
"""Sweeps, with the real program under mpirun: killed, stopped, extended, and with points that cannot run.

usage: sweep_test.py BINARY CASE
"""

import csv
import json
import shutil
import signal
from pathlib import Path

from harness import check, digest, main, make_prompts, results, wait_for

# Measured columns: times, and draft counts, because automatic trees depend on time.
MEASURED = ("decode_tokens_per_second", "speedup", "seconds", "block_efficiency", "mbsu", "acceptance")


def expect(done, code, what):
    check(done.code == code, f"{what}: expected exit code {code}, got {done.code}\n{done.errors}")
    return done


def sweep_file(bench, lines, **keys):
    path = bench.job("sweep.cfg", output=bench.folder / "sweep", **keys)
    path.write_text(path.read_text() + lines)
    return path


def table(bench):
    return json.loads((bench.folder / "sweep" / "sweep.json").read_text())


def states(bench):
    return {line["point"]: line["state"] for line in table(bench)["points"]}


def reproducible(path):
    """The table without the columns that two runs measure differently."""
    with open(path, newline="") as file:
        return [{key: value for key, value in line.items() if not key.startswith(MEASURED)} for line in csv.DictReader(file)]


def wait_in_point(launch, point):
    def committed():
        return [path for path in (point / "checkpoints").glob("*.h5") if path.name.count(".") == 1]
    wait_for(lambda: not launch.alive() or committed(), f"a checkpoint in {point.name}")
    check(launch.alive() and not (point / "finished.json").exists(), f"{point.name} is under way")


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def killed(bench):
    """2 drafts x 2 seeds, killed in the middle of a point: the table is complete, every text that of a separate run."""
    make_prompts(bench.folder / "prompts.jsonl", 2)
    keys = {"max_tokens": 2000, "checkpoint_tokens": 200}
    lines = "baseline = true\nvariant slim = draft=ngram draft-tree=3\nvariant wide = draft=ngram draft-tree=4x2\ngrid seed = 1 | 2\n"
    sweep = sweep_file(bench, lines, **keys)
    folder = bench.folder / "sweep"
    launch = bench.start(sweep, 2, verb="sweep")
    wait_in_point(launch, folder / "wide,seed=1")
    launch.kill_all()
    check(sorted(states(bench).values()).count("done") == 2, f"two points were done: {states(bench)}")
    status = json.loads(bench.command("status", folder, "--json").output)
    check(status["state"] == "crashed" and status["done"] == 2 and status["points"] == 6, f"{status}")
    untouched = snapshot(folder / "slim,seed=1")
    done = expect(bench.run(sweep, 3, verb="sweep"), 0, "resumed on 3 ranks")
    check(snapshot(folder / "slim,seed=1") == untouched, "a finished point is left alone")
    again = [json.loads(line) for line in (folder / "wide,seed=1" / "stats.jsonl").read_text().splitlines()]
    check(any(line["resumes"] > 0 for line in again), "the point went on from its checkpoints")
    names = [f"{name},seed={seed}" for seed in (1, 2) for name in ("draft=ar", "slim", "wide")]
    check(list(states(bench).items()) == [(name, "done") for name in names], f"{states(bench)}")
    for line in table(bench)["points"]:
        check(line["items"] == 2 and line["tokens"] == 4000 and line["same_text"] and line["speedup"] > 0, f"{line}")
    check([mean["seeds"] for mean in table(bench)["means"]] == [2, 2, 2], "means over seeds")
    check("wide,seed=2" in done.output and "±" in done.output, done.output)
    for name in names:
        options = [f"--seed={name[-1]}", f"--output={bench.folder}/alone/{name}"]
        options += {"d": ["--draft=ar"], "s": ["--draft-tree=3"], "w": ["--draft-tree=4x2"]}[name[0]]
        expect(bench.run(bench.job(**keys), 1, *options), 0, "alone")
        check(digest(folder / name) == digest(bench.folder / "alone" / name), f"{name}: the bytes of a run alone")
    before = snapshot(folder)
    finished = expect(bench.run(sweep, 2, verb="sweep"), 0, "again")
    check("all 6 points are done already" in finished.errors and finished.output == done.output, finished.errors)
    check(snapshot(folder) == before, "nothing was written")
    expect(bench.run(sweep, 1, f"--output={bench.folder}/whole", verb="sweep"), 0, "uninterrupted")
    resumed, whole = reproducible(folder / "sweep.csv"), reproducible(bench.folder / "whole" / "sweep.csv")
    check(resumed == whole, f"the same table: {[pair for pair in zip(resumed, whole) if pair[0] != pair[1]]}")


def stopped(bench):
    """SIGUSR1 during a point: exit 75, all is saved; a second launch meanwhile is refused; the next one continues."""
    make_prompts(bench.folder / "prompts.jsonl", 2)
    sweep = sweep_file(bench, "grid draft-tree = 2 | 3\n", max_tokens=5000, checkpoint_tokens=200)
    folder = bench.folder / "sweep"
    launch = bench.start(sweep, 2, verb="sweep")
    wait_in_point(launch, folder / "draft-tree=2")
    with launch.frozen():  # else a fast machine would be done before the second launch starts
        status = json.loads(bench.command("status", folder, "--json").output)
        check(status["state"] == "running" and status["running"] == "draft-tree=2", f"{status}")
        second = expect(bench.run(sweep, 1, verb="sweep"), 2, "a second launch")
    check("held by" in second.error_lines()[0] and len(second.error_lines()) == 1, second.errors)
    launch.signal(signal.SIGUSR1)
    expect(launch.wait(30), 75, "stopped")
    status = json.loads(bench.command("status", folder, "--json").output)
    check(status["state"] == "stopped" and status["begun"] == 1 and status["done"] == 0, f"{status}")
    refused = expect(bench.run(bench.job(output=folder), 1), 2, "a run into a sweep's folder")
    check("folder of a sweep" in refused.error_lines()[0], refused.errors)
    expect(bench.run(sweep, 1, verb="sweep"), 0, "resumed")
    lines = [json.loads(line) for line in (folder / "draft-tree=2" / "stats.jsonl").read_text().splitlines()]
    check(all(line["recomputed_tokens"] == 0 for line in lines), "a stop loses nothing")


def bad_points(bench):
    """A point that cannot start is reported and skipped: exit 1; only failed items: exit 3."""
    prompts = make_prompts(bench.folder / "prompts.jsonl", 3)
    broken = bench.folder / "broken"
    shutil.copytree(bench.model, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    expect(bench.run(bench.job(output=bench.folder / "plain"), 1), 0, "a run without token ids, which nothing can replay")
    lines = ("variant bad = model=broken tensor-parallel=2\nvariant late = model=model draft=replay replay-run=plain\n"
             "variant good = model=model\nvariant two = model=model tensor-parallel=2\n")
    job = sweep_file(bench, lines)
    job.write_text("".join(line for line in job.read_text().splitlines(True) if not line.startswith("model =")))
    done = expect(bench.run(job, 2, verb="sweep"), 1, "a bad model")
    check([word in line for word, line in zip(("model.safetensors", "token-ids"), done.error_lines())] == [True, True],
          done.errors)
    check(states(bench) == {"bad": "failed", "late": "failed", "good": "done", "two": "done"}, f"{states(bench)}")
    check("model.safetensors" in table(bench)["points"][0]["error"], "the table says why")
    check(digest(bench.folder / "sweep" / "good") == digest(bench.folder / "sweep" / "two"), "loaded anew, the same text")
    (broken / "model.safetensors").write_bytes(weights)
    shutil.rmtree(bench.folder / "plain")
    expect(bench.run(bench.job(output=bench.folder / "plain", token_ids="true"), 1), 0, "to be replayed")
    expect(bench.run(job, 2, verb="sweep"), 0, "fixed")
    job = sweep_file(bench, "grid draft-tree = 1 | 2\n")
    with prompts.open("a") as file:
        file.write(json.dumps({"id": "long", "prompt": "the sea " * 9000}) + "\n")
    shutil.rmtree(bench.folder / "sweep")
    expect(bench.run(job, 2, verb="sweep"), 3, "failed items")
    check([line["failed"] for line in table(bench)["points"]] == [1, 1], f"{table(bench)}")
    expect(bench.run(job, 2, verb="sweep"), 3, "again")


def extended(bench):
    """More values and more tokens extend a sweep; another identity or other data is refused before anything runs."""
    prompts = make_prompts(bench.folder / "prompts.jsonl", 3)
    folder = bench.folder / "sweep"
    expect(bench.run(sweep_file(bench, "grid seed = 1 | 2\n"), 2, verb="sweep"), 0, "first")
    before = {seed: snapshot(folder / f"seed={seed}") for seed in (1, 2)}
    wider = sweep_file(bench, "grid seed = 3 | 2 | 1\n")
    expect(bench.run(wider, 2, verb="sweep"), 0, "a third seed")
    check({seed: snapshot(folder / f"seed={seed}") for seed in (1, 2)} == before, "what was done is left alone")
    check(states(bench) == {f"seed={seed}": "done" for seed in (3, 2, 1)}, f"{states(bench)}")
    expect(bench.run(wider, 2, "--max-tokens=20", verb="sweep"), 0, "more tokens")
    check(all(line["num_tokens"] == 20 for line in results(folder / "seed=1")), "longer texts")
    found = json.loads(expect(bench.command("verify", folder, "--json"), 0, "verified").output)
    check(len(found["runs"]) == 3 and all(run["finished"] and run["done"] == 3 for run in found["runs"]), f"{found}")
    marker = (folder / "sweep.cfg").read_text()
    done = expect(bench.run(wider, 2, "--max-tokens=20", "--temperature=0.5", verb="sweep"), 2, "another temperature")
    check(len(done.error_lines()) == 1 and "seed=3: temperature: expected 0.8" in done.error_lines()[0], done.errors)
    done = expect(bench.run(wider, 2, "--seed=9", verb="sweep"), 2, "a key of a grid")
    check("grid seed" in done.error_lines()[0], done.errors)
    prompts.write_text(prompts.read_text().replace("item-1", "item-9"))
    done = expect(bench.run(wider, 2, "--max-tokens=20", verb="sweep"), 2, "other data")
    check("data: expected contents with fingerprint" in done.error_lines()[0], done.errors)
    check((folder / "sweep.cfg").read_text() == marker, "a refusal changes nothing")


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (killed, stopped, bad_points, extended)}))
