#!/usr/bin/env python3
"""What a launch and `longhaul results` do with a run folder that lost something or changes under them, with the real program.

usage: folder_test.py BINARY CASE
"""

import json
import os
import shutil
import signal
import subprocess

from harness import Launch, check, digest, journal_keys, main, make_adapter, make_prompts, results, statistics, wait_for


def expect(done, code, what):
    check(done.code == code, f"{what}: expected exit code {code}, got {done.code}\n{done.errors}")
    return done


def start(bench, job, *options):
    """Launches one process without mpirun."""
    launch = Launch([bench.binary, "run", str(job), *options], bench.folder / "launches", dict(os.environ, LONGHAUL_PROGRESS="plain"))
    bench.launches.append(launch)
    return launch


def run(bench, job, *options):
    return start(bench, job, *options).wait()


def stopped_run(bench, count=4, max_tokens=4000, **keys):
    """A run that was stopped with an item done and a checkpoint of another."""
    make_prompts(bench.folder / "prompts.jsonl", count)
    lines = (bench.folder / "prompts.jsonl").read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"options": {"max-tokens": 5}})
    (bench.folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    job = bench.job(max_tokens=max_tokens, checkpoint_tokens=100, batch=2, **keys)
    folder = bench.folder / "run"
    launch = start(bench, job)
    wait_for(lambda: journal_keys(folder) and list((folder / "checkpoints").glob("*[0-9].h5")), "an item is done, another in a checkpoint")
    launch.signal(signal.SIGUSR1)
    expect(launch.wait(), 75, "stopped")
    return job, folder


def warnings_of(done):
    return [line for line in done.errors.splitlines() if line.startswith("warning: ")]


def identity(bench):
    """Without its identity.json a folder that has results takes no job, and a refused launch changes no file."""
    job, folder = stopped_run(bench)
    path = folder / "identity.json"
    intact = path.read_bytes()
    job_before = (folder / "job.cfg").read_bytes()
    for change in (path.unlink, lambda: path.write_bytes(b"")):
        change()
        for options in ((), ("--seed=2",)):
            done = expect(run(bench, job, *options), 1, "no identity")
            check(f"{path}: expected the identity of a run, got nothing; restore it" in done.errors, done.errors)
        path.write_bytes(intact)
    # The keys agree, and only the checkpoints tell that they are another job's.
    path.write_bytes(intact.replace(b'"seed": "1"', b'"seed": "2"'))
    done = expect(run(bench, job, "--seed=2"), 1, "another job's checkpoints")
    check("checkpoints/" in done.error_lines()[0], done.errors)
    check((folder / "job.cfg").read_bytes() == job_before, "a refused launch leaves job.cfg as it was")
    path.write_bytes(intact)
    expect(run(bench, job, "--max-tokens=4000"), 0, "restored")
    (folder / "job.cfg").write_text("")
    done = expect(bench.command("results", folder), 1, "an empty job.cfg")
    check(f"{folder}/job.cfg: expected a job, got nothing; run the job again" in done.errors, done.errors)
    expect(run(bench, job), 0, "run again")
    check((folder / "job.cfg").read_bytes() == job_before, "as the message says")
    # A launch that has not got to its first item has nothing that is unfinished.
    begun = bench.folder / "begun"
    (begun / "launches").mkdir(parents=True)
    shutil.copy(folder / "job.cfg", begun / "job.cfg")
    shutil.copy(folder / "launches" / "1.json", begun / "launches" / "1.json")
    done = expect(bench.command("results", begun, "--partial"), 0, "a launch that loads its model")
    check(done.output == "" and done.errors.startswith(f"note: {begun}: no identity.json"), done.output + done.errors)


def lost_results(bench):
    """A result file that is gone is named before anything is computed again; a damaged line is, too."""
    job, folder = stopped_run(bench)
    journal = folder / "results" / "0-1.jsonl"
    content = journal.read_bytes()
    launch = start(bench, job)
    wait_for(lambda: (folder / "launches" / "2.json").exists(), "the second launch")
    launch.signal(signal.SIGUSR1)
    launch.wait()
    emptied = bench.folder / "emptied"
    shutil.copytree(folder, emptied)
    journal.unlink()
    done = expect(run(bench, job), 1, "gone")
    check(f"{journal}: expected {len(content)} bytes of results, got no such file; restore it, or make an empty file" in done.errors, done.errors)
    check("restore it, or make an empty file of that name" in bench.command("verify", folder).output, "verify says so, too")
    check(not (folder / "launches" / "3.json").exists(), "no launch that no longer counts it")
    journal.write_bytes(content.replace(b'"num_tokens":5', b'"num_tokens":6', 1))
    done = expect(run(bench, job), 0, "damaged")
    check(warnings_of(done) == [f"warning: {journal}: line 1: expected a result, got a damaged line; its item is computed again"], done.errors)
    expect(run(bench, job, f"--output={bench.folder}/whole"), 0, "uninterrupted")
    check(digest(folder) == digest(bench.folder / "whole"), "the same bytes")
    (emptied / "results" / "0-1.jsonl").write_bytes(b"")
    expect(run(bench, job, f"--output={emptied}"), 0, "an empty file in its place")
    check(digest(emptied) == digest(bench.folder / "whole"), "the same bytes")


def damaged_statistics(bench):
    """A changed digit in the statistics changes no total: the line does not count, and that is said."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    job = bench.job(limit=3)
    folder = bench.folder / "run"
    expect(run(bench, job), 0, "three items")
    journal = folder / "log" / "stats-0-1.jsonl"
    lines = journal.read_text().splitlines()
    check(all('"checksum"' in line for line in lines) and "checksum" not in (folder / "stats.jsonl").read_text(), "only the journal has it")
    journal.write_text("\n".join([lines[0], lines[1].replace('"num_tokens":8', '"num_tokens":9'), lines[2]]) + "\n")
    done = expect(run(bench, job, "--limit=4"), 0, "another item")
    check(warnings_of(done) == [
        f"warning: {journal}: line 2: expected statistics, got a damaged line; the summary's totals are without it",
        f"warning: {folder}/stats.jsonl: expected a line of each item that did not fail, got none of 1; the summary's totals are without it",
    ], done.errors)
    check(len(statistics(folder)) == 3 and json.loads((folder / "summary.json").read_text())["tokens"] == 24, "of three items")


def superseded(bench):
    """A launch whose folder was taken over writes no file that the later launch writes, and removes none."""
    job, folder = stopped_run(bench, max_tokens=16000, lease_seconds=2)  # does not end meanwhile
    before = {path: path.read_bytes() for name in ("checkpoints", ".") for path in (folder / name).iterdir() if path.is_file()}
    launch = start(bench, job)
    wait_for(lambda: list((folder / "status").glob("*-2.json")), "the second launch works")
    bound = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    shutil.copy(folder / "launches" / "2.json", folder / "launches" / "3.json")
    done = expect(launch.wait(), 1, "taken over")
    check("got superseded by a later launch" in done.error_lines()[0] and done.output == "", done.errors + done.output)
    check({path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == bound, "no file of the folder is written")
    check(all(path.exists() for path in before), "no checkpoint is removed")


def corrected(bench):
    """A folder in which every item failed takes the corrected command, and starts afresh; one with a text does not."""
    make_prompts(bench.folder / "prompts.jsonl", 3)
    job = bench.job()
    folder, whole = bench.folder / "run", bench.folder / "whole"
    for options in ("--max-tokens=100000", "--column=prompt=nothing"):
        expect(run(bench, job, options), 3, "all items fail")
        check((folder / "finished.json").exists() and all(line["finish_reason"] == "error" for line in results(folder)), options)
        check("all good" in expect(bench.command("check", job), 0, "foreseen").output, "check")
        # A launch that dies while it loads its model leaves nothing that is taken for finished.
        launch = start(bench, job)
        wait_for(lambda: not (folder / "finished.json").exists(), "the new launch holds the folder")
        launch.kill_all()
        expect(run(bench, job), 0, "corrected")
        expect(run(bench, job, f"--output={whole}"), 0, "fresh")
        check(digest(folder) == digest(whole), "the same bytes")
        check(bench.command("verify", folder).output.endswith("all intact\n"), "verified")
        refused = expect(run(bench, job, "--seed=2"), 2, "it has texts now")
        check("this run was started with it" in refused.errors, refused.errors)
        shutil.rmtree(folder)
    shards = bench.folder / "shards"
    for options, code in ((["--max-tokens=100000"], 3), ([], 0)):
        for index in range(2):
            expect(run(bench, job, f"--shard={index}/2", f"--output={shards}", *options), code, f"shard {index} {options}")
    check(digest(shards) == digest(whole), "the same bytes")


def printing(bench):
    """Output that is lost is an error, a run that ends meanwhile is whole, and a folder that cannot be joined is printed."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    job = bench.job()
    folder = bench.folder / "run"
    expect(run(bench, job), 0, "run")
    for command in (["results", folder], ["verify", folder], ["status", folder], ["check", job], ["inspect", bench.model], ["--version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([bench.binary, *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True)
        check(done.returncode == 74 and done.stderr.startswith("error: standard output: "), f"{command}: {done.returncode} {done.stderr}")
        check(done.stderr.count("\n") == 1, done.stderr)
    # The last result and finished.json come after `results` has looked for finished.json, which it does first.
    finished, journal = folder / "finished.json", folder / "results" / "0-1.jsonl"
    end, content = finished.read_bytes(), journal.read_bytes()
    finished.unlink()
    os.mkfifo(finished)
    journal.write_bytes(content.split(b"\n")[0] + b"\n")
    command = subprocess.Popen([bench.binary, "results", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with open(finished, "wb") as pipe:  # opens when `results` does
        journal.write_bytes(content)
        pipe.write(end)
    output, errors = command.communicate(timeout=60)
    check(command.returncode == 0 and output == (folder / "results.jsonl").read_bytes(), f"{errors}")
    shards = bench.folder / "shards"
    for index in range(2):
        expect(run(bench, job, f"--shard={index}/2", f"--output={shards}"), 0, f"shard {index}")
    joined = (shards / "results.jsonl").read_text()
    (shards / "results.jsonl").unlink()
    (shards / "job.cfg").unlink()
    (shards / "job.cfg").mkdir()  # in the way of the joined file
    done = expect(bench.command("results", shards), 0, "not joined")
    check(done.output == joined and done.errors.startswith(f"note: not joined: {shards}/job.cfg: "), done.errors)


def adapter(bench):
    """An adapter decides the text: on any ranks one text, another one or none is another run, and its path may change."""
    first, other = (make_adapter(bench.folder / f"adapter-{seed}", seed) for seed in (1, 2))
    make_prompts(bench.folder / "prompts.jsonl", 3)
    folder, plain = bench.folder / "run", bench.folder / "plain"
    job = bench.job(adapter=first, limit=2)
    expect(run(bench, job), 0, "with it")
    check(f", with adapter {first} (rank 4, 4 matrices)" in (folder / "log" / "1.log").read_text(), "the log names it")
    expect(run(bench, job, "--adapter=", f"--output={plain}"), 0, "without")
    check(digest(folder) != digest(plain), "it changes the text")
    for index, options in enumerate((["--tensor-parallel=2"], ["--draft=self", "--packed-weights=" + str(bench.folder / "packed")])):
        again = bench.folder / f"again-{index}"
        expect(bench.run(job, 2, f"--output={again}", *options), 0, str(options))
        check(digest(again) == digest(folder), f"one text: {options}")
    started = "(this run was started with it)"
    identity = json.loads((folder / "identity.json").read_text())["fingerprints"]["adapter"]
    for options, where, line in (
        ([], plain, f"{plain}: adapter: expected nothing {started}, got an adapter; change it back, or take another output"),
        (["--adapter="], folder, f"{folder}: adapter: expected an adapter {started}, got nothing; change it back, or take another output"),
        ([f"--adapter={other}"], folder, f"{folder}: adapter: expected contents with fingerprint {identity} {started}, got changed contents, "),
    ):
        done = expect(run(bench, job, "--limit=3", f"--output={where}", *options), 2, "another adapter")
        check(line in done.errors, done.errors)
        done = expect(bench.command("check", job, "--limit=3", f"--output={where}", *options), 2, "check says so, too")
        check(line in done.output + done.errors, done.output + done.errors)
    # A finished run is compared, too, and not only one that has more to do.
    expect(run(bench, job, f"--adapter={other}"), 2, "finished")
    done = expect(run(bench, job, f"--adapter={bench.folder}/none"), 1, "no adapter")
    check(f"command line: adapter: expected the folder of a LoRA adapter, got '{bench.folder}/none', which does not exist" in done.errors, done.errors)
    shutil.move(first, bench.folder / "moved")
    expect(run(bench, job, "--limit=3", f"--adapter={bench.folder}/moved"), 0, "extended from another place")
    done = expect(bench.command("check", job, "--limit=3", f"--adapter={bench.folder}/moved"), 0, "check")
    check(f"  adapter          {bench.folder}/moved, rank 4, 4 matrices\n" in done.output, done.output)
    done = expect(bench.command("inspect", bench.folder / "moved"), 0, "inspect")
    shown = dict(line.split(None, 1) for line in done.output.splitlines())
    check(shown["kind"] == "LoRA adapter" and shown["scale"] == "2.0" and shown["modules"] == "o_proj, q_proj", done.output)
    done = expect(bench.command("generate", bench.model, "--prompt", "the sea", "--max-tokens=4", f"--adapter={bench.folder}/moved"), 0, "generate")
    check("(rank 4, 4 matrices)" in done.errors, done.errors)
    (other / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true}')
    line = f"{other}/adapter_config.json: use_dora: expected false, null or nothing in it, as plain LoRA has, got true"
    done = expect(run(bench, job, f"--adapter={other}", f"--output={bench.folder}/dora"), 1, "DoRA")
    check(line in done.errors and done.errors.count("error:") == 1, done.errors)
    done = expect(bench.command("check", job, f"--adapter={other}", f"--output={bench.folder}/dora"), 1, "check: DoRA")
    check(line in done.output, done.output)


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (
        adapter, identity, lost_results, corrected, damaged_statistics, superseded, printing)}))
