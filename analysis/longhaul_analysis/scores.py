"""Scores of a run.

With `samples` > 1 the continuations of the prompts are as many systems: sample 0 of every prompt, sample 1, …, each
scored on its own; what stands in tables is the mean over them. Speed and likelihood are taken over all of them at once.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .errors import UsageError
from .measures import Measure, Scoring, corpus_statistics, corpus_value, item_ratios, measure_of_task, ratio_value
from .runs import Item, Run, is_baseline_of

# summary.json's names of what is read from there.
_SUMMARY_FIELDS = {"tokens_per_second": "decode_tokens_per_second", "speedup": "speedup"}


@dataclass
class Score:
    """The value of one measure in one run."""

    values: list[float]  # one a sample; one in all where the measure is not per sample
    signature: str = ""  # what a paper says beside it

    @property
    def first(self) -> float:
        """Over the first sample of each prompt."""
        return self.values[0]

    @property
    def mean(self) -> float:
        """Over the samples."""
        return math.fsum(self.values) / len(self.values)

    @property
    def standard_error(self) -> float | None:
        """Of the mean over the samples; None for one sample."""
        return standard_error(self.values)


@dataclass
class RunScores:
    """What was computed of one run."""

    run: Run
    num_items: int = 0  # samples counted apart
    num_failed: int = 0
    num_samples: int = 1  # a prompt
    without_reference: int = 0  # of num_items
    without_answer: int = 0  # likewise; Scoring.answer_after
    scores: dict[str, Score] = field(default_factory=dict)  # by name; what the run does not have is not there
    loss_by_position: list[tuple[int, int, float]] = field(default_factory=list)  # first position, tokens, nats a token

    def value(self, name: str) -> float | None:
        """The mean over samples; None where the run does not have the measure."""
        score = self.scores.get(name)
        return score.mean if score else None

    def notes(self, measures: Iterable[Measure]) -> list[str]:
        """What a reader of these measures must know, a line each."""
        measures = list(measures)
        names = {measure.name for measure in measures}
        lines = []
        loops = self.value("loops")
        if "speedup" in names and "loops" not in names and loops:
            lines.append(
                f"{self.run.folder}: {100 * loops:.0f} % of the texts repeat themselves, which drafts predict easily; "
                "see the measures loops and loop_onset"
            )
        if any(measure.uses_answer for measure in measures):
            lines += answer_notes(self.run, self.without_answer, self.num_items)
        if not any(measure.needs_reference for measure in measures):
            return lines
        if 0 < self.without_reference < self.num_items:
            lines.append(
                f"{self.run.folder}: {self.without_reference} of {self.num_items} items have no reference and are "
                "left out of BLEU, chrF, ROUGE and exact match"
            )
        if self.num_failed > 0 and self.without_reference < self.num_items:
            lines.append(
                f"{self.run.folder}: {self.num_failed} of {self.num_items} items failed; against their references "
                "they count as empty texts"
            )
        return lines


def answer_notes(run: Run, without_answer: int, num_items: int) -> list[str]:
    """What is said of items that ended in their reasoning."""
    if without_answer == 0:
        return []
    return [f"{run.folder}: {without_answer} of {num_items} items end before their answer and count as empty texts"]


def standard_error(values: Sequence[float]) -> float | None:
    """Of a mean: standard deviation (n - 1) / root of n; None for fewer than two values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def score_run(run: Run, measures: Sequence[Measure], scoring: Scoring | None = None) -> RunScores:
    """Computes what the run has of `measures`. AnalysisError where the run cannot be read."""
    scoring = scoring or Scoring()
    if run.has_given_texts:
        measures = [measure for measure in measures if not measure.needs_reference]
    items = run.read_items()
    samples = sample_places(items)
    result = RunScores(
        run,
        num_items=len(items),
        num_failed=sum(item.failed for item in items),
        num_samples=len(samples),
        without_reference=sum(item.reference is None for item in items),
        without_answer=scoring.num_without_answer(items),
        loss_by_position=loss_by_position(items),
    )
    own = {measure.name: measure_of_task(measure, run.keys.get("task")) for measure in measures}
    ratios = item_ratios(items, [measure for measure in own.values() if measure], scoring)
    for name, measure in own.items():
        if measure is None:
            continue
        if measure.family == "summary":
            score = _from_summary(run, measure)
        elif measure.family == "corpus":
            score = _corpus_score([[items[place] for place in places] for places in samples], measure, scoring)
        else:
            groups = samples if measure.per_sample else [list(range(len(items)))]
            values = [ratio_value(measure, ratios[measure.name][places]) for places in groups]
            score = Score([value for value in values if value is not None])
            score.signature = scoring.rouge_signature if measure.family == "rouge" else ""
        if score.values:
            result.scores[name] = score
    return result


