import csv
import io
import math

import pytest
from conftest import SWEEP, decoder_runs, one_run

from longhaul_analysis import AnalysisError, Scoring, UsageError, make_table, open_runs
from longhaul_analysis.tables import as_csv, as_json, as_latex, as_markdown


def speed_runs(make_run, points):
    """Runs of (draft, max-tokens, seed, tokens/s)."""
    folders = [
        make_run(
            f"{draft}-{tokens}-{seed}",
            [{}],
            {"draft": draft, "max-tokens": tokens, "seed": seed},
            {"decode_tokens_per_second": rate},
        )
        for draft, tokens, seed, rate in points
    ]
    return [one_run(folder) for folder in folders]


def test_a_sweep_becomes_a_row_per_draft_with_errors_over_seeds():
    table = make_table(open_runs([SWEEP]), None, None)
    assert table.row_keys == ["draft"]
    assert [label for label, _ in table.rows] == [("ar",), ("ngram",)]
    names = [column.name for column in table.columns]
    assert {"bleu", "chrf", "rouge2", "block_efficiency", "tokens_per_second", "speedup"} <= set(names)
    assert "perplexity" not in names
    plain, ngram = (dict(zip(names, cells, strict=True)) for _, cells in table.rows)
    assert len(ngram["bleu"].values) == 2
    assert plain["bleu"].values == ngram["bleu"].values  # lossless
    assert plain["speedup"].values == [1, 1]
    assert "nrefs:1|case:mixed" in table.signatures["BLEU"]


def test_mean_and_standard_error_by_hand(make_run):
    runs = speed_runs(make_run, [("ar", 10, 1, 100.0), ("ar", 10, 2, 110.0), ("ar", 10, 3, 120.0)])
    table = make_table(runs, ["tokens_per_second"], None)
    ((label, (cell,)),) = table.rows
    assert len(label) == 1
    assert cell.mean == pytest.approx(110)
    assert cell.standard_error == pytest.approx(10 / math.sqrt(3))
    assert cell.text() == "110.0 ± 5.8"


def test_a_key_among_the_columns_spreads_the_measures(make_run):
    points = [(draft, tokens, 1, 10.0 * tokens + len(draft)) for draft in ("ar", "ngram") for tokens in (1000, 9, 80)]
    table = make_table(speed_runs(make_run, points[:-1]), ["max-tokens", "tokens_per_second"], ["draft"])
    titles = ["max-tokens=9 tokens/s", "max-tokens=80 tokens/s", "max-tokens=1000 tokens/s"]
    assert [column.title for column in table.columns] == titles
    rows = {label: [cell.text() for cell in cells] for label, cells in table.rows}
    assert rows == {("ar",): ["92.0", "802.0", "10002.0"], ("ngram",): ["95.0", "", "10005.0"]}
    trees = [
        make_run(tree, [{}], {"draft": draft, "draft-tree": tree}, {"speedup": 2})
        for draft, tree in (("ngram", "4x3"), ("ngram", "3"), ("ar", "5"))
    ]
    spread = make_table(open_runs(trees), ["draft-tree", "speedup"], ["draft"])
    assert [column.title for column in spread.columns] == ["speedup", "draft-tree=3 speedup", "draft-tree=4x3 speedup"]
    default = make_table(speed_runs(make_run, [("eagle", 5, 1, 1.0), ("eagle", 6, 1, 2.0)]), ["max-tokens"], None)
    assert default.row_keys == ["model"]


def test_runs_that_differ_in_more_than_the_seed_do_not_share_a_cell(make_run):
    runs = speed_runs(make_run, [("ar", 10, 1, 1.0), ("ngram", 10, 1, 1.0)])
    with pytest.raises(UsageError, match="differ in draft; add draft to --rows"):
        make_table(runs, ["tokens_per_second"], ["max-tokens"])
    assert len(make_table(runs, ["tokens_per_second"], ["run"]).rows) == 2
    twins = [one_run(make_run(name, [{}], {}, {"decode_tokens_per_second": 1})) for name in ("one", "two")]
    with pytest.raises(UsageError, match="have the same seed"):
        make_table(twins, ["tokens_per_second"], ["draft"])


