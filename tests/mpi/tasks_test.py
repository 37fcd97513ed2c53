#!/usr/bin/env python3
"""Every task, from its data files to its results, with the real program.

usage: tasks_test.py BINARY CASE
"""

import json
import shutil
import signal

from harness import (DEMO_MODEL, REPOSITORY, check, digest, journal_keys, main, make_prompts, results, statistics,
                     wait_for)
from mpi_test import expect


def write_lines(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def check_run(bench, ids, failed):
    lines = results(bench.folder / "run")
    check([line["id"] for line in lines] == ids, f"ids {[line['id'] for line in lines]}")
    bad = {line["id"]: line["error"] for line in lines if line["finish_reason"] == "error"}
    check(set(bad) == set(failed), f"failed: {bad}")
    for name, word in failed.items():
        check(word in bad[name] and str(bench.folder) not in bad[name], f"{name}: {bad[name]}")
    check(all(line["num_tokens"] == 8 for line in lines if line["id"] not in bad), "the others have their tokens")


def wmt(bench):
    """Two line files, on one rank and on two; another template makes another job."""
    source = write_lines(bench.folder / "t.de", ["Guten Tag.", "", "Es regnet.", "Wir gehen."])
    write_lines(bench.folder / "t.en", ["Good day.", "x", "It rains.", "We go."])
    job = bench.job(task="wmt", data=source, overlong="truncate-left")
    expect(bench.run(job, 2), 3, "an empty line")
    check_run(bench, ["1", "2", "3", "4"], {"2": "empty line"})
    references = [json.loads(line) for line in (bench.folder / "run" / "references.jsonl").read_text().splitlines()]
    check(references == [{"id": "1", "reference": "Good day."}, {"id": "3", "reference": "It rains."},
                         {"id": "4", "reference": "We go."}], f"the answers beside the results: {references}")
    expect(bench.run(job, 1, f"--output={bench.folder}/one"), 3, "one rank")
    check(digest(bench.folder / "one") == digest(bench.folder / "run"), "the same bytes")
    other = write_lines(bench.folder / "t.txt", ["{source}"])
    done = expect(bench.run(job, 1, f"--template={other}"), 2, "another template")
    check("template" in done.error_lines()[0], done.errors)
    write_lines(bench.folder / "short.en", ["Good day."])
    done = expect(bench.run(job, 1, f"--reference={bench.folder}/short.en", f"--output={bench.folder}/short"), 1, "lengths")
    check("t.de" in done.error_lines()[0] and "short.en" in done.error_lines()[0], done.errors)


def xsum(bench):
    lines = [{"id": "a", "document": "Much happened.", "summary": "Much."}, {"id": "b", "document": "More happened."}]
    expect(bench.run(bench.job(task="xsum", data=write_lines(bench.folder / "x.jsonl", lines)), 1), 3, "a line without summary")
    check_run(bench, ["a", "b"], {"b": "summary"})


def loops(bench):
    """Items end where they repeat themselves, on two ranks of one replica as on one; drafts and a stop change nothing."""
    prompts = make_prompts(bench.folder / "p.jsonl", 4)
    keys = {"task": "prompts", "data": prompts, "max_tokens": 150, "temperature": 0, "token_ids": "true",
            "repetition_penalty": 0.1, "penalty_window": 4}
    job = bench.job(**keys, stop_loops=10)
    expect(bench.run(job, 2, "--tensor-parallel=2"), 0, "two ranks")
    lines = results(bench.folder / "run")
    ends = [line["num_tokens"] for line in lines if line["finish_reason"] == "repetition"]
    check(len(ends) >= 2 and max(ends) < 150, f"loops: {[(line['finish_reason'], line['num_tokens']) for line in lines]}")
    for line in lines:
        tokens = line["token_ids"]
        ended = [n for n in range(11, len(tokens) + 1) for p in range(1, min(10, n - 10) + 1)
                 if tokens[n - 10:n] == tokens[n - 10 - p:n - p]]
        check(ended[:1] == ([len(tokens)] if line["finish_reason"] == "repetition" else []), f"{line['id']}: {ended}")
    expect(bench.run(job, 1, f"--output={bench.folder}/drafts", "--draft=ngram", "--batch=1"), 0, "drafts")
    check(digest(bench.folder / "drafts") == digest(bench.folder / "run"), "the same bytes")
    done = expect(bench.run(job, 1, "--stop-loops=11"), 2, "another length")
    check("stop-loops" in done.error_lines()[0], done.errors)


def dry(bench):
    """DRY sampling: one text on one rank and on two of one replica, with and without drafts; items may set their own."""
    lines = [{"prompt": "The sea, the sea, the"}, {"prompt": "One. Two. One. Two. One.", "options": {"dry-base": 3}},
             {"prompt": "old man, old man, old", "options": {"dry-breakers": []}}, {"prompt": "a", "options": {"dry-multiplier": 0}}]
    keys = {"data": write_lines(bench.folder / "p.jsonl", lines), "model": DEMO_MODEL, "max_tokens": 40, "temperature": 0.6,
            "repetition_penalty": 0.8, "penalty_window": 30}
    job = bench.job(**keys, dry_multiplier=0.8, dry_allowed_length=1)
    expect(bench.run(job, 1, "--draft=ar"), 0, "plain")
    expect(bench.run(job, 2, f"--output={bench.folder}/two", "--tensor-parallel=2", "--draft=ngram"), 0, "two ranks")
    expect(bench.run(job, 1, f"--output={bench.folder}/self", "--batch=4", "--draft=self", "--draft-tree=4"), 0, "self")
    check(sum(line["accepted"] for line in statistics(bench.folder / "self")) > 5, "no draft was accepted")
    for other in ("two", "self"):
        check(digest(bench.folder / other) == digest(bench.folder / "run"), f"{other}: other bytes")
    texts = [line["text"] for line in results(bench.folder / "run")]
    expect(bench.run(job, 1, f"--output={bench.folder}/off", "--dry-multiplier=0"), 0, "without")
    without = [line["text"] for line in results(bench.folder / "off")]
    check(texts[3] == without[3] and all(texts[n] != without[n] for n in range(2)), f"{texts} {without}")
    done = expect(bench.run(job, 1, "--dry-breakers=!"), 2, "another identity")
    check("dry-breakers" in done.error_lines()[0], done.errors)


def dolly(bench):
    lines = [{"instruction": "Why?", "context": "", "response": "So."},
             {"instruction": "What?", "context": "It rains.", "response": "Rain.", "category": "qa"}]
    data = write_lines(bench.folder / "d.jsonl", lines)
    job = bench.job(task="dolly", data=data, chat="true")
    done = expect(bench.run(job, 1), 1, "no chat template")
    check("chat-template" in done.error_lines()[0], done.errors)
    expect(bench.run(job, 1, "--chat-template=llama2"), 0, "chat")
    check_run(bench, ["1", "2"], {})


def longwriter(bench):
    """The lengths that prompts ask for are beside the results, for the analysis."""
    lines = [{"prompt": "Write a 1000-word tale.", "length": 1000}, {"prompt": "Write."}, {"id": "c", "prompt": "Write.", "length": 2}]
    job = bench.job(task="longwriter", data=write_lines(bench.folder / "l.jsonl", lines))
    expect(bench.run(job, 1), 3, "a line without length")
    check_run(bench, ["1", "2", "c"], {"2": "length"})
    lengths = [json.loads(line) for line in (bench.folder / "run" / "references.jsonl").read_text().splitlines()]
    check(lengths == [{"id": "1", "length": 1000}, {"id": "c", "length": 2}], f"lengths: {lengths}")
    for shard in (0, 1):
        expect(bench.run(job, 1, f"--shard={shard}/2", f"--output={bench.folder}/parts"), 3 if shard else 0, "shard")
    whole = (bench.folder / "run" / "references.jsonl").read_bytes()
    check((bench.folder / "parts" / "references.jsonl").read_bytes() == whole, "the same lengths from shards")


def messages(bench):
    """Prompts and messages in one file; a line with a bad option fails by itself."""
    lines = [{"prompt": "the sea"}, {"id": "m", "messages": [{"role": "user", "content": "the ship"}]},
             {"prompt": "the sea", "options": {"batch": 1}}, {"prompt": "the sea", "options": {"temprature": 1}}, "{"]
    job = bench.job(data=write_lines(bench.folder / "p.jsonl", lines), chat_template="llama3")
    expect(bench.run(job, 2), 3, "bad lines")
    check_run(bench, ["1", "m", "3", "4", "5"], {"3": "options.batch", "4": "'temperature'", "5": "data:5"})
    template = bench.folder / "faulty.jinja"
    template.write_text("{{ messages[0].content + 1 }}")
    folder = f"--output={bench.folder}/other"
    for option, word in ((f"--chat-template={template}", "faulty.jinja:1"), ("--chat-template=auto", "model: chat_template: expected")):
        expect(bench.run(job, 1, option, folder), 3, option)
        errors = [line["error"] for line in results(bench.folder / "other") if line["finish_reason"] == "error"]
        check(any(word in error for error in errors), errors)
        check(not any(str(bench.folder) in error for error in errors), f"results do not depend on where the model lies: {errors}")
        shutil.rmtree(bench.folder / "other")


def tables(bench):
    """A dataset in Parquet files, where the build has Apache Arrow: the same bytes on one rank and on two, and after a move."""
    data = bench.folder / "hub"
    shutil.copytree(REPOSITORY / "tests" / "data" / "tables" / "hub", data)
    job = bench.job(data=data, column="prompt=question", split="train")
    expect(bench.run(job, 2), 3, "a repeated id and a row without a question")
    check_run(bench, ["row-1", "row-2", "row-3", "row-1", "5"], {"row-1": "every id once", "5": "prompt"})
    data.rename(bench.folder / "moved")
    expect(bench.run(job, 1, f"--output={bench.folder}/one", f"--data={bench.folder}/moved"), 3, "one rank")
    check(digest(bench.folder / "one") == digest(bench.folder / "run"), "the same bytes")
    done = expect(bench.run(job, 1, f"--data={bench.folder}/moved", "--column=prompt=summary"), 2, "another column")
    check("column" in done.error_lines()[0], done.errors)


def requests(count):
    """Requests of both kinds, one of them bad."""
    for number in range(count):
        body = {"model": "tiny", "max_tokens": 200 + number, "seed": number, "temperature": 0.5, "logprobs": number % 2 == 0}
        chat = number % 2 == 0
        body |= {"messages": [{"role": "user", "content": f"the ship {number}"}], "top_logprobs": 2} if chat else {"prompt": "the sea", "logprobs": 1}
        url = "/v1/chat/completions" if chat else "/v1/completions"
        yield {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": body}
    yield {"custom_id": "bad", "method": "POST", "url": "/v1/completions", "body": {"prompt": "the sea", "n": 3}}


def openai_batch(bench):
    """Answers in the form of the API; after a kill, on more ranks and in shards they are the same bytes."""
    data = write_lines(bench.folder / "b.jsonl", list(requests(8)))
    job = bench.job(task="openai-batch", data=data, chat_template="llama2", checkpoint_tokens=100, checkpoint_seconds=0.1)
    done = expect(bench.run(job, 1), 3, "one bad request")
    check("answers" in done.output and "batch_output.jsonl" in done.output, done.output)
    answers = (bench.folder / "run" / "batch_output.jsonl").read_bytes()
    lines = [json.loads(line) for line in answers.splitlines()]
    check([line["custom_id"] for line in lines] == [f"request-{n}" for n in range(8)] + ["bad"], "order of the input")
    for number, (line, result) in enumerate(zip(lines[:8], results(bench.folder / "run"), strict=False)):
        body = line["response"]["body"]
        choice = body["choices"][0]
        text = choice["message"]["content"] if number % 2 == 0 else choice["text"]
        tokens = choice["logprobs"]["content"] if number % 2 == 0 else choice["logprobs"]["tokens"]
        check(text == result["text"] and len(tokens) == result["num_tokens"] == 200 + number, f"{number}: {line}")
        usage = body["usage"]
        check(usage["completion_tokens"] == 200 + number and usage["prompt_tokens"] > 0, f"{number}: {usage}")
    check("data:9: body.n" in lines[8]["error"]["message"] and lines[8]["response"] is None, lines[8])
    printed = expect(bench.command("results", bench.folder / "run", "--form=openai"), 0, "the same form on demand")
    check(printed.output.encode() == answers, "printed as written")

    killed = bench.start(job, 2, f"--output={bench.folder}/killed")
    wait_for(lambda: len(list((bench.folder / "killed" / "checkpoints").glob("*.h5"))) > 2, "checkpoints")
    killed.kill_all()
    check(not (bench.folder / "killed" / "batch_output.jsonl").exists(), "killed before its end")
    expect(bench.run(job, 2, f"--output={bench.folder}/killed"), 3, "resumed")
    check((bench.folder / "killed" / "batch_output.jsonl").read_bytes() == answers, "the same bytes after a kill")
    for shard in (0, 1):
        expect(bench.run(job, 1, f"--shard={shard}/2", f"--output={bench.folder}/parts"), 3 if shard == 0 else 0, "shard")
    check((bench.folder / "parts" / "batch_output.jsonl").read_bytes() == answers, "the same bytes from shards")


def refused_forms(bench):
    """Requests have one form; other runs have none."""
    make_prompts(bench.folder / "prompts.jsonl", 1)
    expect(bench.run(bench.job(), 1), 0, "prompts")
    for options, words in (([], "task = prompts"), (["--partial"], "task = prompts")):
        done = expect(bench.command("results", bench.folder / "run", "--form=openai", *options), 2, "form of prompts")
        check(words in done.error_lines()[0], done.errors)
    done = expect(bench.command("results", bench.folder / "run", "--form=other"), 2, "another form")
    check("expected openai, got 'other'" in done.error_lines()[0], done.errors)


def multiple_choice(bench):
    """Choices get the log-probabilities that scoring each as a continuation gives; ranks, batch and a stop change none."""
    text = " ".join(path.read_text() for path in sorted((DEMO_MODEL.parent / "books").glob("[0-9]*.txt"))).split()
    questions, pairs = [], []
    for number in range(40):
        begin = 100 + 90 * number
        prompt = " ".join(text[:100] + text[begin : begin + 30])  # all begin alike
        choices = [" ".join(text[at : at + 6]) for at in (begin + 30, begin + 90, begin + 120)][number % 2 :]
        questions.append({"id": f"q{number}", "prompt": prompt, "choices": choices, "answer": 0})
        pairs += [{"id": f"q{number}", "prompt": prompt, "continuation": " " + choice} for choice in choices]
    for number, pair in enumerate(pairs):
        pair["id"] += f"-{number}"
    for name, lines in (("prompts.jsonl", questions), ("pairs.jsonl", pairs)):
        (bench.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = bench.job(model=DEMO_MODEL, max_tokens=100)
    whole, run, scored = bench.folder / "whole", bench.folder / "run", bench.folder / "scored"
    choose = "--mode=multiple-choice"
    expect(bench.run(job, 1, choose, "--batch=1", f"--output={whole}"), 0, "on one rank")
    expect(bench.run(job, 2, choose, "--batch=3", "--limit=13", f"--output={run}"), 0, "some of them")
    launch = bench.start(job, 2, choose, "--batch=3", f"--output={run}")
    wait_for(lambda: len(journal_keys(run)) > 13, "more are done")
    launch.signal(signal.SIGUSR1)
    check(launch.wait().code in (0, 75), "stopped, if it was not done already")
    expect(bench.run(job, 2, choose, "--tensor-parallel=2", f"--output={run}"), 0, "resumed on other ranks")
    check(digest(run) == digest(whole), "the same bytes")
    expect(bench.run(job, 1, "--mode=perplexity", f"--data={bench.folder / 'pairs.jsonl'}", f"--output={scored}"), 0, "scored")
    logprobs = [value for line in results(whole) for value in line["choice_logprobs"]]
    check(logprobs == [-line["nll"] for line in results(scored)], "the bits of scoring each choice by itself")
    counts = json.loads((scored / "summary.json").read_text())
    greedy = sum(line["greedy_tokens"] for line in results(scored))
    check(0 < greedy == counts["greedy_tokens"] < counts["judged_tokens"], f"tokens of greedy decoding: {counts}")
    exact = sum(line["acc"] for line in results(scored))
    check(exact == sum(line["greedy_tokens"] == line["num_tokens"] for line in results(scored)), "all tokens are greedy")
    check(abs(counts["acc"] * counts["continuations"] - exact) < 1e-6, f"continuations: {counts}")
    summary = json.loads((whole / "summary.json").read_text())
    right = sum(line["acc"] for line in results(whole))
    check(summary["questions"] == 40 and summary["acc"] * 40 == right > 13, f"more than by chance: {summary}")
    check(summary["cached_tokens"] > 0.8 * summary["prompt_tokens"], f"prompts are computed once: {summary}")
    references = [json.loads(line) for line in (whole / "references.jsonl").read_text().splitlines()]
    check(references == [{"id": line["id"], "reference": line["choices"][0]} for line in questions], "the right choices")
    for line, question in zip(results(whole), questions):
        best = max(range(len(question["choices"])), key=lambda choice: line["choice_logprobs"][choice])
        check(line["choice"] == best and line["text"] == question["choices"][best], f"{line}")


CASES = (wmt, xsum, dolly, longwriter, messages, loops, dry, tables, openai_batch, multiple_choice, refused_forms)

if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in CASES}))
