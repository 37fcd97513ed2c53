"""How a text repeats itself: distinct n-grams and the longest repeated span, over words or tokens."""

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
    doubled = [units]  # [k] -> classes of the spans of 2^k units
    while len(units) >= 2 ** len(doubled):
        half = 2 ** (len(doubled) - 1)
        ranks = _classes(doubled[-1][:-half], doubled[-1][half:])
        if not _repeats(ranks):
            break
        doubled.append(ranks)
    width = 2 ** (len(doubled) - 1)
    low, high = width, min(2 * width, len(units))  # low repeats, high does not
    while high - low > 1:
        length = (low + high) // 2
        spans = _classes(doubled[-1][: len(units) - length + 1], doubled[-1][length - width :])
        low, high = (length, high) if _repeats(spans) else (low, length)
    return int(low)


def _classes(first: Ranks, second: Ranks) -> Ranks:
    """Numbers the pairs (first[i], second[i]): equal pairs, equal numbers."""
    if len(first) == 0:
        return first
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1].astype(np.int64)


def _repeats(ranks: Ranks) -> bool:
    return len(ranks) > 0 and int(ranks.max()) + 1 < len(ranks)
