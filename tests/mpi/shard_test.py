#!/usr/bin/env python3
"""A job divided among independent launches (shards), with the real program.

usage: shard_test.py BINARY CASE
"""

import json
import os
import shutil
import signal
from pathlib import Path

from harness import Launch, check, digest, main, make_prompts, results, wait_for

JOINED = ("job.cfg", "results.jsonl", "summary.json", "summary.txt", "stats.jsonl", "joined.json")


def expect(done, code, what):
    check(done.code == code, f"{what}: expected exit code {code}, got {done.code}\n{done.errors}")
    return done


def start(bench, job, shard, *options):
    """Launches one process without mpirun, as a batch script does."""
    environment = dict(os.environ, LONGHAUL_PROGRESS="plain")
    launch = Launch([bench.binary, "run", str(job), f"--shard={shard}", *options], bench.folder / "launches", environment)
    bench.launches.append(launch)
    return launch


def run(bench, job, shard, *options):
    return start(bench, job, shard, *options).wait()


def progress(bench, folder):
    line = expect(bench.command("status", folder, "--progress"), 0, "status --progress").output
    check(line.count("\n") == 1, f"one line: {line!r}")
    return dict(word.split("=") for word in line.split())


def files_of(folder, names):
    return {name: (folder / name).read_bytes() for name in names}


def bytes_of_the_whole(bench):
    """Shards give the bytes of the undivided job, and merging them again changes nothing."""
    make_prompts(bench.folder / "prompts.jsonl", 10)
    with (bench.folder / "prompts.jsonl").open("a") as data:
        data.write('{"id": "bad", "prompt": 3}\n{"id": "last", "prompt": "the sea"}\n')
    job = bench.job(max_tokens=30, samples=2)
    whole, run_folder = bench.folder / "whole", bench.folder / "run"
    expect(bench.run(job, 1, f"--output={whole}"), 3, "undivided")
    # Files of the batch scripts in the run folder are left alone, even before the first launch.
    (run_folder / "slurm").mkdir(parents=True)
    check(progress(bench, run_folder) == progress(bench, bench.folder / "nowhere"), "nothing has begun")
    at_once = [start(bench, job, f"{index}/3") for index in (0, 2)]
    for launch in at_once:
        expect(launch.wait(), 0, "two at once")
    state = progress(bench, run_folder)
    check(state["state"] == "stopped" and state["done"] == "16", f"two of three: {state}")
    some = expect(bench.command("results", run_folder), 0, "results of two shards").output.splitlines()
    ids = [json.loads(line)["id"] for line in some]
    check(ids[:4] == ["item-0", "item-0", "item-2", "item-2"], f"in the order of the input: {ids}")
    check(not (run_folder / "results.jsonl").exists(), "not joined before all are done")
    last = expect(run(bench, job, "1/3"), 3, "the last shard has the bad item")
    check("joined" in last.errors, last.errors)
    check(digest(run_folder) == digest(whole), "the bytes of the undivided job")
    check([line["id"] for line in results(run_folder)][:2] == ["item-0"] * 2, "in order")
    before = files_of(run_folder, JOINED)
    summary, other = (json.loads((of / "summary.json").read_text()) for of in (run_folder, whole))
    for key in ("items", "done", "failed", "tokens", "results_xxh3"):
        check(summary[key] == other[key], f"summary: {key}: {summary[key]} and {other[key]}")
    check(len((run_folder / "stats.jsonl").read_text().splitlines()) == 22, "statistics of all good items")
    state = progress(bench, run_folder)
    check(state == {"state": "done", "done": "24", "failed": "2", "tokens": str(summary["tokens"]),
                    "positions": "0", "stop_seconds": "0.0"}, f"{state}")
    found = json.loads(expect(bench.command("verify", run_folder, "--json"), 0, "verified").output)
    check(sum(shard["done"] for shard in found["runs"]) == 24 and len(found["runs"]) == 3, f"{found}")
    joined = (run_folder / "results.jsonl").read_bytes()
    (run_folder / "results.jsonl").write_bytes(joined.replace(b"item-0", b"item-1", 1))
    text = expect(bench.command("verify", run_folder), 1, "another joined line").output
    check(f"{run_folder}/results.jsonl: expected XXH3" in text and "1 damaged or missing" in text, text)
    (run_folder / "results.jsonl").write_bytes(joined)
    # Running again changes nothing. Lost files are written again.
    expect(run(bench, job, "1/3"), 3, "again")
    check(files_of(run_folder, JOINED) == before, "joined files stay")
    (run_folder / "results.jsonl").unlink()
    output = expect(bench.command("results", run_folder), 0, "results joins").output
    check(output.encode() == before["results.jsonl"], "results prints them")
    check(files_of(run_folder, JOINED) == before, "and joins again, to the same bytes")
    check(expect(bench.command("status", run_folder), 0, "status").output.count("finished") == 4, "each shard and the sum")


