"""Draft methods over the size of their trees, all relative to plain decoding: what figures 4 and 5 of the paper on
recursive speculative decoding show of a sweep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import AnalysisError, UsageError
from .measures import MEASURES, Scoring, choose_measures
from .runs import DRAFT_KEYS, TREE_KEYS, Run, differing_keys
from .scores import relative_value, score_runs

DEFAULT_MEASURES = ("block_efficiency", "mbsu", "tokens_per_second", "accuracy")


@dataclass
class Series:
    """A line: points (x, values of the runs there)."""

    label: str
    points: dict[float, list[float]] = field(default_factory=dict)


def decoder_measures(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[str]:
    """Those of `names` (the usual ones) that any of the runs has."""
    measures = choose_measures(names or DEFAULT_MEASURES)
    scores = score_runs(runs, measures)
    found = [m.name for m in measures if any(of_run.value(m.name) is not None for of_run in scores.values())]
    if not found:
        raise AnalysisError(f"{runs[0].folder}: expected one of {', '.join(m.name for m in measures)}, got none")
    return found


def groups_of_decoders(runs: Sequence[Run], keys: Sequence[str] | None) -> dict[str, list[Run]]:
    """Runs that belong on one panel, by what tells them from the others: the values of `keys` (model and task)."""
    wanted = ["model", "task"] if keys is None else keys
    known = [key for key in wanted if key in differing_keys(runs)]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        shown = [run.shown(key) if key in ("model", "task") else f"{key} {run.shown(key)}" for key in known]
        groups.setdefault(", ".join(shown), []).append(run)
    return groups


def decoder_series(runs: Sequence[Run], name: str, x: str, scoring: Scoring | None = None) -> list[Series]:
    """A line a draft method over `x`, one of TREE_KEYS; values over those of plain decoding of the same seed.

    Of several drafts of one size (other trees, draft models, draft temperatures) the best by the measure counts; where
    that is quality, the one of the best block efficiency. UsageError for another `x`, runs that differ in more than
    drafts and seed, or without plain decoding.
    """
    if x not in TREE_KEYS:
        raise UsageError(f"--x: expected {' or '.join(TREE_KEYS)} with decoders, got {x!r}")
    others = [key for key in differing_keys(runs) if key not in DRAFT_KEYS | {"seed"}]
    if others:
        raise UsageError(
            f"{runs[0].folder}: expected runs that differ in drafts and seed alone, got other {', '.join(others)}; "
            "give the runs of one value each"
        )
    drafted = [run for run in runs if run.keys.get("draft") != "ar"]
    if not drafted:
        raise AnalysisError(f"{runs[0].folder}: expected runs with drafts, got plain decoding alone")
    by = "block_efficiency" if MEASURES[name].needs_reference else name
    scores = score_runs(runs, choose_measures([by, name]), scoring)

    def over_plain(measure: str, together: Sequence[Run]) -> list[float]:
        values = [relative_value(scores, run, measure) for run in together]
        return [value for value in values if value is not None]

    lines: dict[str, Series] = {}
    for (draft, size), alike in _drafts(drafted, x).items():
        best = max(alike, key=lambda together: _mean(over_plain(by, together)))
        if values := over_plain(name, best):
            lines.setdefault(draft, Series(draft)).points[size] = values
    return [lines[draft] for draft in sorted(lines)]


def _drafts(runs: Sequence[Run], x: str) -> dict[tuple[str, float], list[list[Run]]]:
    """Of each draft method and size the runs that differ in their seed alone; none whose tree has no fixed size."""
    drafts: dict[tuple[str, float], dict[tuple[str | None, ...], list[Run]]] = {}
    for run in runs:
        size = run.value(x)
        if size is not None:
            of_size = drafts.setdefault((run.keys["draft"], float(size)), {})
            of_size.setdefault(tuple(run.keys.get(key) for key in sorted(DRAFT_KEYS)), []).append(run)
    return {key: list(of_size.values()) for key, of_size in drafts.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else -math.inf
