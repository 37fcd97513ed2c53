"""The installed command, as people type it."""

import csv
import io
import json

import pandas as pd
import pytest
from conftest import NGRAM, PLAIN, SAMPLES, SWEEP, program

from longhaul_analysis.cli import main


def test_the_installed_command():
    done = program("table", SWEEP, "--columns", "bleu,speedup")
    assert done.returncode == 0, done.stderr
    head, rule, plain, ngram, *_ = done.stdout.splitlines()
    assert head.split("|")[1:3] == [" draft ", " BLEU ".rjust(len(head.split("|")[2]))]
    assert set(rule) == set("|-: ")
    assert "ar" in plain
    assert "ngram" in ngram
    assert "±" in ngram
    assert done.stderr == ""


def test_scores_for_people(capsys):
    assert main(["scores", str(NGRAM)]) == 0
    text = capsys.readouterr().out
    for expected in ("draft=ngram,seed=1: 4 items", "BLEU", "nrefs:1|case:mixed|eff:no|tok:13a", "stemmer:porter"):
        assert expected in text
    assert main(["scores", str(SAMPLES), "--measures", "bleu,tokens_per_second"]) == 0
    text = capsys.readouterr().out
    assert "8 items, 2 samples per prompt" in text
    assert "sample 0  sample 1" in text