def score_runs(
    runs: Sequence[Run], measures: Sequence[Measure], scoring: Scoring | None = None
) -> dict[Run, RunScores]:
    """`score_run` of each; a run without a speedup of its own gets it over its autoregressive run, if that is given."""
    scores = {run: score_run(run, measures, scoring) for run in runs}
    if not any(measure.name == "speedup" for measure in measures):
        return scores
    for run in runs:
        baseline = next((other for other in runs if is_baseline_of(other, run)), None)
        rates = [of.summary_number("decode_tokens_per_second") if of else None for of in (run, baseline)]
        if "speedup" not in scores[run].scores and rates[0] and rates[1]:
            scores[run].scores["speedup"] = Score([rates[0] / rates[1]])
    return scores


def relative_value(scores: Mapping[Run, RunScores], run: Run, name: str) -> float | None:
    """A value over that of the run's plain decoding; None where the two do not have it, or the latter's is 0.

    UsageError where plain decoding is not among the runs.
    """
    baseline = next((other for other in scores if is_baseline_of(other, run)), None)
    if baseline is None:
        raise UsageError(f"{run.folder}: expected the same job with draft = ar beside it, got none; give its run too")
    values = [scores[of].value(name) for of in (run, baseline)]
    return values[0] / values[1] if values[0] is not None and values[1] else None


def sample_places(items: Sequence[Item]) -> list[list[int]]:
    """Where the items of sample 0, of sample 1, … are, each in the order of the input."""
    places: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(item.sample, []).append(place)
    return [places[sample] for sample in sorted(places)]


def texts_and_references(items: Iterable[Item], scoring: Scoring) -> tuple[list[str], list[str]]:
    """Of the items that have a reference."""
    pairs = [(scoring.answer(item), item.reference) for item in items if item.reference is not None]
    return [text for text, _ in pairs], [reference for _, reference in pairs]


def loss_by_position(items: Iterable[Item]) -> list[tuple[int, int, float]]:
    """First position, tokens and nats a token for each power of two of the absolute position, over all items."""
    sums: dict[int, tuple[int, float]] = {}
    for item in items:
        for position, count, nll in item.loss_by_position or []:
            first = 1 << (int(position).bit_length() - 1) if position >= 1 else 0
            tokens, total = sums.get(first, (0, 0.0))
            sums[first] = (tokens + int(count), total + nll)
    return [(first, tokens, nll / tokens) for first, (tokens, nll) in sorted(sums.items()) if tokens > 0]


def _from_summary(run: Run, measure: Measure) -> Score:
    value = run.summary_number(_SUMMARY_FIELDS[measure.name])
    return Score([] if value is None else [value])


def _corpus_score(samples: Iterable[Sequence[Item]], measure: Measure, scoring: Scoring) -> Score:
    score = Score([])
    for items in samples:
        texts, references = texts_and_references(items, scoring)
        if texts:
            metric = scoring.corpus_metric(measure.name)
            score.values.append(corpus_value(metric, corpus_statistics(metric, texts, references).sum(axis=0)))
            score.signature = str(metric.get_signature())
    return score
