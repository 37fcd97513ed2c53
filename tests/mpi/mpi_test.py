#!/usr/bin/env python3
"""Sharding, stopping, refusing and resuming, with the real program under mpirun.

usage: mpi_test.py BINARY CASE
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from harness import DEMO_MODEL, check, digest, journal_keys, main, make_prompts, results, runs, statistics, wait_for


def expect(done, code, what):
    check(done.code == code, f"{what}: expected exit code {code}, got {done.code}\n{done.errors}")
    return done


def exactly_once(bench):
    """64 oversubscribed ranks over 1,000 short items."""
    make_prompts(bench.folder / "prompts.jsonl", 1000)
    job = bench.job(max_tokens=2)
    done = expect(bench.run(job, 64), 0, "64 ranks")
    keys = journal_keys(bench.folder / "run")
    check(len(keys) == 1000 and len(set(keys)) == 1000, f"{len(keys)} records of {len(set(keys))} items")
    ids = [line["id"] for line in results(bench.folder / "run")]
    check(ids == [f"item-{i}" for i in range(1000)], "results are in the order of the input")
    writers = len(list((bench.folder / "run" / "results").glob("*.jsonl")))
    check(writers > 1, "several replicas had work")
    sharded = digest(bench.folder / "run")
    expect(bench.run(job, 1, f"--output={bench.folder}/one"), 0, "one rank")
    check(digest(bench.folder / "one") == sharded, "64 ranks and one rank give the same bytes")
    print(f"64 ranks: {done.seconds:.1f} s, {writers} replicas had work")


def tcp(bench):
    """Counter and results over TCP, as between nodes."""
    make_prompts(bench.folder / "prompts.jsonl", 40, words=200)
    job = bench.job(max_tokens=20)
    mpi = ("--mca", "btl", "tcp,self", "--mca", "osc", "^sm", "--mca", "btl_tcp_if_include", "lo")
    expect(bench.run(job, 3, mpi=mpi), 0, "3 ranks over TCP")
    keys = journal_keys(bench.folder / "run")
    check(len(keys) == 40 and len(set(keys)) == 40, f"{len(keys)} records of {len(set(keys))} items")


def idle_ranks(bench):
    """More ranks than work is fine, and a rank without work reports it."""
    make_prompts(bench.folder / "prompts.jsonl", 2)
    done = expect(bench.run(bench.job(max_tokens=300), 6), 0, "6 ranks, 2 items")
    logs = list((bench.folder / "run" / "log").glob("replica-*.log"))
    idle = [log for log in logs if "no work" in log.read_text()]
    check(len(idle) >= 4, f"{len(idle)} replicas said that they had no work\n{done.errors}")


def errors_once(bench):
    """An error is one line for all ranks, with the documented exit code, and no process is left."""
    make_prompts(bench.folder / "prompts.jsonl", 3)
    cases = []
    cases.append(("unknown key", 2, "--max-tokenz=3", "max-tokens"))
    cases.append(("ranks", 2, "--tensor-parallel=8", "tensor-parallel"))
    cases.append(("data", 1, f"--data={bench.folder}/nothing.jsonl", "nothing.jsonl"))
    broken = bench.folder / "broken"
    broken.mkdir()
    for file in bench.model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    cases.append(("model", 1, f"--model={broken}", "model.safetensors"))
    (bench.folder / "file").write_text("not a folder")
    cases.append(("output", 2, f"--output={bench.folder}/file", "file"))
    (bench.folder / "others").mkdir()
    (bench.folder / "others" / "thesis.tex").write_text("precious")
    cases.append(("other folder", 2, f"--output={bench.folder}/others", "others"))
    for name, code, option, word in cases:
        done = expect(bench.run(bench.job(), 4, option), code, name)
        lines = done.error_lines()
        check(len(lines) == 1, f"{name}: expected one line, got {lines}\n{done.errors}")
        check(word in lines[0], f"{name}: expected {word!r} in {lines[0]!r}")
        check(done.seconds < 30, f"{name}: took {done.seconds:.1f} s")
    check(not (bench.folder / "run" / "results.jsonl").exists(), "nothing was generated")
    status = bench.command("status", bench.folder / "run").output
    check(re.search(r"\nerror     .*model.safetensors.*\nnext      fix this, ", status), f"the reason of the newest launch\n{status}")


def wait_for_checkpoint(run, rounds=1):
    wait_for(lambda: len([p for p in Path(run, "checkpoints").glob("*.h5") if p.name.count(".") == 1]) >= rounds,
             "a checkpoint is there")


def wait_for_checkpoint_of(run, epoch):
    wait_for(lambda: list(Path(run, "checkpoints").glob(f"*-{epoch}-*.h5")), f"a checkpoint of launch {epoch} is there")


def stop_request(bench):
    """SIGUSR1 to mpirun: everything is saved, exit 75, and the resumed run gives the same bytes."""
    make_prompts(bench.folder / "prompts.jsonl", 6)
    job = bench.job(max_tokens=800, checkpoint_tokens=200)
    expect(bench.run(job, 2, f"--output={bench.folder}/whole"), 0, "uninterrupted")
    run = bench.folder / "run"
    launch = bench.start(job, 2)
    wait_for_checkpoint(run)
    check(launch.alive(), "the run is under way when it is asked to stop")
    launch.signal(signal.SIGUSR1)
    done = expect(launch.wait(30), 75, "stopped")
    check(f"unfinished; `longhaul results {run} --partial` shows what there is" in done.output, done.output)
    status = json.loads(bench.command("status", run, "--json").output)
    check(status["state"] == "stopped", f"state {status['state']}")
    begun = status["launch"]
    check(0 <= begun["load_seconds"] <= begun["first_token_seconds"], f"how the launch began: {begun}")
    check("first token after" in bench.command("status", run).output, "and in words")
    partial = bench.command("results", run, "--partial")
    check('"finish_reason":"partial"' in partial.output, f"partial results\n{partial.output[:300]}{partial.errors}")
    again = bench.start(job, 2)
    wait_for_checkpoint_of(run, 2)
    again.signal(signal.SIGUSR1)
    twice = expect(again.wait(30), 75, "stopped again")
    count = json.loads((run / "summary.json").read_text())["resumed_items"]
    check(count >= 2 and re.search(rf"resumed +{count} items, 0 tokens computed again", twice.output),
          f"both replicas continued an item: {twice.output}")
    expect(bench.run(job, 3), 0, "resumed on 3 ranks")
    check(digest(run) == digest(bench.folder / "whole"), "the same bytes")
    lines = statistics(run)
    check(any(line["resumes"] > 0 and line["checkpoint_rounds"] > 0 for line in lines), "items were resumed")
    check(all(line["recomputed_tokens"] == 0 for line in lines), "a stop loses nothing")
    print(f"stopped within {done.seconds:.1f} s of its start")


def verified(bench):
    """`longhaul verify` finds nothing in an intact run, names each damaged file, and running the job again repairs it."""
    # Items end at different times: the rounds of one that goes on name rounds of those that ended, which are gone.
    make_prompts(bench.folder / "prompts.jsonl", 8, words=400)
    job = bench.job(max_tokens=800, checkpoint_tokens=60, batch=3)
    expect(bench.run(job, 2, f"--output={bench.folder}/whole"), 0, "uninterrupted")
    run = bench.folder / "run"

    def verify(code):
        found = json.loads(expect(bench.command("verify", run, "--json"), code, "verify").output)
        check(found["intact"] == (code == 0), f"{found}")
        return found["runs"][0]

    def damage_of(path, change):
        """The lines while a file has other bytes."""
        intact = path.read_bytes()
        path.write_bytes(change(intact))
        lines = verify(1)["damage"]
        path.write_bytes(intact)
        return lines

    def flip(content):
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]

    def newest(pattern):
        return max((run / "checkpoints").glob(pattern), key=lambda path: [int(x) for x in path.name.split(".")[0].split("-")])

    launch = bench.start(job, 1)
    wait_for(lambda: len(journal_keys(run)) >= 2, "two items are done")
    busy = expect(bench.command("verify", run), 2, "a run that is running")
    check("expected a run that is not running" in busy.errors, busy.errors)
    launch.signal(signal.SIGUSR1)
    expect(launch.wait(30), 75, "stopped")
    found = verify(0)
    check(found["unfinished"] and all(tokens > 0 for tokens in found["unfinished"].values()), f"{found}")
    check(2 <= found["done"] < 8 and not found["finished"] and found["checkpoint_files"] >= 2 * found["checkpoint_rounds"] > 0, f"{found}")
    for pattern in ("?-?-*[0-9].h5", "?-?-*.?.h5"):
        path = newest(pattern)
        for change in (flip, lambda content: content[:-1], lambda content: b""):
            lines = damage_of(path, change)
            check(len(lines) == 1 and lines[0].startswith(f"{path}: "), f"{path}: {lines}")
    for change in (lambda content: content[:-3], lambda content: b"", lambda content: b"{}"):
        lines = damage_of(run / "identity.json", change)
        check(len(lines) == 1 and lines[0].startswith(f"{run}/identity.json: expected the identity of a run"), f"{lines}")
    path = newest("?-?-*.?.h5")
    content = path.read_bytes()
    path.unlink()
    lines = verify(1)["damage"]
    check(len(lines) == 1 and lines[0].startswith(f"{path}: "), f"{lines}")
    path.write_bytes(content)
    check(bench.command("verify", run).output.endswith("all intact\n"), "in words")
    path.write_bytes(flip(content))
    text = expect(bench.command("verify", run), 1, "with damage").output
    check(f"damage             {path}" in text and text.endswith("1 damaged or missing\n"), text)

    expect(bench.run(job, 2), 0, "resumed")
    check(digest(run) == digest(bench.folder / "whole"), "the same bytes")
    found = verify(0)
    check(found["finished"] and found["done"] == 8 and not found["unfinished"], f"{found}")
    journal = max((run / "results").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = damage_of(journal, lambda content: content.replace(b'"num_tokens"', b"#num_tokens#", 1))
    check(len(lines) == 2 and f"{journal}: line 1: expected a result" in lines[0], f"{lines}")
    check("results.jsonl is intact: keep a copy of it" in lines[1], f"{lines}")
    lines = damage_of(journal, lambda content: content.replace(b'"text":"', b'"text":"!', 1))  # a result, and not the one that was written
    check(len(lines) == 2 and f"{journal}: line 1: expected a result" in lines[0], f"{lines}")
    for change in (flip, lambda content: content[:-1], lambda content: 2 * content):
        lines = damage_of(run / "results.jsonl", change)
        check(len(lines) == 1 and "remove it and run the job again" in lines[0], f"{lines}")
    (run / "results.jsonl").unlink()
    lines = verify(1)["damage"]
    check(len(lines) == 1 and "run the job again: it is written again" in lines[0], f"{lines}")
    expect(bench.run(job, 2), 0, "written again")
    check(digest(run) == digest(bench.folder / "whole"), "the same bytes")
    verify(0)
    content = journal.read_bytes()
    journal.write_bytes(b"")
    lost = expect(bench.command("results", run), 1, "results that are lost").errors
    check("results/: expected 8 results of a finished run, got " in lost, lost)
    journal.write_bytes(content)
    # Items that are made longer have results of their former length.
    launch = bench.start(job, 1, "--max-tokens=4000")
    wait_for_checkpoint(run, 2)
    launch.signal(signal.SIGUSR1)
    expect(launch.wait(30), 75, "stopped while it is extended")
    found = verify(0)
    check(len(found["unfinished"]) == 3 and found["done"] == 8, f"{found}")


def stop_one_rank(bench):
    """SIGTERM to a single rank, not the launcher: all ranks stop, everything is saved."""
    make_prompts(bench.folder / "prompts.jsonl", 60)
    job = bench.job(max_tokens=3000, checkpoint_tokens=400)
    launch = bench.start(job, 3)
    wait_for_checkpoint(bench.folder / "run")
    pids = launch.rank_pids()
    check(len(pids) == 3, f"ranks {pids}")
    os.kill(pids[2], signal.SIGTERM)
    expect(launch.wait(30), 75, "stopped through one rank")


def in_flight_status(bench, run):
    status = json.loads(bench.command("status", run, "--json").output)
    return status if status["progress"]["in_flight"] > 0 else None


def two_at_once(bench):
    """A second launch on a live run folder is refused, naming the holder; a dead holder is taken over."""
    make_prompts(bench.folder / "prompts.jsonl", 40)  # more than any machine can finish in time
    job = bench.job(max_tokens=4000, checkpoint_tokens=400)
    run = bench.folder / "run"
    first = bench.start(job, 1)
    wait_for_checkpoint(run)
    status = wait_for(lambda: in_flight_status(bench, run), "the status shows an item in flight", 20)
    check(status["state"] == "running" and status["replicas"], f"status {status}")
    second = expect(bench.run(job, 2), 2, "second launch")
    pid = first.rank_pids()[0]
    lines = second.error_lines()
    check(len(lines) == 1 and f"pid {pid}" in lines[0] and "host " in lines[0], f"names the holder {pid}: {lines}")
    check(first.alive(), "the first launch goes on")
    first.kill_all()
    check(json.loads(bench.command("status", run, "--json").output)["state"] == "crashed", "state crashed")
    third = bench.start(job, 1)
    wait_for(lambda: (run / "launches" / "2.json").exists(), "a dead holder is taken over at once", 20)
    third.signal(signal.SIGUSR1)
    third.wait(30)


def finished_again(bench):
    """Running a finished job again adds nothing, and it reports that quickly."""
    make_prompts(bench.folder / "prompts.jsonl", 5)
    job = bench.job()
    expect(bench.run(job, 2), 0, "first")
    run = bench.folder / "run"
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    done = expect(bench.run(job, 3), 0, "again")
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    check(before == after, f"files changed: {set(before.items()) ^ set(after.items())}")
    check("done already" in done.errors, done.errors)
    moved = bench.folder / "moved"
    shutil.copytree(run, moved)
    summary = expect(bench.run(job, 1, f"--output={moved}"), 0, "moved").output
    check(f"{moved}/results.jsonl\n" in summary and f"{run}/" not in summary, summary)
    other = bench.run(job, 1, "--seed=2")
    expect(other, 2, "another identity")
    model = bench.folder / "other-model"
    shutil.copytree(bench.model, model)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    expect(bench.run(job, 1, f"--model={model}", "--limit=4"), 2, "another model")
    check(str(model) not in (run / "job.cfg").read_text(), "a refusal leaves job.cfg as it was")
    check(json.loads(bench.command("status", run, "--json").output)["state"] == "finished", "and the state")
    check("seed" in other.error_lines()[0] and "got 2" in other.error_lines()[0], str(other.error_lines()))


def extend(bench):
    """Raising limit, samples and max-tokens extends a finished run to what a fresh one gives."""
    make_prompts(bench.folder / "prompts.jsonl", 8)
    job = bench.job(limit=3, max_tokens=10)
    run = bench.folder / "run"
    expect(bench.run(job, 2), 0, "first")
    for option in ("--limit=6", "--samples=2", "--max-tokens=25"):
        keys = [option] if option.startswith("--limit") else ["--limit=6", option]
        if option.startswith("--max-tokens"):
            keys.append("--samples=2")
        fresh = bench.folder / ("fresh" + option)
        extended = expect(bench.run(job, 2, *keys), 0, option)
        note = "note: max-tokens was raised: 12 items that ended at the old limit continue from there\n"
        check((note in extended.errors) == option.startswith("--max-tokens"), extended.errors)
        expect(bench.run(job, 1, *keys, f"--output={fresh}"), 0, "fresh " + option)
        check(digest(run) == digest(fresh), f"{option}: extended and fresh differ")
    check(all(line["resumes"] == 1 and line["recomputed_rows"] > 0 for line in statistics(run)), "none began anew")
    expect(bench.run(job, 1, "--limit=6", "--samples=2", "--max-tokens=10"), 2, "lowering max-tokens")
    before = digest(run)
    refused = expect(bench.run(job, 1, "--limit=6", "--samples=2", "--max-tokens=1000000"), 2, "more than the context holds")
    check("max-tokens: expected at most " in refused.error_lines()[0] and "of item item-" in refused.error_lines()[0], refused.errors)
    checked = bench.command("check", job, "--limit=6", "--samples=2", "--max-tokens=1000000")
    check(checked.code == 2 and refused.error_lines()[0] in checked.output + checked.errors, f"check says the same: {checked.output}{checked.errors}")
    most = re.search("at most ([0-9]+)", refused.errors)[1]
    again = expect(bench.run(job, 1, "--limit=6", "--samples=2", "--max-tokens=25"), 0, "nothing was changed")
    check(digest(run) == before and "launch 6" not in again.output, "a finished run is finished")
    expect(bench.run(job, 1, "--limit=6", "--samples=2", f"--max-tokens={int(most) + 1}"), 2, "one too many")
    (run / "job.cfg").write_text("no-such-key = 1\n")
    expect(bench.run(job, 1, "--limit=6", "--samples=2", "--max-tokens=26"), 0, "job.cfg is written, not read")


def extend_from_damage(bench):
    """With logprobs and a kill on the way. A result that is not intact begins again; one with a limit of its own stays."""
    prompts = make_prompts(bench.folder / "prompts.jsonl", 5)
    *lines, last = prompts.read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"options": {"max-tokens": 30}}))
    prompts.write_text("\n".join(lines) + "\n")
    keys = ["--logprobs=2", "--ignore-eos=true"]
    job = bench.job(max_tokens=30, checkpoint_tokens=40)
    run, fresh = bench.folder / "run", bench.folder / "fresh"
    expect(bench.run(job, 1, *keys), 0, "first")
    journal, = (run / "results").iterdir()
    lines = {json.loads(line)["id"]: line for line in journal.read_text().splitlines()}
    lines["item-1"], cut = re.subn(',"(resume|checksum)":"[^"]*"', "", lines["item-1"])  # as older versions wrote it
    lines["item-2"], changed = re.subn('("resume":"[^"]* )[0-9]+"', r'\g<1>7"', lines["item-2"])
    check(cut == 2 and changed == 1 and '"resume"' not in lines["item-4"], f"{lines}")
    journal.write_text("\n".join(lines.values()) + "\n")
    keys.append("--max-tokens=900")
    launch = bench.start(job, 1, *keys)
    wait_for_checkpoint(run, 2)
    check(launch.alive(), "the launch is under way when it is killed")
    launch.kill_all()
    # Nor may a text in a checkpoint become an error.
    refused = expect(bench.run(job, 1, *keys[:2], "--max-tokens=1000000"), 2, "more than the context holds")
    check("max-tokens: expected at most " in refused.error_lines()[0], refused.errors)
    for note in ("2 items that ended at the old limit continue from there\n", "1 item that ended at the old limit starts again from the prompt\n"):
        check("note: max-tokens was raised: " + note in launch.err_path.read_text(), launch.err_path.read_text())
    partial = [json.loads(line) for line in bench.command("results", run, "--partial").output.splitlines()]
    check({line["id"] for line in partial} | {"item-2"} == set(lines) and max(line["num_tokens"] for line in partial) > 30,
          "what checkpoints have beyond the old results; the damaged one may not have begun again")
    # The Slurm script submits again as long as these numbers grow.
    progress = dict(word.split("=") for word in bench.command("status", run, "--progress").output.split())
    check(progress["done"] == "1" and int(progress["positions"]) > 0, f"{progress}")
    check(int(progress["tokens"]) == sum(line["num_tokens"] for line in partial), f"{progress}")
    expect(bench.run(job, 2, *keys), 0, "extended")
    expect(bench.run(job, 1, *keys, f"--output={fresh}"), 0, "fresh")
    check(digest(run) == digest(fresh), "extended and fresh differ")


def failed_items(bench):
    """A bad item is recorded with its reason, the others continue, exit 3; retry-failed and max-failures."""
    prompts = make_prompts(bench.folder / "prompts.jsonl", 6)
    lines = prompts.read_text().splitlines()
    lines[2] = json.dumps({"id": "item-2", "prompt": "the sea " * 9000})
    prompts.write_text("\n".join(lines) + "\n")
    job = bench.job()
    summary = expect(bench.run(job, 2), 3, "one bad item").output
    check(re.search(r"items +6 of 6 done, 1 of them failed\n +first failure +item-2: data:3: prompt: expected at most", summary), summary)
    lines = results(bench.folder / "run")
    bad = [line for line in lines if line["finish_reason"] == "error"]
    check(len(lines) == 6 and len(bad) == 1 and bad[0]["id"] == "item-2" and bad[0]["error"], f"{bad}")
    check(str(bench.folder) not in bad[0]["error"], f"results do not depend on where the data lies: {bad[0]['error']}")
    expect(bench.run(job, 2), 3, "finished with failures")
    expect(bench.run(job, 1, "--retry-failed"), 3, "failed again")
    check(len(results(bench.folder / "run")) == 6, "still six lines")
    many = "\n".join(json.dumps({"id": f"b{i}", "prompt": "the sea " * 9000}) for i in range(20))
    prompts.write_text(many + "\n")
    done = expect(bench.run(job, 1, f"--output={bench.folder}/many", "--max-failures=3"), 1, "too many failures")
    check(len(done.error_lines()) == 1 and "max-failures" in done.error_lines()[0], done.errors)
    check(len(journal_keys(bench.folder / "many")) == 3, "stopped after three")


def bad_line(bench):
    """A broken line among thousands of short items is one failed item; all others are present, in order."""
    count, bad = 3000, 1234
    prompts = make_prompts(bench.folder / "prompts.jsonl", count)
    lines = prompts.read_text().splitlines()
    lines[bad] = '{"id": "item-1234", "prompt": "the sea'
    prompts.write_text("\n".join(lines) + "\n")
    job = bench.job(max_tokens=2)
    checked = bench.command("check", job)
    check(checked.code == 3 and f"prompts.jsonl:{bad + 1}" in checked.output, f"foreseen: {checked.output}{checked.errors}")
    check(not (bench.folder / "run").exists(), "a check leaves nothing")
    expect(bench.run(job, 2), 3, "a bad line")
    found = results(bench.folder / "run")
    check([line["id"] for i, line in enumerate(found) if i != bad] == [f"item-{i}" for i in range(count) if i != bad], "order")
    failed = [i for i, line in enumerate(found) if line["finish_reason"] == "error"]
    check(failed == [bad], f"failed: {failed}")
    told = statistics(bench.folder / "run")
    check([line["id"] for line in told] == [f"item-{i}" for i in range(count) if i != bad], "statistics of all others, in order")
    check("can run, but for 1 item" in bench.command("check", job).output, "checked again beside its run")


def hang(bench):
    """A hanging rank: all ranks end within a bounded time, with a one-line error."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    for ranks, tensor_parallel, victim in ((2, 2, 1), (3, 1, 2), (2, 1, 0)):
        run = bench.folder / f"run{ranks}{tensor_parallel}{victim}"
        job = bench.job(max_tokens=8000, tensor_parallel=tensor_parallel, watchdog_seconds=2, output=run,
                        checkpoint_tokens=400)
        launch = bench.start(job, ranks)
        wait_for_checkpoint(run)
        pid = launch.rank_pids()[victim]
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        done = launch.wait(40)
        check(done.code not in (0, 75), f"exit code {done.code}")
        check(done.error_lines(), f"a line that says why: {done.errors}")
        wait_for(lambda: not runs(pid), "the stopped rank is gone too", 10)
        print(f"{ranks} ranks, tensor-parallel {tensor_parallel}, rank {victim} hung: all gone after "
              f"{time.monotonic() - start:.1f} s")


