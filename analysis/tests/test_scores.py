"""Scores equal those of the libraries' own command lines, and those counted by hand."""

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NGRAM, PLAIN, SAMPLES, SWEEP, one_run
from rouge_score.rouge_scorer import RougeScorer

from longhaul_analysis import (
    MEASURES,
    AnalysisError,
    Scoring,
    UsageError,
    choose_measures,
    open_runs,
    score_run,
    score_runs,
)
from longhaul_analysis.measures import count_words, length_score
from longhaul_analysis.rouge import common_subsequence

REFERENCE_MEASURES = choose_measures(["bleu", "chrf", "rouge1", "rouge2", "rougeL"])


def texts_of(folder: Path, sample: int = 0) -> list[str]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [line["text"].replace("\n", " ") for line in lines if line.get("sample", 0) == sample]


def write_for_the_libraries(folder: Path, tmp_path: Path, sample: int = 0) -> tuple[Path, Path]:
    """References and texts, one a line: no scorer tells a line's end from a blank."""
    references = [json.loads(line)["reference"] for line in (folder / "references.jsonl").read_text().splitlines()]
    (tmp_path / "references.txt").write_text("".join(line + "\n" for line in references))
    (tmp_path / "texts.txt").write_text("".join(line + "\n" for line in texts_of(folder, sample)))
    return tmp_path / "references.txt", tmp_path / "texts.txt"


