"""Numbers over the length of texts, by hand from rows of by_length."""

import pytest

from longhaul_analysis import AnalysisError, UsageError, draw_figure, make_length_table, open_runs
from longhaul_analysis.tables import as_csv, as_markdown

LENGTHS = [2048, 4096, 6144, 8192, 10240]


def long_run(make_run, name, keys, seconds=1.0, accepted=300, num_items=1):
    """Texts of 10,240 tokens; each fifth takes `seconds` and 500 target calls, the fourth and fifth twice as long."""
    rows, total = [], 0.0
    for place, tokens in enumerate(range(1024, 10241, 1024)):
        total += seconds / 2 * (2 if place >= 6 else 1)
        rows.append(
            {"tokens": tokens + 1, "seconds": total, "target_calls": 250 * (place + 1), "draft_calls": 0,
             "accepted": accepted * (place + 1), "accepted_ngram": 0, "accepted_ngram_path": 100 * (place + 1)}
        )  # fmt: skip
    keys = {"max-tokens": 10240, **keys}
    items = [{"num_tokens": 10240, "token_ids": [1, 2] * 5120} for _ in range(num_items)]
    return make_run(name, items, keys, stats=[{"id": f"item-{n}", "by_length": rows} for n in range(num_items)])


def numbers(table):
    return [(label, [cell.mean for cell in cells]) for label, cells in table.rows]


def test_rates_and_speedups(make_run):
    folders = [
        long_run(make_run, "plain", {"draft": "ar", "draft-tree": "1,3,3,3"}, 4.0, accepted=0),
        long_run(make_run, "swift", {"draft": "tokenswift", "draft-tree": "1,3,3,3"}, 2.0, num_items=2),
    ]
    table = make_length_table(open_runs(folders), ["alpha", "beta", "speedup", "minutes_saved"], ["draft"])
    rows = numbers(table)
    assert [label for label, _ in rows] == [(draft, str(n)) for draft in ("ar", "tokenswift") for n in LENGTHS]
    assert rows[0][1] == [None, None, pytest.approx(1), pytest.approx(0)], "plain decoding drafts nothing"
    alpha, beta, speedup, saved = rows[-1][1]
    assert alpha == pytest.approx(300 / 250 / 4)
    assert beta == pytest.approx(100 / 250 / 4)
    assert speedup == pytest.approx(2)
    assert saved == pytest.approx((28 - 14) / 60)
    text = as_markdown(table)
    assert "| tokenswift | 10240  |" in text
    assert "α: accepted tokens / ((γ + 1) x target calls)" in text
    assert as_csv(table).startswith("draft,tokens,alpha,alpha_se,alpha_runs,beta")


def test_parts_end_at_rows(make_run):
    run = long_run(make_run, "run", {"draft": "ar"})
    rows = numbers(make_length_table(open_runs([run]), ["minutes"], ["draft"], parts=3))
    assert [label for label, _ in rows] == [("ar", "3072"), ("ar", "6144"), ("ar", "10240")]
    assert rows[0][1] == [pytest.approx(1.5 / 60)]


def test_gamma_is_the_number_of_heads(make_run):
    run = long_run(make_run, "medusa", {"draft": "medusa", "draft-tree": "3,3,3"})
    (_, values), *_ = numbers(make_length_table(open_runs([run]), ["alpha", "alpha_gamma"], ["draft"]))
    assert values == [pytest.approx(300 / 250 / 4), pytest.approx(300 / 250 / 3)]
    run = long_run(make_run, "passes", {"draft": "tokenswift", "draft-tree": "1,3", "draft-passes": "3"})
    (_, values), *_ = numbers(make_length_table(open_runs([run]), ["alpha"], ["draft"]))
    assert values == [pytest.approx(300 / 250 / 4)]
    run = long_run(make_run, "auto", {"draft": "tokenswift", "draft-tree": "auto"})
    (_, values), *_ = numbers(make_length_table(open_runs([run]), ["alpha"], ["draft"]))
    assert values == [None], "trees of no fixed depth"


def test_seeds_share_a_row(make_run):
    folders = [
        long_run(
            make_run, f"seed-{seed}", {"draft": "tokenswift", "draft-tree": "3", "seed": seed}, accepted=100 * seed
        )
        for seed in (1, 2, 3)
    ]
    table = make_length_table(open_runs(folders), ["alpha"], ["draft"])
    assert len(table.rows) == 5
    assert table.rows[0][1][0].text() == "0.267 ± 0.077"


def test_distinct_is_of_the_tokens_up_to_there(make_run):
    run = long_run(make_run, "run", {"draft": "ar"})
    (_, (first,)), *_, (_, (last,)) = numbers(make_length_table(open_runs([run]), ["distinct"], ["draft"]))
    assert first == pytest.approx(sum(2 / (2048 - n) for n in range(4)) / 4)
    assert last == pytest.approx(sum(2 / (10240 - n) for n in range(4)) / 4)


def test_what_is_missing_is_said(make_run):
    short = make_run("short", [{}], {"max-tokens": 10240}, stats=[{"id": "item-0"}])
    with pytest.raises(AnalysisError, match="by_length: expected items of 2,048 tokens or more, got none"):
        make_length_table(open_runs([short]))
    few = make_run("few", [{}], {"max-tokens": 1000})
    with pytest.raises(AnalysisError, match=r"max-tokens: expected at least 5,120, .*got 1000; give --parts"):
        make_length_table(open_runs([few]))
    run = long_run(make_run, "run", {"draft": "ar"})
    with pytest.raises(UsageError, match="--columns: expected some of alpha"):
        make_length_table(open_runs([run]), ["bleu"])


def test_figure_over_the_length_and_over_a_key(make_run, tmp_path):
    folders = [long_run(make_run, "plain", {"draft": "ar", "ngram-top": 0}, 4.0)]
    folders += [
        long_run(make_run, f"top-{top}", {"draft": "tokenswift", "draft-tree": "1,3,3,3", "ngram-top": top})
        for top in (0, 20)
    ]
    path = tmp_path / "figure.svg"
    draw_figure(open_runs(folders), "lengths", path)
    text = path.read_text()
    assert all(word in text for word in ("output tokens", "α ngram-top 20", "β ngram-top 0", "speed-up over ar"))
    draw_figure(open_runs(folders), "lengths", path, x="ngram-top")
    assert "ngram-top" in path.read_text()
    with pytest.raises(AnalysisError, match="speed-up over ar cannot be drawn"):
        draw_figure(open_runs(folders[1:]), "lengths", path)
