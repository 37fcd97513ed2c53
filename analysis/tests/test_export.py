import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import NGRAM, SAMPLES, SWEEP

from longhaul_analysis import AnalysisError, UsageError, export_runs, frame, open_runs


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_parquet_has_a_row_an_item_with_statistics_references_and_keys(tmp_path):
    path = tmp_path / "rows.parquet"
    runs = open_runs([SWEEP, SAMPLES])
    assert export_runs(runs, path) == 4 * 4 + 8
    rows = pd.read_parquet(path)
    assert list(tmp_path.iterdir()) == [path]
    assert list(dict.fromkeys(rows["run"])) == [run.name for run in runs]
    one = rows[rows["run"] == NGRAM.name].reset_index()
    for place, (result, stats) in enumerate(
        zip(lines(NGRAM, "results.jsonl"), lines(NGRAM, "stats.jsonl"), strict=True)
    ):
        row = one.loc[place]
        assert (row["id"], row["text"], row["num_tokens"]) == (result["id"], result["text"], result["num_tokens"])
        assert list(row["token_ids"]) == result["token_ids"]
        for name in ("seconds", "target_calls", "accepted", "block_efficiency"):
            assert row[name] == stats[name]
        assert row["reference"] == lines(NGRAM, "references.jsonl")[place]["reference"]
    assert set(one["job_seed"]) == {1}
    assert set(one["job_draft"]) == {"ngram"}
    assert one["job_temperature"].dtype == float
    assert set(one["job_token_ids"]) == {True}
    assert list(rows[rows["run"] == "samples"]["sample"]) == [0, 1] * 4


def test_csv_reads_back_as_the_same(tmp_path):
    path = tmp_path / "rows.csv"
    export_runs(open_runs([SAMPLES]), path)
    rows, whole = pd.read_csv(path), frame(SAMPLES)
    assert list(rows.columns) == list(whole.columns)
    assert list(rows["text"]) == list(whole["text"])
    assert [json.loads(ids) for ids in rows["token_ids"]] == [list(ids) for ids in whole["token_ids"]]


def test_nested_fields_and_missing_ones(make_run):
    items = [
        {"logprobs": [[[7, -0.5], [8, -1]]], "nll": 2, "loss_by_position": [[0, 4, 2]]},
        {"finish_reason": "error", "error": "too long", "num_tokens": 0},
    ]
    rows = frame(make_run("one", items, {"seed": 2**64 - 1}), make_run("two", [{}], {"draft-tree": "4x3"}))
    token = rows["logprobs"][0][0]
    assert [(pair["id"], pair["logprob"]) for pair in token] == [(7, -0.5), (8, -1.0)]
    assert rows["loss_by_position"][0][0] == {"first": 0, "tokens": 4, "nll": 2.0}
    assert rows["error"][1] == "too long"
    assert rows["seconds"].isna().all()
    assert list(rows["job_seed"]) == [2**64 - 1, 2**64 - 1, 1]
    assert list(rows["job_draft_tree"].isna()) == [True, True, False]


def test_many_items_are_written_in_pieces(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("longhaul_analysis.export.ROWS_AT_A_TIME", 3)
    path = tmp_path / "rows.parquet"
    export_runs(open_runs([make_run("run", [{"text": f"{n}"} for n in range(8)])]), path)
    assert list(pd.read_parquet(path)["text"]) == [f"{n}" for n in range(8)]


def test_long_texts_are_written_sooner(make_run, tmp_path, monkeypatch):
    monkeypatch.setattr("longhaul_analysis.export.NUMBERS_AT_A_TIME", 8)
    path = tmp_path / "rows.parquet"
    logprobs = [[[7, -0.5], [8, -1.0]]] * 4  # with the token ids 12 numbers
    export_runs(open_runs([make_run("run", [{"logprobs": logprobs}, {}, {}, {}])]), path)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert len(pd.read_parquet(path)) == 4


def test_bad_outputs_leave_nothing(make_run, tmp_path):
    runs = open_runs([make_run("run", [{"nll": 1}])])
    with pytest.raises(UsageError, match=r"expected a name that ends in .parquet or .csv"):
        export_runs(runs, tmp_path / "rows.xlsx")
    with pytest.raises(AnalysisError, match="expected a file that can be written"):
        export_runs(runs, tmp_path / "nowhere" / "rows.csv")
    (runs[0].folder / "results.jsonl").write_text("damaged")
    with pytest.raises(AnalysisError, match="results.jsonl:1: expected a JSON object"):
        export_runs(runs, tmp_path / "rows.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
