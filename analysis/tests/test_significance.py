import re

import pytest
from conftest import NGRAM, SWEEP, one_run
from test_scores import run_python, texts_of, write_for_the_libraries

from longhaul_analysis import AnalysisError, UsageError, choose_measures, compare_runs, losses, open_runs

OTHER = SWEEP / "draft=ngram,seed=2"


def test_bleu_and_chrf_equal_sacrebleus_own_test(tmp_path):
    references, first = write_for_the_libraries(NGRAM, tmp_path)
    second = tmp_path / "second.txt"
    second.write_text("".join(line + "\n" for line in texts_of(OTHER)))
    output = run_python(
        "-m", "sacrebleu", references, "-i", first, second, "-m", "bleu", "chrf", "--paired-bs", "--paired-bs-n", "200",
        "--format", "latex", "-w", "4",
    )  # fmt: skip
    rows = [re.findall(r"(\S+) \((\S+) ± (\S+)\)(?: \(p = (\S+)\))?", line) for line in output.splitlines()]
    expected = [row for row in rows if row]  # [system][metric]: score, mean, half-width, p
    comparisons = compare_runs(open_runs([NGRAM, OTHER]), choose_measures(["bleu", "chrf"]), num_draws=200)
    for place, comparison in enumerate(comparisons):
        for system, row in zip(comparison.systems, expected, strict=True):
            low, high = system.interval
            ours = [system.score, system.mean, (high - low) / 2, system.p_value]
            theirs = [float(value) if value else None for value in row[place]]
            assert ours == pytest.approx(theirs, abs=1e-4)


def test_our_draws_are_sacrebleus():
    (bleu,) = compare_runs([one_run(NGRAM), one_run(OTHER)], choose_measures(["bleu"]), num_draws=200)
    first, second = bleu.systems
    low, high = second.difference_interval
    assert low <= second.mean - first.mean <= high
    assert second.difference == pytest.approx(second.score - first.score)


def test_a_run_does_not_differ_from_itself():
    for comparison in compare_runs([one_run(NGRAM), one_run(NGRAM)], choose_measures(None), num_draws=100):
        other = comparison.systems[1]
        assert other.difference == 0
        assert other.difference_interval == (0, 0)
        assert other.p_value == 1


def many(make_run, name, texts):
    references = {f"item-{n}": "one two three four" for n in range(len(texts))}
    return one_run(make_run(name, [{"text": text} for text in texts], references=references))


def test_a_clear_difference_is_one_and_a_small_one_is_not(make_run):
    base = many(make_run, "base", ["one two", "one six"] * 20)
    better = many(make_run, "better", ["one two three", "one two six"] * 20)
    mixed = many(make_run, "mixed", ["one six", "one two"] * 20)
    (rouge,) = compare_runs([base, better, mixed], choose_measures(["rouge1"]), num_draws=500)
    _, clear, none = rouge.systems
    assert clear.difference > 5
    assert clear.difference_interval[0] > 0
    assert clear.p_value == pytest.approx(1 / 501)
    assert none.difference == pytest.approx(0)
    assert none.difference_interval[0] < 0 < none.difference_interval[1]
    assert none.p_value == 1


def test_the_seed_decides_the_draws():
    runs = [one_run(NGRAM), one_run(OTHER)]
    rouge = choose_measures(["rouge1", "distinct_2"])
    first, again, other = (compare_runs(runs, rouge, num_draws=50, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_other_items_or_references_are_refused(make_run):
    first = one_run(make_run("first", [{"text": "a"}], references={"item-0": "a"}))
    more = one_run(make_run("more", [{"text": "a"}, {"text": "b"}]))
    otherwise = one_run(make_run("otherwise", [{"text": "a"}], references={"item-0": "b"}))
    with pytest.raises(AnalysisError, match="expected the same items as .*'item-1' is in one of them alone"):
        compare_runs([first, more], choose_measures(["distinct_1"]))
    with pytest.raises(AnalysisError, match="the reference of item 'item-0' is another one"):
        compare_runs([first, otherwise], choose_measures(["bleu"]))
    with pytest.raises(UsageError, match="expected two runs or more, got 1"):
        compare_runs([first], choose_measures(["bleu"]))


def decoder(make_run, draft, seed, texts):
    references = {f"item-{n}": "one two three four" for n in range(len(texts))}
    items = [{"text": text} for text in texts]
    keys = {"task": "xsum", "draft": draft, "seed": seed}
    return one_run(make_run(f"{draft}-{seed}", items, keys, references=references))


def test_runs_of_a_decoder_are_one_system(make_run):
    good, bad = ["one two three", "one two six"] * 20, ["one six three", "one six"] * 20
    runs = [
        decoder(make_run, "sd", 1, bad), decoder(make_run, "sd", 2, bad), decoder(make_run, "rsd-s", 1, good),
        decoder(make_run, "rsd-s", 2, good[::-1]), decoder(make_run, "ar", 1, good), decoder(make_run, "ar", 2, good),
    ]  # fmt: skip
    (accuracy,) = compare_runs(runs, choose_measures(["accuracy"]), num_draws=1000, pool=["draft"])
    assert accuracy.measure.name == "rouge2"
    assert [system.run for system in accuracy.systems] == ["ar", "sd", "rsd-s"], "plain decoding first"
    plain, worse, same = accuracy.systems
    assert plain.score == pytest.approx(compare_runs(runs[4:], [accuracy.measure])[0].systems[0].score)
    assert worse.difference < -5
    assert same.difference == pytest.approx(0)
    (line,) = losses([accuracy], 0.01)
    assert line.startswith("sd: ROUGE-2: expected no loss against ar, got -")
    assert line.endswith("(level 0.01 over 2 comparisons)")
    assert losses([accuracy], 0.001) == [], "1000 draws cannot show that much"
    for measure in choose_measures(["chrf", "bleu"]):  # no 4-gram matches: smoothed BLEU shrinks with the corpus
        (corpus,) = compare_runs(runs, [measure], num_draws=200, pool=["draft"])
        alone = compare_runs(runs[4:], [measure], num_draws=200)[0].systems[0]
        assert corpus.systems[0].score == pytest.approx(alone.score)
        assert corpus.systems[1].difference <= 0
        assert corpus.systems[2].difference == pytest.approx(0)


def test_a_loss_of_one_item_is_none(make_run):
    texts = ["one two three", "one two six"] * 20
    runs = [decoder(make_run, "ar", 1, texts), decoder(make_run, "sd", 1, ["six", *texts[1:]])]
    comparisons = compare_runs(runs, choose_measures(["accuracy"]), pool=["draft"])
    assert comparisons[0].systems[1].difference < 0
    assert losses(comparisons, 0.01) == []
