"""One table out of any number of runs.

Rows are told apart by job keys, columns are measures; a job key among the columns spreads the measures behind it over
its values. Runs that differ in `seed` alone share a cell: mean ± standard error over them.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import AnalysisError, UsageError
from .measures import MEASURES, Measure, Scoring, choose_measures, missing_reason
from .runs import DRAFT_KEYS, TREE_KEYS, Run, differing_keys
from .scores import RunScores, relative_value, score_runs, standard_error
from .significance import item_error

DEFAULT_MEASURES = (
    "bleu", "chrf", "rouge1", "rouge2", "rougeL", "acc", "acc_norm", "mc2", "distinct", "repetition", "perplexity",
    "bits_per_byte", "token_accuracy", "block_efficiency", "mbsu", "acceptance", "tokens_per_second", "speedup",
    "loops", "loop_onset",
)  # fmt: skip


@dataclass
class Cell:
    """A measure over the runs of a row: those that differ in seed alone."""

    measure: Measure
    values: list[float] = field(default_factory=list)  # one a run
    item_error: float | None = None  # the standard error, where that is over items

    @property
    def mean(self) -> float | None:
        """None where no run has the measure."""
        return math.fsum(self.values) / len(self.values) if self.values else None

    @property
    def standard_error(self) -> float | None:
        """Over the items if that was asked, else over the runs; None for fewer than two."""
        return standard_error(self.values) if self.item_error is None else self.item_error

    def text(self, plus_minus: str = " ± ") -> str:
        """Mean and, of several runs, standard error, with the digits of the measure; "" where there is none."""
        if self.mean is None:
            return ""
        digits = self.measure.digits
        error = self.standard_error
        return f"{self.mean:.{digits}f}" + ("" if error is None else f"{plus_minus}{error:.{digits}f}")


@dataclass
class Column:
    """A measure, for one value of each job key that spreads it."""

    measure: Measure
    spread: tuple[tuple[str, str], ...] = ()  # key, value

    @property
    def title(self) -> str:
        """As tables for people have it."""
        return " ".join([*(f"{key}={value}" for key, value in self.spread if value), self.measure.title])

    @property
    def name(self) -> str:
        """As CSV and JSON have it."""
        return " ".join([*(f"{key}={value}" for key, value in self.spread if value), self.measure.name])


@dataclass
class Table:
    """Rows and columns as they will be printed."""

    row_keys: list[str]
    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[tuple[str, ...], list[Cell]]] = field(default_factory=list)  # values of the row keys, cells
    titles: list[str] = field(default_factory=list)  # of all columns for people, the row keys first; none: the usual
    signatures: dict[str, str] = field(default_factory=dict)  # measure title -> what a paper says beside it
    notes: list[str] = field(default_factory=list)

    @property
    def head(self) -> list[str]:
        """The titles as tables for people have them."""
        return self.titles or [*self.row_keys, *(column.title for column in self.columns)]


def make_table(
    runs: Sequence[Run],
    columns: Sequence[str] | None,
    rows: Sequence[str] | None,
    scoring: Scoring | None = None,
    relative: bool = False,
    item_errors: bool = False,
) -> Table:
    """Scores the runs and lays them out.

    `rows`: job keys, or "run" for a row a run; None: the keys in which the runs differ, but for the seed. `columns`:
    measures, and job keys to spread them over; None: the usual measures that any run has. `relative`: values over those
    of plain decoding of the same seed. `item_errors`: standard errors over items, not over seeds. UsageError for names
    that are neither, and where a cell would hold runs that differ in more than the seed.
    """
    scoring = scoring or Scoring()
    spread_keys = [name for name in columns or () if name not in MEASURES]
    check_keys(runs, "columns", spread_keys)
    row_keys = default_rows(runs, spread_keys) if rows is None else list(rows)
    check_keys(runs, "rows", row_keys)
    names = None if columns is None else [name for name in columns if name in MEASURES]
    measures = choose_measures(names or DEFAULT_MEASURES)
    cells: dict[tuple[str, ...], dict[tuple[str, ...], list[Run]]] = {}
    for run in runs:
        cells.setdefault(row_label(run, row_keys), {}).setdefault(row_label(run, spread_keys), []).append(run)
    for by_spread in cells.values():
        for together in by_spread.values():
            check_cell(together)
    beside = [MEASURES["loops"]] if names and "speedup" in names and "loops" not in names else []  # for notes
    scores = score_runs(runs, [*measures, *beside], scoring)
    if not names:
        measures = [m for m in measures if any(of_run.value(m.name) is not None for of_run in scores.values())]
    spreads = sort_labels({spread for by_spread in cells.values() for spread in by_spread})
    table = Table(row_keys)
    for spread in spreads:
        labels = tuple(zip(spread_keys, spread, strict=True))
        table.columns += [Column(_over_plain(measure) if relative else measure, labels) for measure in measures]
    for label in sort_labels(cells):
        per_spread = [cells[label].get(spread, []) for spread in spreads]
        cells_of_row = [_cell(measure, of, scores, relative) for of in per_spread for measure in measures]
        if item_errors:
            pairs = [(of, measure) for of in per_spread for measure in measures]
            for cell, (of, measure) in zip(cells_of_row, pairs, strict=True):
                cell.item_error = item_error(of, measure, scoring) if cell.values else None
        table.rows.append((label, cells_of_row))
    for measure in measures:
        _explain(table, measure, list(scores.values()), asked=bool(names))
    table.notes += [note for of_run in scores.values() for note in of_run.notes(measures)]
    return table


def default_rows(runs: Sequence[Run], spread_keys: Sequence[str]) -> list[str]:
    """The keys in which the runs differ, but for the seed and `spread_keys`; "run" where there are none."""
    keys = [key for key in differing_keys(runs) if key not in ("seed", *spread_keys)]
    seeds = {run.keys.get("seed") for run in runs}
    if keys or spread_keys or 1 < len(seeds) == len(runs):  # seeds of one job: one row
        return keys or ["model"]
    return ["run"]


def row_label(run: Run, keys: Sequence[str]) -> tuple[str, ...]:
    """The run's values of the keys."""
    return tuple(run.name if key == "run" else run.shown(key) for key in keys)


