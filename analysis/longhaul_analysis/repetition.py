"""How a text repeats itself: distinct n-grams, the longest repeated span, loops; over words or tokens."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Ranks = NDArray[np.int64]  # [start] -> number of the class of equal spans that begin there


def number_units(units: Sequence[Hashable]) -> Ranks:
    """The units of a text (words, token ids) as numbers 0, 1, … in the order of their first appearance."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(unit, len(numbers)) for unit in units], dtype=np.int64)


def distinct_ngrams(units: Ranks, largest: int = 4) -> list[tuple[int, int]]:
    """For n = 1 … `largest`: how many different n-grams there are, and how many in all."""
    counts = []
    ranks = units
    for n in range(1, largest + 1):
        if n > 1:
            ranks = _classes(ranks[:-1], units[n - 1 :])
        counts.append((int(ranks.max()) + 1 if len(ranks) else 0, len(ranks)))
    return counts


def longest_repeat(units: Ranks) -> int:
    """Length of the longest span that begins at two places or more; its occurrences may overlap.

    Spans of 1, 2, 4, … units are put into classes of equal ones; a span of any length is two overlapping spans of such
    a length. What repeats at one length repeats at every shorter one, so the length is found by halving.
    """
    if len(units) == 0 or not _repeats(units):
        return 0
    ranks, width = _doubled(units, len(units))
    low, high = width, min(2 * width, len(units))  # low repeats, high does not
    while high - low > 1:
        length = (low + high) // 2
        low, high = (length, high) if _repeats(_spans(ranks, width, length)) else (low, length)
    return int(low)


def loop_onset(units: Ranks, length: int) -> int | None:
    """Where the text first repeats itself for `length` units: the number of units before the first repeated one.

    It is the first place whose `length` units equal those that begin p units earlier, for some period p from 1 to
    `length`; None where there is none. The same definition ends items with `stop-loops`
    (engine/replica/loop_detector.hpp), at the last of these units.
    """
    if len(units) <= length:
        return None
    ranks, width = _doubled(units, length)
    spans = _spans(ranks, width, length) if width <= length <= 2 * width else None
    if spans is None:  # no span of half the length occurs twice
        return None
    order = np.argsort(spans, kind="stable")  # equal spans stand together, in the order of the text
    earlier, later = order[:-1], order[1:]
    loops = later[(spans[earlier] == spans[later]) & (later - earlier <= length)]
    return int(loops.min()) if len(loops) else None


def _doubled(units: Ranks, longest: int) -> tuple[Ranks, int]:
    """Classes of spans of 1, 2, 4, … units: of the longest that repeat and are of at most `longest`; their length."""
    ranks, width = units, 1
    while 2 * width <= min(longest, len(units)):
        longer = _classes(ranks[:-width], ranks[width:])
        if not _repeats(longer):
            break
        ranks, width = longer, 2 * width
    return ranks, width


def _spans(ranks: Ranks, width: int, length: int) -> Ranks:
    """Classes of the spans of `length` units from those of `width`, which is half of it or more."""
    return _classes(ranks[: len(ranks) + width - length], ranks[length - width :])


def _classes(first: Ranks, second: Ranks) -> Ranks:
    """Numbers the pairs (first[i], second[i]): equal pairs, equal numbers."""
    if len(first) == 0:
        return first
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1].astype(np.int64)


def _repeats(ranks: Ranks) -> bool:
    return len(ranks) > 0 and int(ranks.max()) + 1 < len(ranks)
