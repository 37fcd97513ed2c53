"""Is the difference of two runs more than chance? Paired bootstrap resampling over items (Koehn, EMNLP 2004).

The items are drawn with replacement, the same draws for all runs. BLEU and chrF give what `sacrebleu --paired-bs` gives
for the same seed: score, mean and half-width of the 95 % interval, p value. Only where two runs score alike in every
draw, as plain and lossless speculative decoding do, p is 1; sacrebleu has 1 / (draws + 1) there. For all other measures
the p value is two-sided: the share of draws whose difference is at least as far from the measured difference as that is
from zero.

`pool` takes the runs that agree in some job keys for one system: all their texts of an item count, and an item is still
drawn as a whole. So many trees and seeds of one decoder are one comparison. `losses` says which systems are worse than
the first by more than chance, corrected for the number of comparisons (Bonferroni).

Compared are the first samples of the prompts. `tokens_per_second` and `speedup` have no items to draw from: compare
runs of several seeds in a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import AnalysisError, UsageError
from .measures import Measure, Scoring, corpus_statistics, corpus_value, item_ratios, measure_of_task, ratio_value
from .runs import Item, Run
from .scores import sample_places, texts_and_references


@dataclass
class System:
    """One run in a comparison, by one measure."""

    run: str
    score: float
    mean: float  # over the draws
    interval: tuple[float, float]  # 95 % of the draws
    difference: float | None = None  # score - the baseline's; None for the baseline itself
    difference_interval: tuple[float, float] | None = None  # 95 % of the draws
    p_value: float | None = None


@dataclass
class Comparison:
    """All runs by one measure; the first system is the baseline."""

    measure: Measure
    systems: list[System]
    num_items: int
    signature: str = ""


def compare_runs(
    runs: Sequence[Run],
    measures: Sequence[Measure],
    scoring: Scoring | None = None,
    num_draws: int = 1000,
    seed: int = 12345,
    pool: Sequence[str] = (),
) -> list[Comparison]:
    """Compares each run with the first by every measure that all of them have.

    `pool`: runs with the same values of these job keys are one system, that of plain decoding first. AnalysisError
    where the runs have not the same items or references.
    """
    scoring = scoring or Scoring()
    groups = _pooled(runs, pool) if pool else [(run.name, [run]) for run in runs]
    if len(groups) < 2:
        raise UsageError(f"compare: expected two runs or more, got {len(groups)}")
    runs = [run for _, together in groups for run in together]
    if any(run.has_given_texts for run in runs):
        measures = [measure for measure in measures if not measure.needs_reference]
    own = [measure_of_task(measure, runs[0].keys.get("task")) for measure in measures]
    measures = list(dict.fromkeys(measure for measure in own if measure))
    names = [name for name, _ in groups]
    items = _same_items(runs)
    places = _places([len(together) for _, together in groups])
    tables = [item_ratios(of_run, measures, scoring) for of_run in items]
    comparisons = []
    for measure in measures:
        if measure.family == "summary":
            continue
        if measure.family == "corpus":
            systems = [[items[run] for run in together] for together in places]
            comparison = _compare_corpus(names, systems, measure, scoring, num_draws, seed)
        else:
            ratios = [np.sum([tables[run][measure.name] for run in together], axis=0) for together in places]
            comparison = _compare_ratios(names, ratios, measure, num_draws, seed)
            if comparison and measure.family == "rouge":
                comparison.signature = scoring.rouge_signature
        if comparison:
            comparisons.append(comparison)
    return comparisons


def losses(comparisons: Sequence[Comparison], level: float) -> list[str]:
    """A line for each system that is worse than the first, with p below `level` / number of comparisons.

    Of one item all draws are alike, whatever the systems: nothing is more than chance.
    """
    comparisons = [comparison for comparison in comparisons if comparison.num_items > 1]
    compared = sum(len(comparison.systems) - 1 for comparison in comparisons)
    lines = []
    for comparison in comparisons:
        for system in comparison.systems[1:]:
            assert system.difference is not None
            assert system.p_value is not None
            if system.difference < 0 and system.p_value < level / compared:
                lines.append(
                    f"{system.run}: {comparison.measure.title}: expected no loss against {comparison.systems[0].run}, "
                    f"got {system.difference:+.{comparison.measure.digits + 1}f}, p = {system.p_value:.4f} "
                    f"(level {level:g} over {compared} comparisons)"
                )
    return lines


def item_error(
    runs: Sequence[Run], measure: Measure, scoring: Scoring | None = None, num_draws: int = 1000, seed: int = 12345
) -> float | None:
    """Standard error of a measure's mean over `runs` of the same items, by the draws of `compare_runs`.

    An item is drawn with its texts in all runs, so it counts what prompts differ in and what seeds differ in. None for
    fewer than two items, and for measures without items.
    """
    scoring = scoring or Scoring()
    own = measure_of_task(measure, runs[0].keys.get("task"))
    if own is None or own.family == "summary":
        return None
    items = _same_items(runs)
    num_items = len(items[0])
    if num_items < 2:
        return None
    draws = np.array(list(_draws(num_items, num_draws, seed)))
    if own.family == "corpus":
        metric = scoring.corpus_metric(own.name)
        if any(item.reference is None for item in items[0]):
            return None
        tables = [corpus_statistics(metric, *texts_and_references(of_run, scoring)) for of_run in items]
        values = [[corpus_value(metric, counts @ table) for counts in draws] for table in tables]
    else:
        ratios = [item_ratios(of_run, [own], scoring)[own.name] for of_run in items]
        if any(ratio_value(own, table) is None for table in ratios):
            return None
        sums = [draws @ table for table in ratios]
        values = [[own.finish(float(part / whole)) for part, whole in of_run if whole > 0] for of_run in sums]
        values = [of_run for of_run in values if len(of_run) == num_draws] or [[]]
    return float(np.mean(values, axis=0).std(ddof=1)) if values[0] else None


def _pooled(runs: Sequence[Run], keys: Sequence[str]) -> list[tuple[str, list[Run]]]:
    """The runs by their values of `keys`, plain decoding first, then as they come."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.keys.get("draft") != "ar"):
        groups.setdefault(", ".join(run.shown(key) for key in keys), []).append(run)
    return list(groups.items())


