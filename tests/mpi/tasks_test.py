#!/usr/bin/env python3
"""Every task, from its data files to its results, with the real program.

usage: tasks_test.py BINARY CASE
"""

import json

from harness import DEMO_MODEL, check, digest, main, make_prompts, results, statistics
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


def messages(bench):
    """Prompts and messages in one file; a line with a bad option fails by itself."""
    lines = [{"prompt": "the sea"}, {"id": "m", "messages": [{"role": "user", "content": "the ship"}]},
             {"prompt": "the sea", "options": {"batch": 1}}, {"prompt": "the sea", "options": {"temprature": 1}}, "{"]
    job = bench.job(data=write_lines(bench.folder / "p.jsonl", lines), chat_template="llama3")
    expect(bench.run(job, 2), 3, "bad lines")
    check_run(bench, ["1", "m", "3", "4", "5"], {"3": "options.batch", "4": "'temperature'", "5": "data:5"})


if __name__ == "__main__":
    raise SystemExit(main({case.__name__: case for case in (wmt, xsum, dolly, messages, loops, dry)}))
