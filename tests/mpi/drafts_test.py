#!/usr/bin/env python3
"""Draft models, with the real program under mpirun: ranks, tensor parallel, kills, sweeps.

usage: drafts_test.py BINARY CASE
"""

from harness import DEMO_MODEL, check, digest, main, make_prompts, make_tiny_model, results, statistics
from mpi_test import expect, wait_for_checkpoint

TREES = {"sd": "3", "spectr": "3x2", "specinfer": "3x2", "rsd-c": "2,2,1", "rsd-s": "3x3"}


def make_job(bench, **keys):
    """The target drafts for itself at another temperature, so some drafts are accepted and some rejected."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    return bench.job(**{"max_tokens": 24, "draft_model": bench.model, "draft_temperature": 1.5, **keys})


def run(bench, job, ranks, name, *options):
    """Runs into its own folder and returns the result bytes; drafts must have been both accepted and rejected."""
    output = bench.folder / name
    expect(bench.run(job, ranks, f"--output={output}", *options), 0, name)
    drafted, accepted = (sum(line[key] for line in statistics(output)) for key in ("drafted", "accepted"))
    check(("--draft=ar" in options) == (drafted == 0), f"{name}: drafted {drafted}")
    check(drafted == 0 or 0 < accepted < drafted, f"{name}: accepted {accepted} of {drafted}: nothing was tested")
    return digest(output)


def coupled(bench):
    """Every method gives the text of plain decoding, wherever its draft model runs."""
    job = make_job(bench)
    expected = run(bench, job, 1, "plain", "--draft=ar")
    for name, tree in TREES.items():
        got = run(bench, job, 2, name, f"--draft={name}", f"--draft-tree={tree}")
        check(got == expected, f"{name}: another text than plain decoding")
    for place in ("replicated", "sharded"):
        options = ("--draft=rsd-s", "--draft-tree=3x3", "--tensor-parallel=2", f"--draft-parallel={place}")
        check(run(bench, job, 2, place, *options) == expected, f"{place}: another text")
    line = statistics(bench.folder / "rsd-s")[0]
    # The draft is as large as the target: each of the 3 levels costs a call.
    check(abs(line["mbsu"] - line["block_efficiency"] / 4) < 1e-6, f"mbsu {line}")
    check(line["tokens_per_second"] > 0, f"token rate {line}")
    check("mbsu" not in statistics(bench.folder / "plain")[0], "plain decoding has none")


def sampled(bench):
    """A sampling rule also gives one text per seed on any ranks, and it differs from plain decoding's."""
    rules = {"sd": "rejection", "spectr": "k-seq", "specinfer": "multi-round", "rsd-c": "recursive", "rsd-s": "recursive"}
    job = make_job(bench)
    plain = run(bench, job, 1, "plain", "--draft=ar")
    for name, rule in rules.items():
        options = (f"--draft={name}", f"--draft-tree={TREES[name]}", f"--verify={rule}")
        first = run(bench, job, 1, f"{name}-1", *options, "--batch=4")
        check(run(bench, job, 2, f"{name}-2", *options, "--batch=1") == first, f"{name}: another text on two ranks")
        check(first != plain, f"{name}: the text of plain decoding: the rule drew nothing")
    for place in ("replicated", "sharded"):
        options = ("--draft=rsd-s", f"--draft-tree={TREES['rsd-s']}", "--verify=recursive", "--tensor-parallel=2",
                   f"--draft-parallel={place}")
        check(run(bench, job, 2, place, *options) == digest(bench.folder / "rsd-s-1"), f"{place}: another text")


def kill_and_resume(bench, job, name, *options):
    """Killed after a checkpoint and resumed on other ranks, a run gives the text of the uninterrupted run."""
    whole = run(bench, job, 1, f"whole-{name}", *options)
    output = bench.folder / f"killed-{name}"
    options = (f"--output={output}", *options)
    launch = bench.start(job, 2, *options)
    wait_for_checkpoint(output)
    check(launch.alive(), "the launch is under way when it is killed")
    launch.kill_all()
    expect(bench.run(job, 1, *options), 0, f"{name}: resumed")
    check(any(line["resumes"] > 0 for line in statistics(output)), "items went on from a checkpoint")
    check(digest(output) == whole, f"{name}: another text after the kill")
    return whole