def run_python(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


def sacrebleu_by_hand(references: Path, texts: Path) -> dict[str, dict[str, object]]:
    output = run_python("-m", "sacrebleu", references, "-i", texts, "-m", "bleu", "chrf", "-w", "6", "--format", "json")
    return {score["name"]: score for score in json.loads(output)}


@pytest.mark.parametrize(("folder", "sample"), [(NGRAM, 0), (SAMPLES, 0), (SAMPLES, 1)])
def test_bleu_and_chrf_equal_sacrebleu_by_hand(folder, sample, tmp_path):
    expected = sacrebleu_by_hand(*write_for_the_libraries(folder, tmp_path, sample))
    scores = score_run(one_run(folder), REFERENCE_MEASURES).scores
    for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
        assert scores[name].values[sample] == pytest.approx(expected[column]["score"], abs=1e-6)
        assert scores[name].values[sample] > 0
    for part in ("nrefs", "case", "eff", "tok", "smooth", "version"):
        assert f"{part}:{expected['BLEU'][part]}" in scores["bleu"].signature


@pytest.mark.parametrize("stemmer", [True, False])
def test_rouge_equals_rouge_score_by_hand(stemmer, tmp_path):
    references, texts = write_for_the_libraries(NGRAM, tmp_path)
    output = tmp_path / "rouge.csv"
    run_python(
        "-m", "rouge_score.rouge", f"--target_filepattern={references}", f"--prediction_filepattern={texts}",
        f"--output_filename={output}", f"--use_stemmer={stemmer}", "--rouge_types=rouge1,rouge2,rougeL",
        "--aggregate=false",
    )  # fmt: skip
    head, *rows = [line.split(",") for line in output.read_text().splitlines()]
    scores = score_run(one_run(NGRAM), REFERENCE_MEASURES, Scoring(stemmer=stemmer)).scores
    for name in ("rouge1", "rouge2", "rougeL"):
        column = head.index(f"{name}-F")
        expected = 100 * sum(float(row[column]) for row in rows) / len(rows)
        assert scores[name].mean == pytest.approx(expected, abs=1e-4)  # the file has six digits
        assert f"stemmer:{'porter' if stemmer else 'no'}" in scores[name].signature


def test_rouge_counted_by_hand(make_run):
    folder = make_run("run", [{"text": "the cat on a mat"}], references={"item-0": "the cat sat on the mat"})
    scores = score_run(one_run(folder), REFERENCE_MEASURES).scores
    assert scores["rouge1"].mean == pytest.approx(100 * 8 / 11)  # 4 of 5 and of 6 words
    assert scores["rouge2"].mean == pytest.approx(100 * 2 / 9)  # 1 of 4 and of 5 pairs
    assert scores["rougeL"].mean == pytest.approx(100 * 8 / 11)  # the cat on mat


def test_long_texts_have_the_rouge_l_of_short_ones(make_run, monkeypatch):
    generator = random.Random(3)
    words = [" ".join(generator.choices("abcdefgh", k=120)) for _ in range(4)]
    items = [{"text": words[0]}, {"text": words[1]}]
    folder = make_run("run", items, references={"item-0": words[2], "item-1": words[3]})
    usual = score_run(one_run(folder), REFERENCE_MEASURES).scores
    monkeypatch.setattr("longhaul_analysis.rouge.ROUGE_TABLE_CELLS", 0)
    assert score_run(one_run(folder), REFERENCE_MEASURES).scores["rougeL"].mean == pytest.approx(usual["rougeL"].mean)


def test_common_subsequence_against_rouge_score():
    generator = random.Random(2)
    scorer = RougeScorer(["rougeL"])
    for _ in range(100):
        first, second = (generator.choices("abcd", k=generator.randrange(1, 90)) for _ in range(2))
        recall = scorer.score(" ".join(first), " ".join(second))["rougeL"].recall
        assert common_subsequence(first, second) == pytest.approx(recall * len(first))
    assert common_subsequence([], ["a"]) == 0


def test_samples_are_systems_of_their_own():
    result = score_run(one_run(SAMPLES), choose_measures(["bleu", "distinct_1", "block_efficiency"]))
    bleu = result.scores["bleu"]
    assert (result.num_items, result.num_samples, len(bleu.values)) == (8, 2, 2)
    assert bleu.first == bleu.values[0]
    assert bleu.mean == pytest.approx(sum(bleu.values) / 2)
    assert bleu.standard_error == pytest.approx(abs(bleu.values[0] - bleu.values[1]) / 2)
    summary = json.loads((SAMPLES / "summary.json").read_text())
    assert result.value("block_efficiency") == pytest.approx(summary["block_efficiency"])


def test_speed_is_what_the_summary_says():
    summary = json.loads((NGRAM / "summary.json").read_text())
    names = ["block_efficiency", "acceptance", "tokens_per_second", "tokens"]
    scores = score_run(one_run(NGRAM), choose_measures(names)).scores
    assert scores["block_efficiency"].mean == pytest.approx(summary["block_efficiency"])
    assert scores["acceptance"].mean == pytest.approx(summary["acceptance"])
    assert scores["tokens_per_second"].mean == summary["decode_tokens_per_second"]
    assert scores["tokens"].mean == summary["tokens"] / summary["items"]


def test_speedup_is_over_the_plain_run_of_the_same_seed():
    runs = open_runs([SWEEP])
    scores = score_runs(runs, choose_measures(["speedup"]))
    rates = {run.name: run.summary["decode_tokens_per_second"] for run in runs}
    for run in runs:
        plain = run.name.replace("ngram", "ar")
        assert scores[run].value("speedup") == pytest.approx(rates[run.name] / rates[plain])
    alone = one_run(NGRAM)
    assert "speedup" not in score_runs([alone], choose_measures(["speedup"]))[alone].scores


def test_distinct_by_hand_over_words_and_tokens(make_run):
    items = [{"text": "a b a b c", "token_ids": [5, 5, 5, 5, 5]}, {"text": "one"}, {"text": ""}]
    scores = score_run(one_run(make_run("run", items)), choose_measures(None)).scores
    assert scores["distinct_1"].mean == pytest.approx((3 / 5 + 1) / 2)  # a text without words has none
    assert scores["distinct_2"].mean == pytest.approx(3 / 4)
    assert scores["distinct"].mean == pytest.approx((3 / 5 + 3 / 4 + 1 + 1) / 4)
    assert scores["repetition"].mean == 0
    assert scores["longest_repeat"].mean == pytest.approx((2 + 0) / 2)
    assert scores["token_distinct_4"].mean == pytest.approx(1 / 2)
    assert scores["token_repetition"].mean == pytest.approx(1 / 2)
    assert scores["token_longest_repeat"].mean == 4


def test_likelihood_by_hand(make_run):
    items = [
        {"text": "äb", "num_tokens": 2, "nll": 3.0, "loss_by_position": [[256, 1, 1.0], [512, 1, 2.0]]},
        {"text": "cde", "num_tokens": 4, "nll": 5.0, "loss_by_position": [[300, 2, 2.5], [0, 2, 2.5]]},
        {"text": "not forced", "num_tokens": 9},
    ]
    result = score_run(one_run(make_run("run", items)), choose_measures(["loss", "perplexity", "bits_per_byte"]))
    assert result.value("loss") == pytest.approx(8 / 6)
    assert result.value("perplexity") == pytest.approx(math.exp(8 / 6))
    assert result.value("bits_per_byte") == pytest.approx(8 / math.log(2) / 6)
    assert result.loss_by_position == [(0, 2, 1.25), (256, 3, pytest.approx(3.5 / 3)), (512, 1, 2.0)]


@pytest.mark.parametrize("keys", [{"mode": "perplexity"}, {"teacher-forced": "true"}])
def test_given_texts_are_not_compared_with_themselves(make_run, keys):
    items = [{"text": "so it was", "nll": 3.0}]
    scores = score_run(
        one_run(make_run("run", items, keys, references={"item-0": "so it was"})), list(MEASURES.values())
    ).scores
    assert not {measure.name for measure in REFERENCE_MEASURES} & scores.keys()
    assert "perplexity" in scores


def test_accuracy_is_of_the_questions_whose_answer_is_known(make_run):
    items = [
        {"text": "sea", "acc": 1, "acc_norm": 0},
        {"text": "sky", "acc": 0, "acc_norm": 0},
        {"text": "sun", "acc": 1, "acc_norm": 0},
        {"text": "moon"},
        {"text": "", "finish_reason": "error", "error": "no choices"},
    ]
    run = make_run("run", items, {"mode": "multiple-choice"}, references={f"item-{n}": "sea" for n in range(5)})
    result = score_run(one_run(run), list(MEASURES.values()))
    assert result.value("acc") == pytest.approx(200 / 3)
    assert result.value("acc_norm") == 0
    assert not {measure.name for measure in REFERENCE_MEASURES} & result.scores.keys()
    assert "mc2" not in result.scores


def test_where_several_choices_may_be_right_their_probability_counts(make_run):
    items = [
        {"text": "sea", "acc": 1, "acc_norm": 1, "mc2": 0.75},
        {"text": "sky", "acc": 0, "acc_norm": 0, "mc2": 0.0},
    ]
    result = score_run(one_run(make_run("run", items, {"mode": "multiple-choice"})), list(MEASURES.values()))
    assert result.value("mc2") == pytest.approx(37.5)


def test_tokens_without_context_are_not_scored(make_run):
    items = [{"text": "abcdef", "num_tokens": 3, "nll": 3.0, "loss_by_position": [[2, 2, 3.0]]}]
    measures = choose_measures(["loss", "bits_per_byte"])
    by_position = score_run(one_run(make_run("one", items)), measures)
    assert by_position.value("loss") == pytest.approx(3 / 2)
    stats = [{"id": "item-0", "sample": 0, "scored_tokens": 2, "scored_bytes": 5}]
    by_statistics = score_run(one_run(make_run("two", items, stats=stats)), measures)
    assert by_statistics.value("loss") == pytest.approx(3 / 2)
    assert by_statistics.value("bits_per_byte") == pytest.approx(3 / math.log(2) / 5)


def test_own_perplexity_is_of_the_chosen_tokens(make_run):
    items = [{"num_tokens": 2, "logprobs": [[[7, -1.0], [9, -0.5]], [[3, -2.0], [3, -2.0]]]}]
    scores = score_run(one_run(make_run("run", items)), choose_measures(["own_perplexity"])).scores
    assert scores["own_perplexity"].mean == pytest.approx(math.exp(1.5))


def test_a_failed_item_is_an_empty_text_against_its_reference_and_nothing_else(make_run):
    items = [{"text": "the cat sat"}, {"finish_reason": "error", "error": "too long", "num_tokens": 0}]
    both = {"item-0": "the cat sat", "item-1": "the dog ran"}
    failed = score_run(one_run(make_run("failed", items, references=both)), choose_measures(None))
    assert failed.scores["rouge1"].mean == pytest.approx(50)
    assert failed.scores["distinct_1"].mean == 1
    assert failed.num_failed == 1
    assert "1 of 2 items failed" in failed.notes(REFERENCE_MEASURES)[0]


def test_answers_of_reasoning_models_are_scored_alone(make_run):
    items = [
        {"text": "a cat? </think>no</think>\n\nthe dog ran"},
        {"text": "the cat sat, it"},  # max-tokens ended the reasoning
        {"text": "</think>the end"},
    ]
    references = {"item-0": "the dog ran", "item-1": "the cat sat", "item-2": "the end"}
    run = one_run(make_run("run", items, references=references))
    measures = choose_measures(["bleu", "rouge1", "words", "distinct_1"])
    plain, answers = (score_run(run, measures, Scoring(answer_after=after)) for after in (None, "</think>"))
    assert answers.value("rouge1") == pytest.approx((100 + 0 + 100) / 3)
    assert plain.value("rouge1") != answers.value("rouge1")
    assert plain.value("bleu") != answers.value("bleu")
    assert answers.value("distinct_1") == plain.value("distinct_1")  # of the whole text
    assert (plain.without_answer, answers.without_answer) == (0, 1)
    assert "1 of 3 items end before their answer" in answers.notes(measures)[0]
    assert answers.notes(choose_measures(["distinct_1"])) == []
    for item, answer in zip(items, ["no</think>\n\nthe dog ran", None, "the end"], strict=True):
        item["answer"] = answer  # as a job with reasoning-end has them
    found = score_run(one_run(make_run("found", items, references=references)), measures)
    assert found.value("rouge1") < answers.value("rouge1")  # the first end counts
    assert found.without_answer == 1
    assert score_run(
        one_run(make_run("again", items, references=references)), measures, Scoring(answer_after="</think>")
    ).value("rouge1") == answers.value("rouge1")


def test_exact_match_compares_answers_or_what_is_extracted(make_run):
    items = [
        {"text": " 42\n"},
        {"text": "First 6, so the answer is 7. No: the answer is 8."},
        {"text": "the answer is 42, not 43"},
        {"text": "", "finish_reason": "error", "error": "bad"},
        {"text": "anything"},  # without a reference
    ]
    references = {"item-0": "42", "item-1": "8", "item-2": "40 + 2 gives: the answer is 42", "item-3": "1"}
    run = one_run(make_run("run", items, references=references))
    measures = choose_measures(["exact_match"])

    def score(expression=None):
        return score_run(run, measures, Scoring(extract=re.compile(expression) if expression else None))

    assert score().value("exact_match") == 25
    assert score(r"answer is (\d+)").value("exact_match") == 50  # the last match; the first answer has none
    assert score(r"\d+").value("exact_match") == 50
    assert "1 of 5 items have no reference" in score().notes(measures)[0]


@pytest.mark.parametrize(
    ("text", "reference", "expression", "right"),
    [
        ("the answer is 7", "the answer is 8", r"boxed (\d+)|answer is (\d+)", False),  # a group without a part in it
        ("the answer is 8", "boxed 8", r"boxed (\d+)|answer is (\d+)", True),
        ("it is 7.", "it is 8.", r"(\d*)\.?$", False),  # an empty match at the end
        ("7", "42", r"\d*", False),
        ("none", "none", r"\d+", False),
    ],
)
def test_empty_matches_are_no_answers(make_run, text, reference, expression, right):
    run = one_run(make_run("run", [{"text": text}], references={"item-0": reference}))
    scores = score_run(run, choose_measures(["exact_match"]), Scoring(extract=re.compile(expression)))
    assert scores.value("exact_match") == (100 if right else 0)


def test_a_failed_item_matches_no_empty_reference(make_run):
    failed = {"text": "", "finish_reason": "error", "error": "bad"}
    run = one_run(make_run("run", [failed, {"text": " "}], references={"item-0": "", "item-1": ""}))
    assert score_run(run, choose_measures(["exact_match"])).value("exact_match") == 50


def test_items_without_reference_are_left_out_and_counted(make_run):
    folder = make_run("run", [{"text": "the cat"}, {"text": "a dog"}], references={"item-1": "a dog"})
    result = score_run(one_run(folder), REFERENCE_MEASURES)
    assert result.scores["rouge1"].mean == pytest.approx(100)
    assert "1 of 2 items have no reference" in result.notes(REFERENCE_MEASURES)[0]
    without = score_run(one_run(make_run("other", [{"text": "a dog"}])), REFERENCE_MEASURES)
    assert without.scores == {}


def test_references_may_be_plain_lines(tmp_path):
    lines, _ = write_for_the_libraries(NGRAM, tmp_path)
    (run,) = open_runs([NGRAM], lines)
    assert score_run(run, REFERENCE_MEASURES).scores == score_run(one_run(NGRAM), REFERENCE_MEASURES).scores


def test_a_tokenizer_is_sacrebleus_or_refused():
    bleu = choose_measures(["bleu"])
    assert "tok:char" in score_run(one_run(PLAIN), bleu, Scoring(tokenizer="char")).scores["bleu"].signature
    with pytest.raises(UsageError, match="--tokenize: expected one of none, zh"):
        score_run(one_run(PLAIN), bleu, Scoring(tokenizer="13b"))


def test_measures_are_named_in_errors():
    with pytest.raises(UsageError, match="expected one of bleu, chrf.*got 'blue'"):
        choose_measures(["blue"])
    assert all(measure.title and measure.definition for measure in MEASURES.values())


def test_memory_bound_speedup_by_hand(make_run):
    def run(name, *lines):
        items = [{"id": f"i{n}"} for n in range(len(lines))]
        stats = [{"id": f"i{n}", "sample": 0, "num_tokens": 60, **line} for n, line in enumerate(lines)]
        return score_run(one_run(make_run(name, items, stats=stats)), choose_measures(["mbsu"])).value("mbsu")

    # 20 calls that cost 1.5 each, and 30 that cost 2: 120 tokens in what 90 calls take
    drafted = {"target_calls": 20, "draft_calls": 80, "block_efficiency": 3.0, "mbsu": 2.0}
    slower = {"target_calls": 30, "draft_calls": 80, "block_efficiency": 2.0, "mbsu": 1.0}
    assert run("both", drafted, slower) == pytest.approx(120 / 90)
    assert run("plain", {"target_calls": 60, "draft_calls": 0, "block_efficiency": 1.0}) == 1
    older = {"target_calls": 30, "draft_calls": 80, "block_efficiency": 2.0}  # before there was a number
    assert run("older", older) is None


def test_loops_by_hand(make_run):
    loop = [1, 2, 3, *[7, 8] * 40]  # the first repeated token has 5 before it
    items = [{"token_ids": loop}, {"token_ids": list(range(90))}, {"finish_reason": "error", "error": "x"}, {}]
    measures = choose_measures(["loops", "loop_onset"])
    scores = score_run(one_run(make_run("run", items)), measures).scores
    assert scores["loops"].mean == pytest.approx(1 / 2)
    assert scores["loop_onset"].mean == 5
    # of another length, as the job has it; the items themselves say whether they loop
    keys = {"stop-loops": 10}
    items = [{"finish_reason": "repetition", "num_tokens": 15}, {"num_tokens": 40}, {"num_tokens": 3}]
    scores = score_run(one_run(make_run("stopped", items, keys)), measures).scores
    assert scores["loops"].mean == pytest.approx(1 / 3)
    assert scores["loop_onset"].mean == 5
    assert score_run(one_run(make_run("unknown", [{}])), measures).scores == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("Two words.", 2),
        ("don't well-known", 4),  # parts of words are words
        ("7 dogs, no2, x_y, caf\u00e9", 1),  # what a digit, an underscore or another letter touches is none
        ("\u4f60\u597d, world", 3),  # each Chinese character is one
        ("\u4f60ok", 1),
    ],
)
def test_words_are_counted_as_longwriter_does(text, words):
    assert count_words(text) == words