def check_keys(runs: Sequence[Run], option: str, keys: Sequence[str]) -> None:
    """UsageError for what is no key of the runs' jobs."""
    known = dict.fromkeys(key for run in runs for key in run.keys)
    for key in keys:
        if key not in known and key not in DRAFT_KEYS | {*TREE_KEYS, "run", "stop"}:  # these may be unset
            wanted = "measures and job keys" if option == "columns" else "job keys or 'run'"
            raise UsageError(
                f"--{option}: expected {wanted}, got {key!r}; see `longhaul-analysis scores --help` for measures, "
                f"{runs[0].folder}/job.cfg for keys"
            )


def check_cell(runs: Sequence[Run]) -> None:
    """Runs of a cell are repetitions of one measurement: they differ in seed, and in nothing else."""
    differing = [key for key in differing_keys(runs) if key != "seed"]
    if differing:
        raise UsageError(
            f"--rows: {runs[0].name} and {runs[-1].name} would share a row, but differ in {', '.join(differing)}; "
            f"add {' or '.join(differing)} to --rows"
        )
    seeds = [run.keys.get("seed") for run in runs]
    if len(set(seeds)) < len(seeds):
        raise UsageError(
            f"--rows: {runs[0].name} and {runs[-1].name} would share a row, and have the same seed; "
            "leave one of them out, or say --rows run"
        )