def references(bench):
    """References and perplexity also equal those of the undivided job."""
    lines = [{"id": f"b{i}", "text": "the ship went by night and the wind came in. " * (i + 3)} for i in range(5)]
    lines.insert(2, {"id": "empty", "text": ""})
    (bench.folder / "books.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = bench.job(task="pg19", data=bench.folder / "books.jsonl", prompt_tokens=6, max_tokens=8, baseline="true")
    whole, run_folder = bench.folder / "whole", bench.folder / "run"
    expected = bench.run(job, 1, f"--output={whole}").code
    codes = [run(bench, job, f"{index}/2").code for index in (1, 0)]
    check(max(codes) == expected, f"{codes}, {expected}")
    for name in ("results.jsonl", "references.jsonl"):
        check((run_folder / name).read_bytes() == (whole / name).read_bytes(), name)
    check("speedup" in json.loads((run_folder / "summary.json").read_text()), "the speedup of all shards together")


def stopped(bench):
    """A stopped shard reports the duration of the stop and can resume; the token count that scripts read only grows."""
    make_prompts(bench.folder / "prompts.jsonl", 24)
    job = bench.job(max_tokens=900, checkpoint_tokens=100)
    whole, run_folder = bench.folder / "whole", bench.folder / "run"
    expect(bench.run(job, 1, f"--output={whole}"), 0, "undivided")
    launch = start(bench, job, "0/2")
    wait_for(lambda: int(progress(bench, run_folder)["tokens"]) > 0, "a checkpoint shows its tokens")
    seen = progress(bench, run_folder)
    check(seen["state"] in ("running", "stopped"), f"{seen}")
    launch.signal(signal.SIGUSR1)
    expect(launch.wait(), 75, "stopped")
    after = progress(bench, run_folder / "shard-0-of-2")
    check(after["state"] == "stopped" and int(after["tokens"]) >= int(seen["tokens"]), f"{seen} {after}")
    check(0 < float(after["stop_seconds"]) < 20, f"{after}")
    done = expect(bench.command("results", run_folder), 0, "results of those that are done").output.splitlines()
    check(len(done) == int(after["done"]) < 12, f"{len(done)} done: {after}")
    under_way = int(after["tokens"]) - sum(json.loads(line)["num_tokens"] for line in done)
    check(int(after["positions"]) >= under_way > 0, f"keys and values of prompt and output: {after}, {under_way} under way")
    ended = json.loads((run_folder / "shard-0-of-2" / "launches" / "1.ended.json").read_text())
    check(ended["exit_code"] == 75 and ended["stop_seconds"] > 0, f"{ended}")
    for shard in ("1/2", "0/2"):
        expect(run(bench, job, shard), 0, shard)
    check(digest(run_folder) == digest(whole), "the same bytes")
    check(float(progress(bench, run_folder)["stop_seconds"]) == float(after["stop_seconds"]), "it is remembered")


def extended(bench):
    """Raising the limit extends every shard; until all are complete nothing is merged, and the reason is reported."""
    make_prompts(bench.folder / "prompts.jsonl", 9)
    job = bench.job(limit=5)
    run_folder = bench.folder / "run"
    for index in range(7):  # five items: two shards have none
        done = expect(run(bench, job, f"{index}/7"), 0, f"shard {index}")
    check("joined" in done.errors and len(results(run_folder)) == 5, done.errors)
    for index in range(6):
        expect(run(bench, job, f"{index}/7", "--limit=0"), 0, f"shard {index} of all items")
    last = expect(run(bench, job, "5/7", "--limit=0"), 0, "again")
    check("note: " in last.errors and "shard-6-of-7" in last.errors and "limit" in last.errors, last.errors)
    check(len(results(run_folder)) == 5, "the joined results are those of five items")
    expect(run(bench, job, "6/7", "--limit=0"), 0, "the last")
    expect(bench.run(job, 1, "--limit=0", f"--output={bench.folder}/whole"), 0, "undivided")
    check(digest(run_folder) == digest(bench.folder / "whole"), "the same bytes")
    # A limit that a text of another shard does not fit would leave the shards apart for ever.
    prompts = bench.folder / "prompts.jsonl"
    first, *others = prompts.read_text().splitlines()
    prompts.write_text("\n".join([json.dumps(json.loads(first) | {"prompt": "the sea " * 40}), *others]) + "\n")
    for index in range(2):
        expect(run(bench, job, f"{index}/2", f"--output={bench.folder}/long"), 0, f"shard {index} of two")
    done = expect(run(bench, job, "1/2", f"--output={bench.folder}/long", "--max-tokens=1000000"), 2, "another shard's prompt")
    check("less the prompt of item item-0)" in done.error_lines()[0], done.errors)


def refused(bench):
    """Shards that do not match are refused with one line, and nothing is changed."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    job = bench.job()
    run_folder = bench.folder / "run"
    expect(run(bench, job, "0/2"), 0, "the first shard")
    mine = bench.folder / "mine"
    expect(bench.run(job, 1, f"--output={mine}"), 0, "a run of its own")
    (bench.folder / "thesis").mkdir()
    (bench.folder / "thesis" / "thesis.tex").write_text("precious")
    cases = [
        ("another K", f"{run_folder}: shard: expected I/2 (the job in this folder has that many shards), got 1/3", ["--shard=1/3"]),
        ("no shard", f"{run_folder}: output: expected a run folder or an empty one, got the folder of a divided job", []),
        ("another job", "seed: expected 1", ["--shard=1/2", "--seed=2"]),
        ("a run", f"{mine}: shard: expected off (the folder holds a run of the whole job), got 0/2",
         ["--shard=0/2", f"--output={mine}"]),
        ("other files", "a folder of other files", ["--shard=0/2", f"--output={bench.folder}/thesis"]),
        ("beyond", "shard: expected off, or I/K with I from 0 to K - 1", ["--shard=2/2"]),
        ("no number", "shard: expected off, or I/K with I from 0 to K - 1", ["--shard=one/2"]),
    ]
    for name, words, options in cases:
        for verb in ("run", "check"):
            done = bench.command(verb, job, *options)
            lines = [line for line in (done.errors + done.output).splitlines() if line.startswith("error:")]
            check(done.code == 2 and len(lines) == 1 and words in lines[0], f"{verb}, {name}: {done.code} {lines}")
    check(sorted(p.name for p in run_folder.iterdir()) == ["shard-0-of-2", "shards.json"], "nothing was made")
    done = bench.command("status", run_folder / "shard-0-of-2", "--progress", "--json")
    check(done.code == 2, "one or the other")
    check(bench.command("status", bench.folder / "thesis", "--progress").code == 2, "not a run")
    # A damaged marker file is reported, and the hint in the message fixes it.
    mark = (run_folder / "shards.json").read_text()
    (run_folder / "shards.json").write_text("{")
    done = expect(bench.command("status", run_folder), 1, "damaged")
    check("shards.json: shards: expected a number" in done.errors, done.errors)
    (run_folder / "shards.json").write_text(mark)
    shutil.copy(run_folder / "shard-0-of-2" / "job.cfg", Path(bench.folder, "resolved.cfg"))
    expect(bench.command("run", bench.folder / "resolved.cfg"), 0, "the resolved job is the same shard")


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (
        bytes_of_the_whole, references, stopped, extended, refused)}))
