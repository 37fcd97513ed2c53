"""Measures over the length of long texts, as TokenSwift's paper (arXiv 2502.18890) has them.

A text of `max-tokens` is cut into parts, which end at multiples of 1,024 tokens. Each number is cumulative: of
everything from the first output token to the end of a part, from the rows of `by_length` in stats.jsonl, over all items
that are so long. γ is the number of heads: the draft tree has γ + 1 levels, those of medusa γ.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from .errors import AnalysisError, UsageError
from .measures import Measure, mean_distinct, onset_of
from .runs import Item, Run, is_baseline_of
from .tables import Cell, Column, Table, check_cell, check_keys, default_rows, row_label, sort_labels

TOKENS_PER_ROW = 1024  # of by_length

LENGTH_MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("alpha", "α", 3, "length", "accepted tokens / ((γ + 1) x target calls)"),
        Measure("alpha_gamma", "α by γ", 3, "length", "accepted tokens / (γ x target calls)"),
        Measure("beta", "β", 3, "length",
                "tokens accepted in steps whose accepted path is an n-gram's / ((γ + 1) x target calls)"),
        Measure("tokens_per_call", "tokens/call", 2, "length", "tokens / target calls"),
        Measure("speedup", "×", 2, "length", "seconds a token by plain decoding / seconds a token, same length"),
        Measure("minutes", "minutes", 2, "length", "of an item, without its prompt"),
        Measure("minutes_saved", "minutes saved", 2, "length", "minutes by plain decoding - minutes"),
        Measure("distinct", "Distinct-n", 3, "length", "mean of distinct-1 to -4 of the tokens up to there"),
        Measure("loops", "loops", 3, "length", "share of items whose text repeats itself up to there"),
    )
}  # fmt: skip
DEFAULT_LENGTH_MEASURES = ("alpha", "beta", "speedup", "distinct", "loops")


@dataclass
class Mark:
    """What one run did up to one length: sums over its items that are so long."""

    num_items: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # of the columns of by_length
    distinct: list[float] = field(default_factory=list)  # of each item that has token ids
    loops: list[bool] = field(default_factory=list)  # of each item of the run that shows them

    def add(self, item: Item, row: Mapping[str, float], tokens: int) -> None:
        """Adds an item's row of by_length."""
        self.num_items += 1
        for name, value in row.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        if item.token_ids:
            self.distinct.append(mean_distinct(item.token_ids[:tokens]))

    @property
    def seconds_per_token(self) -> float:
        """Of the texts up to the mark."""
        return self.sums["seconds"] / self.sums["tokens"]


def make_length_table(
    runs: Sequence[Run], columns: Sequence[str] | None = None, rows: Sequence[str] | None = None, parts: int = 5
) -> Table:
    """A row for each part of the length, within each row of `make_table`; `columns`: LENGTH_MEASURES."""
    measures = choose_length_measures(columns)
    marks = {run: marks_of(run, parts) for run in runs}
    return lay_out(runs, measures, rows, marks, partial(length_values, marks), "tokens")


def lay_out(
    runs: Sequence[Run],
    measures: Sequence[Measure],
    rows: Sequence[str] | None,
    lengths: Mapping[Run, Iterable[int]],
    values: Callable[[Sequence[Run], int, str], list[float]],
    title: str,
) -> Table:
    """A row for each of the `lengths` of the runs that share a label.

    `values`: of a measure at a length, one for each run that has it. `title`: of the column of lengths.
    """
    row_keys = default_rows(runs, []) if rows is None else list(rows)
    check_keys(runs, "rows", row_keys)
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        together.setdefault(row_label(run, row_keys), []).append(run)
    table = Table([*row_keys, title], [Column(measure) for measure in measures])
    for label in sort_labels(together):
        check_cell(together[label])
        for tokens in sorted({tokens for run in together[label] for tokens in lengths[run]}):
            cells = [Cell(measure, values(together[label], tokens, measure.name)) for measure in measures]
            table.rows.append(((*label, str(tokens)), cells))
    table.signatures = {measure.title: measure.definition for measure in measures}
    return table


def choose_length_measures(names: Sequence[str] | None) -> list[Measure]:
    """UsageError for a name that is none."""
    for name in names or ():
        if name not in LENGTH_MEASURES:
            raise UsageError(f"--columns: expected some of {', '.join(LENGTH_MEASURES)}; got {name!r}")
    return [LENGTH_MEASURES[name] for name in names or DEFAULT_LENGTH_MEASURES]


