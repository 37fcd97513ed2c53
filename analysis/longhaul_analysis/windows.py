"""Measures of each window of the length of long texts: speed-up beside what shows that the text has not degenerated.

A window has `tokens` output tokens (10,000); what is left at the end of a text is left out, since distinct-n depends on
the length. Speed, distinct-n and perplexity are of the window alone; loops are those of the text up to its end.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import AnalysisError, UsageError
from .lengths import lay_out
from .measures import Measure, exp_of, onset_of
from .repetition import distinct_ngrams, number_units
from .runs import Item, Run, is_baseline_of
from .tables import Table

DEFAULT_WINDOW = 10_000
_DISTINCT = tuple(f"distinct_{n}" for n in range(1, 5))

WINDOW_MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("speedup", "×", 2, "window", "seconds a token by plain decoding / seconds a token, in the window"),
        Measure("loops", "loops", 3, "window", "share of items whose text repeats itself before the window's end"),
        *(
            Measure(name, name.replace("_", "-"), 3, "window",
                    f"distinct {n}-grams / all {n}-grams of the window's tokens, mean over items")
            for n, name in enumerate(_DISTINCT, start=1)
        ),
        Measure("own_perplexity", "own perplexity", 3, "window",
                "exp of the mean -log p of the window's tokens, by the raw logits"),
    )
}  # fmt: skip


@dataclass
class Window:
    """Sums over the items of a run that have the window."""

    seconds: list[float] = field(default_factory=list)  # of each item that has times
    loops: list[bool] = field(default_factory=list)  # of each item that shows them, also of those that ended before
    distinct: list[list[float]] = field(default_factory=list)  # [item][n - 1]
    nll: list[float] = field(default_factory=list)  # of each item with logprobs


def make_window_table(
    runs: Sequence[Run],
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    tokens: int = DEFAULT_WINDOW,
) -> Table:
    """A row for each window of `tokens` tokens, within each row of `make_table`; `columns`: WINDOW_MEASURES."""
    for name in columns or ():
        if name not in WINDOW_MEASURES:
            raise UsageError(f"--columns: expected some of {', '.join(WINDOW_MEASURES)}; got {name!r}")
    measures = [WINDOW_MEASURES[name] for name in columns or WINDOW_MEASURES]
    windows = {run: windows_of(run, tokens) for run in runs}

    def values(together: Sequence[Run], end: int, name: str) -> list[float]:
        found = []
        for run in together:
            plain = next((windows[other].get(end) for other in windows if is_baseline_of(other, run)), None)
            window = windows[run].get(end)
            found.append(_VALUES[name](window, plain, tokens) if window is not None else None)
        return [one for one in found if one is not None]

    return lay_out(runs, measures, rows, windows, values, "up to")


def windows_of(run: Run, tokens: int) -> dict[int, Window]:
    """By the window's end in tokens. AnalysisError where no item is as long as one."""
    windows: dict[int, Window] = {}
    onsets: list[int | None] = []
    for item in run.iter_items(logprobs=True):
        if item.failed:
            continue
        for end in range(tokens, item.num_tokens + 1, tokens):
            _add(windows.setdefault(end, Window()), item, end, tokens)
        if item.shows_loops:
            onsets.append(onset_of(item))
    if not windows:
        raise AnalysisError(f"{run.folder}: expected items of {tokens:,} tokens or more, got none; give --tokens")
    for end, window in windows.items():
        window.loops = [onset is not None and onset < end for onset in onsets]
    return windows


def _add(window: Window, item: Item, end: int, tokens: int) -> None:
    times = [_seconds_at(item, at) for at in (end - tokens, end)]
    if times[0] is not None and times[1] is not None:
        window.seconds.append(times[1] - times[0])
    if item.token_ids is not None and len(item.token_ids) >= end:
        counts = distinct_ngrams(number_units(item.token_ids[end - tokens : end]))
        window.distinct.append([distinct / count if count > 0 else math.nan for distinct, count in counts])
    if item.logprobs is not None and len(item.logprobs) >= end:
        window.nll.append(-math.fsum(token[0][1] for token in item.logprobs[end - tokens : end]))


def _seconds_at(item: Item, tokens: int) -> float | None:
    """Seconds that the first `tokens` tokens took; between rows of by_length (one every 1,024) on a straight line."""
    before = (0, 0.0)
    rows = [(int(row["tokens"]), float(row["seconds"])) for row in item.stats.get("by_length", [])]
    if "seconds" in item.stats:  # the whole item
        rows.append((item.num_tokens, item.stats["seconds"] - item.stats.get("prefill_seconds", 0.0)))
    for row in rows:
        if row[0] >= tokens:
            share = (tokens - before[0]) / (row[0] - before[0]) if row[0] > before[0] else 0.0
            return before[1] + share * (row[1] - before[1])
        before = row
    return None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _speedup(window: Window, plain: Window | None, _tokens: int) -> float | None:
    seconds = _mean(window.seconds)
    by_plain = _mean(plain.seconds) if plain is not None else None
    return by_plain / seconds if by_plain is not None and seconds else None


def _distinct(n: int) -> Callable[[Window, Window | None, int], float | None]:
    return lambda window, _plain, _tokens: _mean([shares[n] for shares in window.distinct])


def _own_perplexity(window: Window, _plain: Window | None, tokens: int) -> float | None:
    nll = _mean(window.nll)
    return exp_of(nll / tokens) if nll is not None else None


_VALUES: Mapping[str, Callable[[Window, Window | None, int], float | None]] = {
    "speedup": _speedup,
    "loops": lambda window, _plain, _tokens: _mean([float(loops) for loops in window.loops]),
    **{name: _distinct(n) for n, name in enumerate(_DISTINCT)},
    "own_perplexity": _own_perplexity,
}
