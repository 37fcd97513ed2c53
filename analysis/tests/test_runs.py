"""Run folders as people have them: whole, unfinished, damaged, of a sweep."""

import json

import pytest
from conftest import DATA, NGRAM, SAMPLES, SWEEP, one_run, write_lines

from longhaul_analysis import AnalysisError, UsageError, open_runs
from longhaul_analysis.runs import tree_size


def test_a_recorded_run():
    run = one_run(NGRAM)
    items = run.read_items()
    assert [item.id for item in items] == ["harbour", "letter", "castle", "silence"]
    assert run.keys["draft"] == "ngram"
    assert run.keys["task"] == "prompts"
    assert "stop" not in run.keys  # not set
    assert all(item.stats["num_tokens"] == item.num_tokens == len(item.token_ids) for item in items)
    assert all(item.reference for item in items)
    assert open_runs([SAMPLES])[0].keys["stop"] == '"."'


def test_a_sweep_is_its_runs():
    names = [f"draft={draft},seed={seed}" for draft in ("ar", "ngram") for seed in (1, 2)]
    assert [run.name for run in open_runs([SWEEP])] == names
    assert [run.name for run in open_runs([DATA])] == ["samples", *(f"sweep/{name}" for name in names)]


def test_runs_of_one_name_are_told_apart_by_their_paths(make_run):
    folders = [make_run("a/run", [{}]), make_run("b/run", [{}])]
    assert [run.name for run in open_runs(folders)] == [str(folder) for folder in folders]


def test_folders_are_sorted_as_people_count(make_run):
    folders = [make_run(f"sweep/n={n}", [{}]) for n in (10, 9, 100)]
    assert [run.name for run in open_runs([folders[0].parent])] == ["n=9", "n=10", "n=100"]


def test_a_baseline_inside_a_run_is_not_a_run_of_its_own(make_run):
    run = make_run("run", [{}])
    make_run("run/baseline", [{}])
    assert len(open_runs([run])) == 1


def test_what_is_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for name, found in (("nowhere", "nothing there"), ("file", "a file"), ("folder", "a folder without job.cfg")):
        with pytest.raises(UsageError, match=f"{name}: expected a run folder or a folder of runs, got {found}"):
            open_runs([tmp_path / name])


def test_an_unfinished_run_says_how_much_is_missing(copy_of):
    folder = copy_of(NGRAM)
    (folder / "results.jsonl").unlink()
    (folder / "results").mkdir()
    journal = [{"index": 0, "sample": 0, "id": "harbour"}, {"index": 2, "sample": 0}, {"index": 0, "sample": 0}]
    write_lines(folder / "results" / "0-1.jsonl", journal)
    with (folder / "results" / "0-1.jsonl").open("a") as file:
        file.write('{"index": 3, "sam')
    with pytest.raises(AnalysisError, match="unfinished, 2 of 4 items are missing; start its job again"):
        one_run(folder).read_items()
    (folder / "summary.json").unlink()
    with pytest.raises(AnalysisError, match="unfinished, only 2 items are done"):
        one_run(folder).read_items()


def test_results_of_before_an_extension_are_not_the_whole(copy_of):
    folder = copy_of(NGRAM)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "items": 9}))
    with pytest.raises(AnalysisError, match="the run is unfinished"):
        one_run(folder).read_items()


DAMAGED = [
    ("results.jsonl", "", "expected at least one item, got none"),
    ("results.jsonl", "{\n", "results.jsonl:1: expected a JSON object, got '{'; the file is damaged"),
    ("results.jsonl", "[1]\n", r"results.jsonl:1: expected a JSON object, got '\[1\]'"),
    ("results.jsonl", "[" * 100_000, "results.jsonl:1: expected a JSON object"),
    ("results.jsonl", '{"id": 3}\n', "results.jsonl:1: id: expected a text, got '3'"),
    ("results.jsonl", '{"id": "a", "text": "\\ud800"}\n', "results.jsonl:1: text: expected text, got half a surrogate"),
    ("results.jsonl", '{"id": "a", "text": ""}\n', "num_tokens: expected an integer, got nothing"),
    (
        "results.jsonl",
        '{"id": "a", "text": "", "num_tokens": 1, "finish_reason": "stop", "nll": "x"}\n',
        "nll: expected a number",
    ),
    (
        "results.jsonl",
        '{"id": "a", "text": "", "num_tokens": 1, "finish_reason": "stop", "loss_by_position": [[1, 2]]}\n',
        r"loss_by_position: expected \[first position, tokens, nll\] each",
    ),
    (
        "results.jsonl",
        '{"id": "a", "text": "", "num_tokens": 1, "finish_reason": "stop", "logprobs": [[]]}\n',
        "logprobs: expected",
    ),
    (
        "results.jsonl",
        '{"id": "a", "text": "", "num_tokens": 1, "finish_reason": "stop", "token_ids": ["a"]}\n',
        "token_ids: expected integers",
    ),
    ("stats.jsonl", '{"id": "a", "steps": "many"}\n', "stats.jsonl:1: steps: expected an integer, got '\"many\"'"),
    ("stats.jsonl", '{"id": "a", "seconds": Infinity}\n', "stats.jsonl:1: seconds: expected a number, got 'Infinity'"),
    (
        "stats.jsonl",
        '{"id": "a", "by_length": [{"tokens": 1}]}\n',
        "stats.jsonl:1: by_length: expected rows of tokens and seconds, got",
    ),
    ("stats.jsonl", "nonsense\n", "stats.jsonl:1: expected a JSON object, got 'nonsense'"),
    ("references.jsonl", "", "references.jsonl: expected a reference a line, got an empty file"),
    ("references.jsonl", '{"id": "harbour", "reference": 3}\n', 'references.jsonl:1: expected {"id": …, "reference"'),
    ("references.jsonl", "one\ntwo\n", "references.jsonl: expected 4 lines, as many as .* has inputs, got 2"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_damaged_files_are_named(name, content, message, copy_of):
    folder = copy_of(NGRAM)
    (folder / name).write_text(content)
    with pytest.raises(AnalysisError, match=message) as caught:
        one_run(folder).read_items()
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(copy_of):
    folder = copy_of(NGRAM)
    (folder / "results.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(AnalysisError, match="results.jsonl: expected UTF-8 text, got other bytes"):
        one_run(folder).read_items()


def test_a_job_file_that_is_none(copy_of):
    folder = copy_of(NGRAM)
    (folder / "job.cfg").write_text("# Job\ntask\n")
    with pytest.raises(AnalysisError, match="job.cfg:2: expected 'key = value', got 'task'"):
        _ = one_run(folder).keys


def test_separators_inside_texts_do_not_end_lines(make_run):
    folder = make_run("run", [{"text": "a\u2028b\x85c"}])
    lines = (folder / "results.jsonl").read_text().encode().decode("unicode_escape")
    (folder / "results.jsonl").write_text(lines, encoding="utf-8")
    assert one_run(folder).read_items()[0].text == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("5", (5, 5)),
        ("4x3", (3, 12)),
        ("4x8:16", (8, 16)),
        ("2,2,1", (3, 10)),
        ("12,1,1,1,1", (5, 60)),
        ("auto", None),
        ("", None),
    ],
)
def test_depth_and_nodes_of_a_draft_tree(shape, size):
    assert tree_size(shape) == size
