import re
from xml.etree import ElementTree

import pytest
from conftest import NGRAM, SWEEP, decoder_runs, one_run

from longhaul_analysis import AnalysisError, Scoring, UsageError, draw_figure, open_runs
from longhaul_analysis.decoders import decoder_series
from longhaul_analysis.figures import Panels, _speeds_by_length


def svg(tmp_path, runs, kind, **options):
    path = tmp_path / "figure.svg"
    draw_figure(runs, kind, path, **options)
    return path.read_text()


@pytest.mark.parametrize(("kind", "label"), [("speed", "tokens/s"), ("acceptance", "accepted / drafted")])
def test_bars_a_job(kind, label, tmp_path):
    runs = open_runs([SWEEP])
    text = svg(tmp_path, runs, kind)
    assert label in text
    assert "draft ngram" in text
    assert svg(tmp_path, runs, kind) == text


def test_lines_over_a_key(make_run, tmp_path):
    folders = [
        make_run(f"{draft}-{n}", [{}], {"draft": draft, "max-tokens": n}, {"decode_tokens_per_second": n})
        for draft in ("ar", "ngram")
        for n in (100, 200)
    ]
    text = svg(tmp_path, open_runs(folders), "speed", x="max-tokens")
    assert all(label in text for label in ("max-tokens", "draft ar", "draft ngram"))
    with pytest.raises(UsageError, match="--x: expected a job key with numbers, got 'draft', which is 'ar'"):
        svg(tmp_path, open_runs(folders), "speed", x="draft")


def test_speed_by_length(make_run, tmp_path):
    def run(name, draft, slow, **keys):
        rows = [{"tokens": 1024, "seconds": 2 * slow}, {"tokens": 2050, "seconds": 8 * slow}]
        return make_run(name, [{}], {"draft": draft, **keys}, stats=[{"id": "item-0", "by_length": rows}])

    folders = [run("plain", "ar", 1.0), run("drafted", "self", 0.5)]
    text = svg(tmp_path, open_runs(folders), "speed-by-length")
    assert all(word in text for word in ("output tokens", "tokens/s, relative to ar"))
    relative, (line,) = _speeds_by_length(open_runs(folders))
    assert relative
    assert line.points == {1024.0: [2.0], 2048.0: [2.0]}
    other = run("other", "ar", 3.0, model="/models/other")
    _, (line,) = _speeds_by_length(open_runs([*folders, other]))
    assert line.points == {1024.0: [2.0], 2048.0: [2.0]}, "each run has a baseline of its own"
    alone, (line,) = _speeds_by_length(open_runs(folders[1:]))
    assert not alone
    assert line.points == {1024.0: [1024.0], 2048.0: [342.0]}
    with pytest.raises(AnalysisError, match="by_length: expected items of 1,024 tokens"):
        svg(tmp_path, [one_run(NGRAM)], "speed-by-length")


def test_loss_by_position(make_run, tmp_path):
    items = [{"nll": 3.0, "loss_by_position": [[256, 2, 2.0], [512, 2, 1.0]]}]
    folders = [make_run(f"run-{draft}", items, {"draft": draft}) for draft in ("ar", "ngram")]
    text = svg(tmp_path, open_runs(folders), "loss-by-position")
    assert "position in tokens" in text
    assert "draft ngram" in text


def test_what_cannot_be_drawn(tmp_path):
    runs = [one_run(NGRAM)]
    with pytest.raises(UsageError, match="--kind: expected one of loss-by-position, .*, decoders; got 'pie'"):
        svg(tmp_path, runs, "pie")
    with pytest.raises(UsageError, match="--output: expected a name that ends in .svg"):
        draw_figure(runs, "speed", tmp_path / "figure.doc")
    with pytest.raises(UsageError, match="--x: expected none with loss-by-position"):
        svg(tmp_path, runs, "loss-by-position", x="seed")
    with pytest.raises(AnalysisError, match="loss_by_position: expected nll"):
        svg(tmp_path, runs, "loss-by-position")
    with pytest.raises(AnalysisError, match="expected a file that can be written"):
        draw_figure(runs, "speed", tmp_path / "nowhere" / "figure.svg")


def test_decoders_over_the_size_of_their_trees(make_run, tmp_path):
    runs = decoder_runs(make_run, "xsum")
    text = svg(tmp_path, runs, "decoders")
    assert all(word in text for word in ("block efficiency / ar", "MBSU / ar", "tokens/s / ar", "ROUGE-2 / ar"))
    assert all(word in text for word in ("rsd-c", "rsd-s", "sd", "draft-depth"))
    assert svg(tmp_path, runs, "decoders", x="draft-depth") == text
    assert "draft-nodes" in svg(tmp_path, runs, "decoders", x="draft-nodes")