def _places(sizes: Sequence[int]) -> list[range]:
    """Of each group the places of its members in the list of all."""
    ends = np.cumsum(sizes)
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _draws(num_items: int, num_draws: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """[item] a draw: how often each item was drawn. The draws are those of sacrebleu for the same seed."""
    generator = np.random.default_rng(seed)
    for _ in range(num_draws):
        yield np.bincount(generator.choice(num_items, size=num_items, replace=True), minlength=num_items)


def _same_items(runs: Sequence[Run]) -> list[list[Item]]:
    """The first sample of the items of each run, in the order of the first run."""
    per_run = []
    for run in runs:
        items = run.read_items()
        by_id: dict[str, Item] = {}
        for place in sample_places(items)[0]:  # of an id that comes again, which fails, the first
            by_id.setdefault(items[place].id, items[place])
        per_run.append(by_id)
    first = per_run[0]
    for run, by_id in zip(runs[1:], per_run[1:], strict=True):
        if by_id.keys() != first.keys():
            odd = min(by_id.keys() ^ first.keys())
            raise AnalysisError(
                f"{run.folder}: expected the same items as {runs[0].folder}, got others ({odd!r} is in one of them "
                "alone); compare runs of the same data and limit"
            )
        for name, item in by_id.items():
            if item.reference != first[name].reference:
                raise AnalysisError(
                    f"{run.folder}: the reference of item {name!r} is another one than in {runs[0].folder}; give the "
                    "same references to both with --references"
                )
    return [[items[name] for name in first] for items in per_run]


def _compare_ratios(
    names: Sequence[str], ratios: Sequence[NDArray[np.float64]], measure: Measure, num_draws: int, seed: int
) -> Comparison | None:
    """`ratios`: of each run [item, (part, whole)]. Over the items of which all runs have the measure."""
    common = np.logical_and.reduce([table[:, 1] > 0 for table in ratios])
    num_items = int(common.sum())
    if num_items == 0:
        return None
    table = np.concatenate([of_run[common] for of_run in ratios], axis=1)  # [item, run x (part, whole)]

    def scores_of(sums: NDArray[np.float64]) -> list[float]:
        return [measure.finish(float(part / whole)) for part, whole in sums.reshape(-1, 2)]

    scores = scores_of(table.sum(axis=0))
    drawn = np.array([scores_of(counts @ table) for counts in _draws(num_items, num_draws, seed)]).T
    systems = [
        System(name, score, float(values.mean()), _interval(values))
        for name, score, values in zip(names, scores, drawn, strict=True)
    ]
    for system, values in zip(systems[1:], drawn[1:], strict=True):
        differences = values - drawn[0]
        system.difference = system.score - systems[0].score
        system.difference_interval = _interval(differences)
        system.p_value = _two_sided(differences, system.difference)
    return Comparison(measure, systems, num_items)


def _two_sided(differences: NDArray[np.float64], measured: float) -> float:
    """1 + as many draws as reach the measured difference once it is taken away, over 1 + all draws."""
    # Rounding must not make a draw that moved nothing differ from its mean.
    reached = np.abs(differences - measured) >= abs(measured) - 1e-12
    return float((1 + reached.sum()) / (1 + len(differences)))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _compare_corpus(
    names: Sequence[str],
    systems_items: Sequence[Sequence[Sequence[Item]]],
    measure: Measure,
    scoring: Scoring,
    num_draws: int,
    seed: int,
) -> Comparison | None:
    """What `sacrebleu --paired-bs` says of these texts, without its [draw, item, statistic] in memory.

    `systems_items`: of each system the items of its runs. The score of a system is the mean over its runs: BLEU of a
    larger corpus is another measure where n-grams without a match are smoothed.
    """
    texts, references = texts_and_references(systems_items[0][0], scoring)
    num_items = len(texts)
    if num_items == 0:
        return None
    metric = scoring.corpus_metric(measure.name)

    tables = [
        [corpus_statistics(metric, texts_and_references(of_run, scoring)[0], references) for of_run in of_system]
        for of_system in systems_items
    ]  # [system][run]: [item, statistic]

    def scores_of(counts: NDArray[np.int64]) -> list[float]:
        return [float(np.mean([corpus_value(metric, counts @ table) for table in of_system])) for of_system in tables]

    scores = scores_of(np.ones(num_items, dtype=np.int64))
    from sacrebleu.significance import estimate_ci  # a start that needs no comparison does not wait for it

    drawn = np.array([scores_of(counts) for counts in _draws(num_items, num_draws, seed)]).T
    systems = []
    for name, score, values in zip(names, scores, drawn, strict=True):
        mean, half_width = estimate_ci(values)
        systems.append(System(name, score, float(mean), (float(mean - half_width), float(mean + half_width))))
    for system, values in zip(systems[1:], drawn[1:], strict=True):
        differences = values - drawn[0]
        system.difference = system.score - systems[0].score
        system.difference_interval = _interval(differences)
        distances = np.abs(differences)
        reached = distances - distances.mean() > abs(system.difference)
        system.p_value = float((1 + reached.sum()) / (1 + num_draws)) if np.any(differences != 0) else 1.0
    signature = metric.get_signature()
    signature.update("seed", seed)
    signature.update("bs", num_draws)
    return Comparison(measure, systems, num_items, str(signature))
