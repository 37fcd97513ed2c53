"""Numbers of windows of long texts, by hand."""

import math

import pytest

from longhaul_analysis import AnalysisError, UsageError, make_window_table, open_runs
from longhaul_analysis.tables import as_markdown


def windowed_run(make_run, name, keys, seconds_per_row, loop_at=None):
    """One text of 2,500 tokens in which nothing repeats, or which repeats a token from `loop_at` on."""
    tokens = list(range(2500))
    if loop_at is not None:
        tokens[loop_at:] = [0] * (2500 - loop_at)
    rows = [{"tokens": 1024, "seconds": seconds_per_row}, {"tokens": 2048, "seconds": 3 * seconds_per_row}]
    stats = {"id": "item-0", "by_length": rows, "seconds": 4 * seconds_per_row + 1, "prefill_seconds": 1}
    logprobs = [[[token, -1.0 if place < 1000 else -0.5]] for place, token in enumerate(tokens)]
    item = {"num_tokens": 2500, "token_ids": tokens, "logprobs": logprobs}
    return make_run(name, [item], {"max-tokens": 2500, **keys}, stats=[stats])


def numbers(table):
    return [(label, [cell.mean for cell in cells]) for label, cells in table.rows]


def test_each_window_alone_and_loops_up_to_its_end(make_run):
    folders = [
        windowed_run(make_run, "plain", {"draft": "ar"}, 4.0),
        windowed_run(make_run, "drafted", {"draft": "self"}, 1.0, loop_at=1500),
    ]
    table = make_window_table(open_runs(folders), rows=["draft"], tokens=1000)
    rows = numbers(table)
    assert [label for label, _ in rows] == [("ar", "1000"), ("ar", "2000"), ("self", "1000"), ("self", "2000")]
    assert rows[1][1] == [pytest.approx(1), 0, 1, 1, 1, 1, pytest.approx(math.exp(0.5))]
    speedup, loops, *distinct, perplexity = rows[3][1]
    assert speedup == pytest.approx(4)
    assert loops == 1, "the loop begins in this window"
    assert rows[2][1][1] == 0
    assert distinct == pytest.approx([501 / 1000, 501 / 999, 501 / 998, 501 / 997])
    assert perplexity == pytest.approx(math.exp(0.5))
    assert rows[2][1][-1] == pytest.approx(math.e)
    text = as_markdown(table)
    assert "| self  | 2000  | 4.00 | 1.000 |" in text
    assert "loops: share of items whose text repeats itself before the window's end" in text


def test_seconds_between_rows_are_on_a_straight_line(make_run):
    # 1 second for the first 1,024 tokens, 2 for the next; a window of 500 ends before and behind the row
    plain = windowed_run(make_run, "plain", {"draft": "ar"}, 1.0)
    slow = windowed_run(make_run, "slow", {"draft": "self"}, 2.0)
    table = make_window_table(open_runs([plain, slow]), ["speedup"], ["draft"], 500)
    assert [cells[0].mean for _, cells in table.rows] == pytest.approx([1] * 5 + [0.5] * 5)


def test_what_a_run_lacks_is_left_out(make_run):
    run = make_run("bare", [{"num_tokens": 100}], {"draft": "ar"})
    ((_, values),) = numbers(make_window_table(open_runs([run]), tokens=100))
    assert values == [None] * 7
    with pytest.raises(AnalysisError, match="expected items of 10,000 tokens or more, got none; give --tokens"):
        make_window_table(open_runs([run]))
    with pytest.raises(UsageError, match="--columns: expected some of speedup, loops"):
        make_window_table(open_runs([run]), ["bleu"])