def sort_labels(labels: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """What is not set first, then numbers by size, then words in the order of the alphabet."""

    def order(value: str) -> tuple[int, float, str]:
        try:
            return 0, float(value), ""
        except ValueError:
            return 1 if value else -1, 0.0, value

    return sorted(labels, key=lambda label: [order(value) for value in label])


def _over_plain(measure: Measure) -> Measure:
    return replace(measure, name=f"{measure.name}_relative", title=f"{measure.title} / ar", digits=3)


def _cell(measure: Measure, runs: Sequence[Run], scores: Mapping[Run, RunScores], relative: bool) -> Cell:
    if relative:
        values = [relative_value(scores, run, measure.name) for run in runs]
    else:
        values = [scores[run].value(measure.name) for run in runs]
    return Cell(_over_plain(measure) if relative else measure, [value for value in values if value is not None])


def _explain(table: Table, measure: Measure, scores: Sequence[RunScores], asked: bool) -> None:
    """Signatures of a measure; where it was asked for and no run has it, the reason."""
    found = [of_run.scores[measure.name] for of_run in scores if measure.name in of_run.scores]
    signatures = dict.fromkeys(score.signature for score in found if score.signature)
    if signatures:
        table.signatures[measure.title] = "; ".join(signatures)
    if asked and not found:
        raise AnalysisError(f"{scores[0].run.folder}: {measure.name}: {missing_reason(measure)}")


# --- printing ---------------------------------------------------------------------------------------------------------


def as_markdown(table: Table) -> str:
    """A pipe table, with the signatures below it."""
    head = table.head
    rows = [[*label, *(cell.text() for cell in cells)] for label, cells in table.rows]
    rows = [[value.replace("|", "\\|") for value in row] for row in rows]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    num_keys = len(table.row_keys)

    def line(row: Sequence[str]) -> str:
        padded = [
            value.ljust(width) if place < num_keys else value.rjust(width)
            for place, (value, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if place < num_keys else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    lines = [line(head), f"| {' | '.join(rule)} |", *(line(row) for row in rows)]
    footer = _signature_lines(table)
    return "\n".join([*lines, *(["", *footer] if footer else [])]) + "\n"


def as_latex(table: Table) -> str:
    """A tabular with the rules of the booktabs package, the signatures in comments above it."""
    lines = [f"% {line}" for line in _signature_lines(table)]
    lines.append(f"\\begin{{tabular}}{{{'l' * len(table.row_keys)}{'r' * len(table.columns)}}}")
    head = table.head
    lines += ["\\toprule", f"{' & '.join(_latex(name) for name in head)} \\\\", "\\midrule"]
    for label, cells in table.rows:
        values = [cell.text(" \\pm ") for cell in cells]
        row = [*(_latex(value) for value in label), *(f"${value}$" if value else "" for value in values)]
        lines.append(f"{' & '.join(row)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def as_csv(table: Table) -> str:
    """All digits; mean, standard error and number of runs of each measure in columns of their own."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [column.name for column in table.columns]
    writer.writerow([*table.row_keys, *(part for name in names for part in (name, f"{name}_se", f"{name}_runs"))])
    for label, cells in table.rows:
        row: list[object] = list(label)
        for cell in cells:
            row += [cell.mean, cell.standard_error, len(cell.values)]
        writer.writerow("" if value is None else value for value in row)
    return file.getvalue()


def as_json(table: Table) -> dict[str, Any]:
    """The same numbers for programs: {"rows": [{"keys", "cells": {name: {"mean", "standard_error", "values"}}}], …}."""
    rows = []
    for label, cells in table.rows:
        named = {}
        for column, cell in zip(table.columns, cells, strict=True):
            if cell.values:
                parts = {"mean": cell.mean, "standard_error": cell.standard_error, "values": cell.values}
                named[column.name] = parts
        rows.append({"keys": dict(zip(table.row_keys, label, strict=True)), "cells": named})
    return {"rows": rows, "signatures": table.signatures}


def _signature_lines(table: Table) -> list[str]:
    """A line a signature, with all measures that have it."""
    titles: dict[str, list[str]] = {}
    for title, signature in table.signatures.items():
        titles.setdefault(signature, []).append(title)
    return [f"{', '.join(of)}: {signature}" for signature, of in titles.items()]


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c) or (f"\\{c}" if c in "#$%&_{}" else c) for c in text)