def test_scores_for_programs(capsys):
    assert main(["scores", str(SWEEP), "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == 4
    assert runs[0]["scores"]["bleu"]["mean"] == runs[2]["scores"]["bleu"]["mean"]
    assert runs[2]["scores"]["speedup"]["mean"] > 0


def test_compare(capsys):
    arguments = ["compare", str(PLAIN), str(NGRAM), "--draws", "50", "--measures", "bleu,rouge2,distinct"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "BLEU over 4 items  nrefs:1|bs:50|seed:12345" in text
    assert "difference +0.000 [+0.000, +0.000]  p = 1.0000" in text
    assert main([*arguments, "--json"]) == 0
    measures = json.loads(capsys.readouterr().out)["measures"]
    assert [measure["measure"] for measure in measures] == ["bleu", "rouge2", "distinct"]


def test_compare_holds_answers_against_references(capsys, make_run):
    references = {"item-0": "the cat sat", "item-1": "the dog ran"}
    texts = {
        "right": ("hm</think>the cat sat", "so</think>the dog ran"),
        "cut": ("hm</think>the cat sat", "the dog ran"),
    }
    runs = [make_run(name, [{"text": text} for text in of], references=references) for name, of in texts.items()]
    arguments = ["compare", *map(str, runs), "--draws", "50", "--answer-after", "</think>"]
    assert main([*arguments, "--measures", "rouge1", "--json"]) == 0
    printed = capsys.readouterr()
    (measure,) = json.loads(printed.out)["measures"]
    assert [system["score"] for system in measure["systems"]] == pytest.approx([100, 50])
    assert printed.err.splitlines() == [
        f"note: {runs[1]}: 1 of 2 items end before their answer and count as empty texts"
    ]
    assert main([*arguments, "--measures", "distinct_1"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["scores", str(runs[1]), "--answer-after", "</think>", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["without_answer"] == 1


def test_formats_of_a_table(capsys):
    assert main(["table", str(SWEEP), "--rows", "draft,seed", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["draft"], row["seed"]) for row in rows] == [("ar", "1"), ("ar", "2"), ("ngram", "1"), ("ngram", "2")]
    assert main(["table", str(SWEEP), "--format", "latex"]) == 0
    assert "\\pm" in capsys.readouterr().out
    assert main(["table", str(SWEEP), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2


def test_figure_and_export(tmp_path):
    assert main(["figure", str(SWEEP), "--kind", "speed", "-o", str(tmp_path / "speed.png")]) == 0
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert main(["export", str(SWEEP), "-o", str(tmp_path / "rows.parquet")]) == 0
    assert len(pd.read_parquet(tmp_path / "rows.parquet")) == 16


REFUSED = [
    ([], 2, "required: COMMAND"),
    (["score", NGRAM], 2, "invalid choice: 'score'"),
    (["scores"], 2, "required: RUN"),
    (["scores", "nowhere"], 2, "nowhere: expected a run folder or a folder of runs, got nothing there"),
    (["scores", NGRAM, "--measures", "blue"], 2, "measure: expected one of bleu, "),
    (["scores", NGRAM, "--extract", "(a"], 2, "--extract: expected a regular expression, got '(a': "),
    (["scores", NGRAM, "--measures", "perplexity"], 1, "perplexity: expected nll"),
    (["scores", NGRAM, "--references", "nowhere"], 2, "--references: expected a file, got 'nowhere'"),
    (["scores", NGRAM, "--tokenize", "13b"], 2, "--tokenize: expected one of"),
    (["compare", NGRAM], 2, "compare: expected two runs or more, got 1"),
    (["compare", NGRAM, PLAIN, "--seed", "0"], 2, "argument --seed: expected an integer from 1"),
    (["compare", NGRAM, PLAIN, "--measures", "speedup"], 2, "expected measures with items to draw from, got speedup"),
    (["compare", NGRAM, PLAIN, "--measures", "loss"], 1, "loss: expected nll"),
    (["table", SWEEP, "--rows", "temperature"], 2, "differ in draft; add draft to --rows"),
    (["table", SWEEP, "--draft-ratio", "0"], 2, "such as 0.017, got '0'"),
    (["table", SWEEP, "--errors", "items", "--relative"], 2, "--errors: expected seeds with --relative, got items"),
    (["table", SWEEP, "--columns", "bleu", "--titles", "a,b,c"], 2, "--titles: expected 2 names, as many as the table"),
    (["compare", NGRAM, PLAIN, "--fail-on-loss", "2"], 2, "expected a level of significance, such as 0.01, got '2'"),
    (["table", SWEEP, "--format", "html"], 2, "invalid choice: 'html'"),
    (["figure", SWEEP, "--kind", "speed"], 2, "required: -o/--output"),
    (["figure", SWEEP, "--kind", "pie", "-o", "x.svg"], 2, "--kind: expected one of"),
    (["export", SWEEP, "-o", "rows.xlsx"], 2, "--output: expected a name that ends in .parquet or .csv"),
    (["export", SWEEP, "-o", "nowhere/rows.csv"], 1, "nowhere/rows.csv: expected a file that can be written"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED)
def test_what_is_wrong_is_one_line(arguments, code, message, capsys):
    assert main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_significant_loss_is_exit_code_1(make_run, capsys):
    references = {f"item-{n}": "one two three four" for n in range(30)}
    folders = [
        make_run(draft, [{"text": text}] * 30, {"draft": draft, "task": "xsum"}, references=references)
        for draft, text in (("ar", "one two three"), ("sd", "one six"))
    ]
    words = ["--measures", "accuracy", "--pool", "draft"]
    assert main(["compare", *map(str, folders), *words]) == 0
    assert "sd" in capsys.readouterr().out
    assert main(["compare", *map(str, folders), *words, "--fail-on-loss", "0.01"]) == 1
    captured = capsys.readouterr()
    assert "ROUGE-2 over 30 items" in captured.out
    assert captured.err.startswith("error: sd: ROUGE-2: expected no loss against ar, got -")
    assert main(["compare", *map(str, reversed(folders)), *words[:2], "--fail-on-loss", "0.01"]) == 0, "a gain"


def test_a_table_goes_into_files(tmp_path, capsys):
    files = [tmp_path / f"table.{form}" for form in ("md", "csv", "tex", "json")]
    words = [word for file in files for word in ("-o", str(file))]
    assert main(["table", str(SWEEP), *words]) == 0
    assert capsys.readouterr().out == ""
    forms = (["--format", "md"], ["--format", "csv"], ["--format", "latex"], ["--json"])
    for file, form in zip(files, forms, strict=True):
        assert main(["table", str(SWEEP), *form]) == 0
        assert capsys.readouterr().out == file.read_text(), file.name
    assert main(["table", str(SWEEP), "-o", str(tmp_path / "none" / "table.md")]) == 1
    assert "none/table.md" in capsys.readouterr().err
    assert main(["lengths", str(SWEEP), "-o", "table.txt"]) == 2
    assert "expected a name that ends in .md, .csv, .tex or .json, got 'table.txt'" in capsys.readouterr().err


def test_one_item_is_no_evidence(make_run, capsys):
    references = {"item-0": "one two three four"}
    folders = [
        make_run(draft, [{"text": text}], {"draft": draft, "task": "xsum"}, references=references)
        for draft, text in (("ar", "one two three"), ("sd", "one six"))
    ]
    assert main(["compare", *map(str, folders), "--measures", "accuracy", "--fail-on-loss", "0.01"]) == 0
    assert "ROUGE-2 over 1 item " in (text := capsys.readouterr().out)
    assert "(one item: its intervals and p values say nothing of other items)" in text


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("scores", "compare", "table", "figure", "export"))