def test_of_the_trees_of_one_size_the_best_is_drawn(make_run):
    runs = decoder_runs(make_run)
    best = {line.label: line.points for line in decoder_series(runs, "block_efficiency", "draft-depth")}
    assert best == {"sd": {4: [2, 2]}, "rsd-c": {4: [2.5, 2.5]}, "rsd-s": {4: [4, 4]}}
    fastest = {line.label: line.points for line in decoder_series(runs, "tokens_per_second", "draft-depth")}
    assert fastest["rsd-s"] == {4: [3, 3]}  # 2x4
    by_nodes = {line.label: line.points for line in decoder_series(runs, "block_efficiency", "draft-nodes")}
    assert by_nodes["rsd-s"] == {8: [2.5, 2.5], 12: [4, 4]}


@pytest.mark.parametrize("key", ["draft-model", "draft-temperature", "verify"])
def test_drafts_that_differ_in_more_than_their_tree_are_not_taken_for_seeds(make_run, key):
    runs = decoder_runs(make_run)
    for run in runs:
        if run.keys["draft"] == "rsd-s":
            run.keys[key] = "b" if run.keys["draft-tree"] == "2x4" else "a"
            run.keys["draft-tree"] = "4"
    points = {line.label: line.points for line in decoder_series(runs, "block_efficiency", "draft-depth")}
    assert points["rsd-s"] == {4: [4, 4]}


def test_decoders_that_cannot_be_drawn(make_run, tmp_path):
    runs = decoder_runs(make_run)
    with pytest.raises(UsageError, match="--x: expected draft-depth or draft-nodes with decoders, got 'seed'"):
        svg(tmp_path, runs, "decoders", x="seed")
    with pytest.raises(AnalysisError, match="expected runs with drafts, got plain decoding alone"):
        svg(tmp_path, [run for run in runs if run.keys["draft"] == "ar"], "decoders")
    with pytest.raises(UsageError, match="expected the same job with draft = ar beside it"):
        svg(tmp_path, [run for run in runs if run.keys["draft"] != "ar"], "decoders")
    runs[0].keys["temperature"] = "0.5"
    with pytest.raises(UsageError, match="differ in drafts and seed alone, got other temperature"):
        svg(tmp_path, runs, "decoders")


def test_a_row_of_panels_for_each_model_and_task(make_run, tmp_path):
    runs = [*decoder_runs(make_run, "xsum"), *decoder_runs(make_run, "dolly")]
    text = svg(tmp_path, runs, "decoders")
    assert all(word in text for word in ("ROUGE-2 / ar", "xsum", "dolly"))
    assert text.count("MBSU / ar") == 2
    ElementTree.fromstring(text)
    few = Panels(measures=["block_efficiency"], rows=["task"])
    text = svg(tmp_path, runs, "decoders", panels=few)
    assert text.count("block efficiency / ar") == 2
    assert "MBSU" not in text
    with pytest.raises(UsageError, match="expected none with speed; they are of decoders"):
        svg(tmp_path, runs, "speed", panels=few)


def test_an_svg_is_small_and_whole(make_run, tmp_path):
    text = svg(tmp_path, decoder_runs(make_run, "xsum"), "decoders")
    assert len(text) < 10_000 * text.count(" / ar")
    names = set(re.findall(r'id="([^"]*)"', text))
    assert names
    assert set(re.findall(r'(?:url\(|href=")#([^")]*)', text)) <= names
    ElementTree.fromstring(text)
    # Coordinates lose digits, labels do not.
    folders = [make_run(f"{n}", [{}], {"max-tokens": n}, {"decode_tokens_per_second": 0.125 * n}) for n in (1, 2)]
    labels = re.findall(r">([0-9.]+)</text>", svg(tmp_path, open_runs(folders), "speed", x="max-tokens"))
    assert any(len(label) >= 4 for label in labels), labels


def test_mbsu_of_another_ratio_is_drawn(make_run):
    points = decoder_series(decoder_runs(make_run), "mbsu", "draft-depth", Scoring(draft_ratio=0.25))
    assert {line.label: line.points for line in points}["sd"] == {4: [1, 1]}  # 2 / (4 * 0.25 + 1)
