"""From data to table with the program of this tree: what it writes is what this package reads.

The suite names the program in LONGHAUL_PROGRAM; by hand, without it, there is nothing to run.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import DATA

from longhaul_analysis import STATISTICS, frame, make_table, open_runs

PROGRAM = os.environ.get("LONGHAUL_PROGRAM")


def run_job(output: Path, *options: str) -> Path:
    command = [PROGRAM, "run", DATA / "recorded.cfg", f"--output={output}", "--limit=2", *options]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    return output


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_from_data_to_table(tmp_path):
    run_job(tmp_path / "sweep" / "ngram", "--draft=ngram", "--seed=1", "--baseline=true")
    run_job(tmp_path / "sweep" / "samples", "--draft=ngram", "--seed=3", "--samples=2", "--stop=.")
    (first, samples) = open_runs([tmp_path / "sweep"], DATA / "references.jsonl")
    assert [item.id for item in first.read_items()] == ["harbour", "letter"]
    table = make_table([first, samples], ["bleu", "rouge2", "speedup", "block_efficiency"], ["run"])
    (_, cells), (_, of_samples) = table.rows
    assert all(cell.mean is not None and cell.mean > 0 for cell in cells)
    assert of_samples[0].mean is not None
    rows = frame(tmp_path / "sweep")
    assert list(rows["run"]) == ["ngram"] * 2 + ["samples"] * 4
    assert list(rows["job_stop"].isna()) == [True] * 2 + [False] * 4
    (stats, *_) = map(json.loads, (first.folder / "stats.jsonl").read_text().splitlines())
    optional = {
        "scored_tokens",
        "scored_bytes",
        "greedy_tokens",
        "acc",
        "acc_norm",
        "mc2",
    }  # of given continuations and choices
    assert set(STATISTICS) - optional <= set(stats)