def killed(bench):
    """Kill and resume under both kinds of rules."""
    job = make_job(bench, max_tokens=600, checkpoint_tokens=150, draft="rsd-s", draft_tree="3x3")
    for rule in ("coupled", "recursive"):
        kill_and_resume(bench, job, rule, f"--verify={rule}")


def short_context(bench):
    """Drafting continues when a text outgrows the draft model's context, and the text is the same in all runs."""
    short = make_tiny_model(bench.folder / "short", context=64)
    job = make_job(bench, max_tokens=400, checkpoint_tokens=100, draft="rsd-s", draft_tree="3x3", draft_model=short)
    plain = run(bench, job, 1, "plain", "--draft=ar")
    for rule in ("coupled", "recursive"):
        whole = kill_and_resume(bench, job, rule, f"--verify={rule}")
        check((whole == plain) == (rule == "coupled"), f"{rule}: not the text it should be")
        for line in statistics(bench.folder / f"whole-{rule}"):
            check(line["drafted"] > 7 * line["target_calls"], f"{rule}: drafts ended with the context: {line}")
    for place in ("replicated", "sharded"):
        options = ("--tensor-parallel=2", "--batch=1", "--verify=recursive", f"--draft-parallel={place}")
        check(run(bench, job, 2, place, *options) == whole, f"{place}: another text")


def padded(bench):
    """Vocabularies of one tokenizer may be padded differently: ids that one of the models lacks are not drafted."""
    wide = make_tiny_model(bench.folder / "wide", padding=64)
    job = make_job(bench, max_tokens=100)
    rules = {"sd": "rejection", "spectr": "k-seq", "rsd-s": "recursive"}
    for name, rule in rules.items():
        options = (f"--draft={name}", f"--draft-tree={TREES[name]}", f"--verify={rule}")
        same = run(bench, job, 1, f"{name}-same", *options)
        check(run(bench, job, 1, f"{name}-wide", *options, f"--draft-model={wide}") == same, f"{name}: padding was drafted")
        of_wide = run(bench, job, 1, f"{name}-of-wide", *options, f"--model={wide}")
        for place in ("replicated", "sharded"):
            split = ("--tensor-parallel=2", f"--draft-parallel={place}")
            got = run(bench, job, 2, f"{name}-{place}", *options, f"--model={wide}", *split)
            check(got == of_wide, f"{name}, {place}: another text")
    plain = run(bench, job, 1, "plain", "--draft=ar", f"--model={wide}", "--token-ids")
    ids = {token for line in results(bench.folder / "plain") for token in line["token_ids"]}
    check(max(ids) >= 4096, "the target emits no id that the draft model lacks")
    coupled_text = run(bench, job, 1, "of-wide", "--draft=rsd-s", "--draft-tree=3x3", f"--model={wide}", "--token-ids")
    check(coupled_text == plain, "another text than plain decoding")


def heads(bench):
    """Heads on the target's own hidden states: the text of plain decoding, and under a sampling rule one text, also
    after a kill."""
    make_prompts(bench.folder / "prompts.jsonl", 4)
    job = bench.job(model=DEMO_MODEL, draft="medusa", draft_model=DEMO_MODEL.parent / "medusa", draft_tree="3,2,2", max_tokens=150,
                    checkpoint_tokens=40, temperature=0.8, min_p=0.1)
    plain = run(bench, job, 1, "plain", "--draft=ar")
    for rule in ("coupled", "recursive"):
        whole = kill_and_resume(bench, job, rule, f"--verify={rule}")
        check((whole == plain) == (rule == "coupled"), f"{rule}: the text of plain decoding, or another one")
        got = run(bench, job, 2, f"{rule}-tp", f"--verify={rule}", "--tensor-parallel=2", "--batch=3")
        check(got == whole, f"{rule}: another text on a model in two parts")
    line = statistics(bench.folder / "whole-coupled")[0]
    check(line["draft_calls"] <= line["target_calls"], f"a tree costs one call: {line}")
    done = expect(bench.run(job, 1, f"--model={bench.model}"), 1, "heads of another model")
    check("hidden_size: expected" in done.error_lines()[0], done.errors)
    done = expect(bench.run(job, 1, "--draft-tree=2,2,2,2"), 2, "more levels than heads")
    check("draft-tree: expected at most 3 levels" in done.error_lines()[0], done.errors)