@pytest.mark.parametrize(
    ("required", "words", "score"),
    [
        (1000, 1000, 100),
        (1000, 2500, 50),
        (1000, 4000, 0),
        (1000, 9000, 0),
        (1000, 500, 50),
        (900, 300, 0),
        (900, 0, 0),
    ],
)
def test_length_score(required, words, score):
    assert length_score(required, words) == pytest.approx(score)


def test_length_scores_of_a_run(make_run):
    items = [{"text": "a b c d"}, {"text": "a b"}, {"finish_reason": "error", "error": "too long"}, {"text": "a"}]
    folder = make_run("ruler", items)
    lengths = [{"id": f"item-{n}", "length": 4} for n in range(3)]
    (folder / "references.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lengths))
    scores = score_run(one_run(folder), choose_measures(["words", "length_score", "bleu"]))
    assert scores.value("words") == pytest.approx(2)  # the failed one wrote none, the last is not asked for a length
    assert scores.value("length_score") == pytest.approx((100 + 50 + 0) / 3)
    assert scores.value("bleu") is None
    assert scores.notes(choose_measures(["bleu"])) == []


@pytest.mark.parametrize("length", ["4", 0, 1.5, True])
def test_bad_lengths_are_named(make_run, length):
    folder = make_run("ruler", [{}])
    (folder / "references.jsonl").write_text(json.dumps({"id": "item-0", "length": length}) + "\n")
    with pytest.raises(AnalysisError, match=r"references.jsonl:1: expected .*length.* correct the line"):
        one_run(folder).read_items()