def marks_of(run: Run, parts: int) -> dict[int, Mark]:
    """By length in tokens. AnalysisError where no item is long enough for the first."""
    full = run.value("max-tokens")
    if full is None or not full.isdigit() or int(full) < parts * TOKENS_PER_ROW:
        raise AnalysisError(
            f"{run.folder}: max-tokens: expected at least {parts * TOKENS_PER_ROW:,}, {TOKENS_PER_ROW:,} for each part "
            f"of the length, got {full or 'nothing'}; give --parts"
        )
    lengths = [int(full) * part // parts // TOKENS_PER_ROW * TOKENS_PER_ROW for part in range(1, parts + 1)]
    marks: dict[int, Mark] = {}
    onsets: list[int | None] = []
    for item in run.read_items():
        rows = {row["tokens"] // TOKENS_PER_ROW: row for row in item.stats.get("by_length", [])}
        for tokens in lengths:
            row = rows.get(tokens // TOKENS_PER_ROW)
            if row is not None:
                marks.setdefault(tokens, Mark()).add(item, row, tokens)
        if item.shows_loops:
            onsets.append(onset_of(item))
    if not marks:
        raise AnalysisError(f"{run.folder}: by_length: expected items of {lengths[0]:,} tokens or more, got none")
    for tokens, mark in marks.items():
        mark.loops = [onset is not None and onset < tokens for onset in onsets]
    return marks


def length_values(marks: Mapping[Run, Mapping[int, Mark]], runs: Sequence[Run], tokens: int, name: str) -> list[float]:
    """The measure at a length in each of the runs that has it."""
    values = []
    for run in runs:
        mark = marks[run].get(tokens)
        plain = next((marks[other].get(tokens) for other in marks if is_baseline_of(other, run)), None)
        value = _VALUES[name](run, mark, plain) if mark is not None else None
        if value is not None:
            values.append(value)
    return values


def _levels(run: Run) -> int | None:
    """Levels of the run's draft trees; None where they vary or nothing is drafted."""
    depth = run.value("draft-depth")
    if depth is None or run.keys.get("draft") == "ar":
        return None
    passes = run.keys.get("draft-passes", "auto")  # auto is 1 with a tree of one shape
    return int(depth) + (int(passes) if passes.isdigit() and passes != "0" else 1) - 1


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _of_levels(name: str, more: int) -> Callable[[Run, Mark, Mark | None], float | None]:
    """Sum of a column over target calls x (γ + `more`)."""

    def value(run: Run, mark: Mark, _plain: Mark | None) -> float | None:
        levels = _levels(run)
        if levels is None or name not in mark.sums:
            return None
        gamma = levels if run.keys.get("draft") == "medusa" else levels - 1
        return _ratio(mark.sums[name], mark.sums.get("target_calls", 0) * (gamma + more))

    return value


def _speedup(_run: Run, mark: Mark, plain: Mark | None) -> float | None:
    return None if plain is None else _ratio(plain.seconds_per_token, mark.seconds_per_token)


def _minutes(_run: Run, mark: Mark, _plain: Mark | None) -> float | None:
    return mark.sums["seconds"] / mark.num_items / 60


def _minutes_saved(_run: Run, mark: Mark, plain: Mark | None) -> float | None:
    if plain is None:
        return None
    return (plain.seconds_per_token - mark.seconds_per_token) * mark.sums["tokens"] / mark.num_items / 60


def _distinct(_run: Run, mark: Mark, _plain: Mark | None) -> float | None:
    return math.fsum(mark.distinct) / len(mark.distinct) if mark.distinct else None


_VALUES: Mapping[str, Callable[[Run, Mark, Mark | None], float | None]] = {
    "alpha": _of_levels("accepted", 1),
    "alpha_gamma": _of_levels("accepted", 0),
    "beta": _of_levels("accepted_ngram_path", 1),
    "tokens_per_call": lambda _run, mark, _plain: _ratio(mark.sums["tokens"], mark.sums.get("target_calls", 0)),
    "speedup": _speedup,
    "minutes": _minutes,
    "minutes_saved": _minutes_saved,
    "distinct": _distinct,
    "loops": lambda _run, mark, _plain: sum(mark.loops) / len(mark.loops) if mark.loops else None,
}