def test_what_is_asked_for_and_not_there_is_an_error(make_run):
    runs = speed_runs(make_run, [("ar", 10, 1, 1.0)])
    with pytest.raises(AnalysisError, match=r"ar-10-1: bleu: expected references: references.jsonl .*; got none"):
        make_table(runs, ["bleu"], None)
    with pytest.raises(AnalysisError, match="perplexity: expected nll: .*teacher-forced"):
        make_table(runs, ["perplexity"], None)
    with pytest.raises(UsageError, match="--columns: expected measures and job keys, got 'blue'"):
        make_table(runs, ["blue"], None)
    with pytest.raises(UsageError, match="--rows: expected job keys or 'run', got 'drafts'"):
        make_table(runs, None, ["drafts"])


def test_plain_decoding_shows_no_draft_keys(make_run):
    keys = {"draft-tree": "4x3", "model": "/models/small"}
    folders = [make_run(draft, [{}], {**keys, "draft": draft}, {"speedup": 1.5}) for draft in ("ar", "ngram")]
    table = make_table(open_runs(folders), ["speedup"], ["draft", "draft-tree", "model"])
    assert [label for label, _ in table.rows] == [("ar", "", "small"), ("ngram", "4x3", "small")]


@pytest.fixture
def table(make_run):
    runs = speed_runs(make_run, [("a_b", 10, 1, 100.0), ("a_b", 10, 2, 110.0), ("x|y", 10, 1, 7.25)])
    return make_table(runs, ["tokens_per_second"], ["draft"])


def test_markdown(table):
    table.signatures["tokens/s"] = "as it is"
    assert as_markdown(table) == (
        "| draft |    tokens/s |\n"
        "| ----- | ----------: |\n"
        "| a_b   | 105.0 ± 5.0 |\n"
        "| x\\|y  |         7.2 |\n"
        "\n"
        "tokens/s: as it is\n"
    )