def suspended(bench):
    """All ranks stopped for longer than watchdog-seconds, then continued (Ctrl-Z, scontrol suspend): no false alarm."""
    make_prompts(bench.folder / "prompts.jsonl", 3)
    job = bench.job(max_tokens=4000, checkpoint_tokens=400, watchdog_seconds=2)
    run = bench.folder / "run"
    launch = bench.start(job, 3)
    wait_for_checkpoint(run)
    check(len(launch.rank_pids()) == 3 and launch.alive(), "the run is under way when it is suspended")
    with launch.frozen():
        time.sleep(4)
        check(not journal_keys(run), "items were in flight when it was suspended")
    expect(launch.wait(), 0, "suspended and continued")


def damaged(bench):
    """A flipped bit in stored KV: it is named on the terminal and recomputed, and the bytes are the same."""
    make_prompts(bench.folder / "prompts.jsonl", 2)
    job = bench.job(max_tokens=3000, checkpoint_tokens=200)
    expect(bench.run(job, 1, f"--output={bench.folder}/whole"), 0, "uninterrupted")
    run = bench.folder / "run"
    launch = bench.start(job, 1)
    wait_for_checkpoint(run, 2)
    launch.kill_all()
    files = sorted((run / "checkpoints").glob("0-1-*.0.h5"))
    check(files, "keys and values are stored")
    content = bytearray(files[0].read_bytes())
    content[len(content) // 2] ^= 1
    files[0].chmod(0o644)
    files[0].write_bytes(content)
    warnings = [line for line in expect(bench.run(job, 1), 0, "resumed").errors.splitlines() if line.startswith("warning: ")]
    check(len(warnings) == 1 and f"{files[0].name}: " in warnings[0], f"{warnings}")
    check(digest(run) == digest(bench.folder / "whole"), "the same bytes")
    log = "".join(path.read_text() for path in (run / "log").glob("*.log"))
    check("damaged" in log and files[0].name in log, f"the log names {files[0].name}")


def replay(bench):
    """draft = replay: an earlier run's tokens as drafts give the same text, even if some are wrong. A sampling rule replays only what it did not write."""
    make_prompts(bench.folder / "prompts.jsonl", 3)
    job = bench.job(max_tokens=200)
    plain = bench.folder / "plain"
    expect(bench.run(job, 2, f"--output={plain}", "--draft=ar"), 0, "plain decoding without token ids")
    options = ("--draft=replay", "--draft-tree=2x4", "--replay-accept=0.7")
    done = expect(bench.run(job, 2, *options, f"--replay-run={plain}"), 1, "nothing to replay")
    check("token-ids = true" in done.error_lines()[0], f"the fix: {done.errors}")
    recorded = bench.folder / "recorded"
    expect(bench.run(job, 2, f"--output={recorded}", "--draft=ar", "--token-ids=true"), 0, "plain decoding")
    expect(bench.run(job, 3, "--token-ids=true", *options, f"--replay-run={recorded}", f"--output={bench.folder}/again"), 0, "replayed")
    check(digest(bench.folder / "again") == digest(recorded), "the same bytes")
    drafted, accepted = (sum(line[key] for line in statistics(bench.folder / "again")) for key in ("drafted", "accepted"))
    check(0 < accepted < drafted, f"{accepted} of {drafted} drafts accepted")
    sampled = bench.folder / "sampled"
    expect(bench.run(job, 2, f"--output={sampled}", "--draft=ar", "--verify=recursive", "--token-ids=true"), 0, "plain decoding under recursive")
    under_recursive = (*options, "--verify=recursive", f"--output={bench.folder}/under-recursive")
    refused = expect(bench.run(job, 2, *under_recursive, f"--replay-run={sampled}"), 2, "a recording that is not independent")
    check("replay-run: expected a run with verify = coupled" in refused.error_lines()[0], refused.errors)
    expect(bench.run(job, 2, *under_recursive, f"--replay-run={recorded}"), 0, "an independent recording")


def logprobs(bench):
    """The same log-probabilities on one rank without drafts, split over two ranks, and after kills."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    job = bench.job(max_tokens=700, logprobs=3, checkpoint_tokens=100, draft_tree="3x4:8", token_ids="true", ignore_eos="true")
    whole, run = bench.folder / "whole", bench.folder / "run"
    expect(bench.run(job, 1, f"--output={whole}", "--draft=ar"), 0, "one rank, plain decoding")
    for line in results(whole):
        check(len(line["logprobs"]) == line["num_tokens"] == 700, "a list for each token")
        for token, entries in zip(line["token_ids"], line["logprobs"]):
            ids = [entry[0] for entry in entries]
            check(ids[0] == token and len(ids) == len(set(ids)) in (3, 4), f"the chosen token first, none twice: {entries}")
            check(entries[1:] == sorted(entries[1:], key=lambda entry: -entry[1]), f"best first: {entries}")
    for launches in range(2):
        launch = bench.start(job, 2, "--tensor-parallel=2")
        wait_for_checkpoint(run, 2 + 2 * launches)
        check(launch.alive(), "the launch is under way when it is killed")
        launch.kill_all()
    partial = [json.loads(line) for line in bench.command("results", run, "--partial").output.splitlines()]
    check(any(line["finish_reason"] == "partial" for line in partial), "something is unfinished")
    check(all(len(line["logprobs"]) == line["num_tokens"] for line in partial), "what there is has its log-probabilities")
    expect(bench.run(job, 2), 0, "resumed")
    check(sum(line["resumes"] for line in statistics(run)) > 0, "items went on from a checkpoint")
    check(digest(run) == digest(whole), "the same bytes")
    for mode in ("--teacher-forced=true", "--mode=perplexity"):
        output = bench.folder / mode
        expect(bench.run(job, 2, mode, "--logprobs=0", f"--output={output}"), 3, mode + " of prompts that end")
        check(all("continuation" in line["error"] for line in results(output)), "each says what it lacks")


def given_text(bench):
    """teacher-forced and mode = perplexity: the same loss for both, for any split and drafts, and after a kill."""
    job = bench.job(task="pg19", data=DEMO_MODEL.parent / "books", model=DEMO_MODEL, prompt_tokens=40, max_tokens=700,
                    checkpoint_tokens=100, draft_tree="3x4:8")
    losses = {}
    for name, mode in (("forced", "--teacher-forced=true"), ("scored", "--mode=perplexity")):
        whole, run = bench.folder / name, bench.folder / (name + "-killed")
        expect(bench.run(job, 1, mode, "--draft=ar", f"--output={whole}"), 0, name)
        launch = bench.start(job, 2, mode, "--tensor-parallel=2", f"--output={run}")
        wait_for_checkpoint(run, 2)
        check(launch.alive(), "the launch is under way when it is killed")
        launch.kill_all()
        expect(bench.run(job, 2, mode, f"--output={run}"), 0, name + " resumed")
        check(sum(line["resumes"] for line in statistics(run)) > 0, "items went on from a checkpoint")
        check(digest(run) == digest(whole), f"{name}: the same bytes")
        losses[name] = [(line["id"], line["num_tokens"], line["nll"], line["loss_by_position"]) for line in results(whole)]
        summary = json.loads((run / "summary.json").read_text())
        check(summary["scored_tokens"] == sum(line[1] for line in losses[name]) > 0, f"{summary}")
        check(summary["perplexity"] > 1 and summary["bits_per_byte"] > 0, f"{summary}")
    check(losses["forced"] == losses["scored"], "one window that covers all gives the loss of teacher forcing")


def baseline(bench):
    """baseline = true: the same bytes without speculation, and a speedup in the summary."""
    make_prompts(bench.folder / "prompts.jsonl", 3)
    job = bench.job(max_tokens=60, baseline="true", temperature=0)
    done = expect(bench.run(job, 2), 0, "with baseline")
    summary = json.loads((bench.folder / "run" / "summary.json").read_text())
    check(summary["baseline"]["identical"] and summary["speedup"] > 0, f"{summary}")
    check("speedup" in done.output and "results" in done.output, done.output)
    check(summary["drafted"] > summary["accepted"] > 0, f"drafts were accepted and rejected: {summary}")


def generate(bench):
    """longhaul generate in several ranks divides the model among them: one text, printed once."""
    options = ("--prompt=It is a", "--max-tokens=30", "--ignore-eos", "--threads=1")
    alone = bench.command("generate", bench.model, *options)
    check(alone.code == 0 and len(alone.output) > 30, alone.errors)
    for ranks in (2, 4):
        done = expect(bench.run(bench.model, ranks, *options, verb="generate"), 0, f"{ranks} ranks")
        check(done.output == alone.output, f"{ranks} ranks: {done.output!r} instead of {alone.output!r}")
        check(done.errors.count("longhaul: 30 tokens") == 1, done.errors)
    piped = subprocess.run(f"printf %s 'It is a' | mpirun -q --oversubscribe -n 2 {bench.binary} generate {bench.model} --prompt-file=- "
                           + " ".join(options[1:]), shell=True, capture_output=True, text=True, timeout=60,
                           env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
    check(piped.stdout == alone.output, f"the prompt of standard input reaches all ranks: {piped}")
    for ranks, option, code, error in (
            (3, "--seed=1", 2, "number of ranks: tensor-parallel: expected 1, 2, 4 or 8, got '3'"),
            (2, "--seed=x", 2, "command line: seed: expected an integer from 0 to 18446744073709551615, got 'x'"),
            (2, "--memory=1KiB", 1, "memory: expected memory for keys and values of up to")):
        done = expect(bench.run(bench.model, ranks, *options, option, verb="generate"), code, option)
        check(len(done.error_lines()) == 1 and error in done.error_lines()[0], done.errors)
        check(done.output.strip() == "" and "tokens/s" not in done.errors, "nothing but the error")


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (
        exactly_once, tcp, idle_ranks, errors_once, stop_request, verified, stop_one_rank, two_at_once, finished_again, extend, extend_from_damage,
        failed_items, bad_line, hang, suspended, damaged, logprobs, given_text, baseline, replay, generate)}))