def refused(bench):
    """Settings that do not go together give a one-line error before anything is written."""
    job = make_job(bench)
    other = make_tiny_model(bench.folder / "other", seed=8)
    config = other / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 4096', '"vocab_size": 4000'))
    cases = [
        (2, ("--draft=rsd-s", "--verify=k-seq"), "verify: expected coupled"),
        (2, ("--draft=ngram",), "draft-model: expected no draft model"),
        (2, ("--draft=spectr", "--draft-tree=2,2"), "draft-tree: expected chains x length"),
        (1, ("--draft=sd", f"--draft-model={other}"), "vocab_size: expected the target's"),
        (1, ("--draft=sd", f"--draft-model={bench.folder}/none"), "command line: draft-model: expected the folder of a draft model, got '"),
    ]
    for code, options, words in cases:
        done = expect(bench.run(job, 2, *options), code, " ".join(options))
        check(len(done.error_lines()) == 1 and words in done.error_lines()[0], f"{options}: {done.errors}")
    check(not (bench.folder / "run" / "results.jsonl").exists(), "nothing was generated")
    # If one rank lacks the files, no other rank waits for it.
    here, elsewhere = bench.folder / "here", bench.folder / "elsewhere"
    make_tiny_model(here / "dm")
    elsewhere.mkdir()
    for place in ("sharded", "replicated"):
        options = ("--draft=sd", "--draft-model=/proc/self/cwd/dm", "--watchdog-seconds=10", "--tensor-parallel=2")
        done = bench.run(job, [here, elsewhere], *options, f"--draft-parallel={place}", limit=40)
        lines = expect(done, 1, f"a folder of one rank, {place}").error_lines()
        check(len(lines) == 1 and "dm', which does not exist" in lines[0], done.errors)
    # Under a sampling rule the draft model is part of the job identity, because another one gives another text.
    first = (f"--output={bench.folder}/mine", "--draft=sd", "--verify=rejection")
    expect(bench.run(job, 1, *first), 0, "sampled")
    second = make_tiny_model(bench.folder / "second", seed=9)
    done = expect(bench.run(job, 1, *first, f"--draft-model={second}", "--max-tokens=30"), 2, "another draft model")
    check("draft-model" in done.error_lines()[0], done.errors)
    check(len(results(bench.folder / "mine")) == 4, "what was there stays")


def experiments(bench):
    """A sweep over decoders with their own rules has one row of plain decoding per seed."""
    job = make_job(bench, baseline="true", max_tokens=8, output=bench.folder / "sweep")
    lines = ["variant sd = draft=sd draft-tree=2 verify=rejection", "variant rsd-c = draft=rsd-c draft-tree=2,1 verify=recursive",
             "grid seed = 1 | 2"]
    job.write_text(job.read_text() + "\n".join(lines) + "\n")
    expect(bench.run(job, 2, verb="sweep"), 0, "the sweep")
    table = (bench.folder / "sweep" / "sweep.csv").read_text().splitlines()
    names = [line.split(",")[0].strip('"') for line in table[1:]]
    points = [line.split('",')[0].strip('"') for line in table[1:] if line.startswith('"')]
    check(points == [f"{name},seed={seed}" for seed in (1, 2) for name in ("draft=ar", "sd", "rsd-c")], f"{points} {names}")
    check(",mbsu," in table[0], table[0])


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (coupled, sampled, killed, short_context, padded, heads, refused, experiments)}))