def test_latex(table):
    assert as_latex(table) == (
        "\\begin{tabular}{lr}\n\\toprule\ndraft & tokens/s \\\\\n\\midrule\n"
        "a\\_b & $105.0 \\pm 5.0$ \\\\\nx|y & $7.2$ \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


def test_csv_and_json_have_all_digits(table):
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert rows[0]["draft"] == "a_b"
    assert float(rows[0]["tokens_per_second"]) == 105
    assert float(rows[0]["tokens_per_second_se"]) == pytest.approx(5)
    assert rows[0]["tokens_per_second_runs"] == "2"
    assert (rows[1]["tokens_per_second"], rows[1]["tokens_per_second_se"]) == ("7.25", "")
    first = as_json(table)["rows"][0]
    assert first["keys"] == {"draft": "a_b"}
    assert first["cells"]["tokens_per_second"]["values"] == [100, 110]


def test_decoders_by_the_size_of_their_trees(make_run):
    rows = ["draft-depth", "draft-nodes", "draft", "draft-tree"]
    table = make_table(decoder_runs(make_run), ["block_efficiency", "mbsu", "tokens_per_second"], rows)
    assert {label: [cell.text() for cell in cells] for label, cells in table.rows} == {
        ("", "", "ar", ""): ["1.000 ± 0.000", "1.000 ± 0.000", "15.0 ± 5.0"],
        ("4", "4", "sd", "4"): ["2.000 ± 0.000", "1.600 ± 0.000", "22.5 ± 7.5"],
        ("4", "14", "rsd-c", "2,2,1,1"): ["2.500 ± 0.000", "2.000 ± 0.000", "18.0 ± 6.0"],
        ("4", "8", "rsd-s", "2x4"): ["2.500 ± 0.000", "1.900 ± 0.000", "45.0 ± 15.0"],
        ("4", "12", "rsd-s", "3x4"): ["4.000 ± 0.000", "3.300 ± 0.100", "30.0 ± 10.0"],
    }
    assert table.rows[0][0] == ("", "", "ar", "")


def test_values_over_plain_decoding_of_the_same_seed(make_run):
    runs = decoder_runs(make_run)
    table = make_table(runs, ["mbsu", "tokens_per_second"], ["draft", "draft-tree"], relative=True)
    assert [column.title for column in table.columns] == ["MBSU / ar", "tokens/s / ar"]
    cells = {label: [cell.text() for cell in cells] for label, cells in table.rows}
    assert cells["ar", ""] == ["1.000 ± 0.000", "1.000 ± 0.000"]
    assert cells["rsd-s", "3x4"] == ["3.300 ± 0.100", "2.000 ± 0.000"]  # the seeds' own speeds cancel out
    head = as_csv(table).splitlines()[0].split(",")
    assert head[:5] == ["draft", "draft-tree", "mbsu_relative", "mbsu_relative_se", "mbsu_relative_runs"]
    with pytest.raises(UsageError, match="expected the same job with draft = ar beside it, got none"):
        make_table([run for run in runs if run.keys["draft"] != "ar"], ["mbsu"], ["draft", "draft-tree"], relative=True)


def test_a_speedup_of_texts_that_loop_is_noted(make_run):
    items = [{"token_ids": [7, 8] * 50}, {"token_ids": list(range(100))}]
    folder = make_run("run", items, summary={"speedup": 3.0})
    table = make_table(open_runs([folder]), ["speedup"], None)
    (note,) = table.notes
    assert "50 % of the texts repeat themselves" in note
    assert make_table(open_runs([folder]), ["speedup", "loops"], None).notes == []
    assert make_table(open_runs([folder]), ["tokens"], None).notes == []
    plain = make_run("plain", items[1:], summary={"speedup": 3.0})
    assert make_table(open_runs([plain]), ["speedup"], None).notes == []


def test_mbsu_for_another_ratio_of_parameters(make_run):
    runs = decoder_runs(make_run)
    table = make_table(runs, ["mbsu"], ["draft", "draft-tree"], Scoring(draft_ratio=0.017))
    values = {label: cell.mean for label, (cell,) in table.rows}
    assert values["ar", ""] == 1
    assert values["sd", "4"] == pytest.approx(2 / (4 * 0.017 + 1))
    assert values["rsd-s", "3x4"] == pytest.approx(4 / (4 * 0.017 + 1))
    for run in runs:
        if run.keys["draft"] == "sd":
            run.keys["draft-tree"] = "auto"
    table = make_table(runs, ["mbsu"], ["draft", "draft-tree"], Scoring(draft_ratio=0.017))
    assert [cell.values for label, (cell,) in table.rows if label[0] == "sd"] == [[]], "its depth is not known"


def items_with_calls(make_run, name, calls, **keys):
    stats = [{"id": f"item-{n}", "num_tokens": 12, "target_calls": count} for n, count in enumerate(calls)]
    return one_run(make_run(name, [{"num_tokens": 12}] * len(calls), keys, stats=stats))


def test_standard_errors_over_items(make_run):
    calls = [4, 6, 12, 6] * 10
    runs = [items_with_calls(make_run, f"seed-{seed}", calls, seed=seed) for seed in (1, 2)]
    ((_, (cell,)),) = make_table(runs, ["block_efficiency"], None, item_errors=True).rows
    # By linearisation: the two seeds agree on each item, so a second one adds nothing.
    ratio = 12 * len(calls) / sum(calls)
    expected = math.sqrt(sum((12 - ratio * count) ** 2 for count in calls)) / sum(calls)
    assert cell.mean == pytest.approx(ratio)
    assert cell.standard_error == pytest.approx(expected, rel=0.1)
    ((_, (over_seeds,)),) = make_table(runs, ["block_efficiency"], None).rows
    assert over_seeds.standard_error == 0
    single = items_with_calls(make_run, "single", [4])
    ((_, (cell,)),) = make_table([single], ["block_efficiency"], None, item_errors=True).rows
    assert cell.standard_error is None


def test_accuracy_is_the_tasks_own_measure(make_run):
    references = {"item-0": "the cat sat on a mat", "item-1": "one two three four five"}
    texts = [{"text": "the cat sat on the mat"}, {"text": "one two three four six"}]
    runs = [
        one_run(make_run(task, texts, {"task": task}, references=references)) for task in ("wmt", "xsum", "prompts")
    ]
    table = make_table(runs, ["accuracy", "bleu", "rouge2"], ["task"], item_errors=True)
    cells = {label[0]: cells for label, cells in table.rows}
    assert cells["wmt"][0].values == cells["wmt"][1].values
    assert cells["xsum"][0].values == cells["xsum"][2].values
    assert cells["prompts"][0].values == []
    assert cells["wmt"][0].standard_error == cells["wmt"][1].standard_error
    assert cells["wmt"][0].standard_error > 0


def test_titles_replace_the_names_of_columns(make_run):
    table = make_table(decoder_runs(make_run), ["mbsu"], ["draft", "draft-tree"])
    table.titles = ["Dec.", "Spec.", "MBSU"]
    assert as_markdown(table).startswith("| Dec.  | Spec.")
    assert "Dec. & Spec. & MBSU" in as_latex(table)
    assert as_csv(table).startswith("draft,draft-tree,mbsu,")
