import random

import numpy as np
import pytest

from longhaul_analysis.repetition import distinct_ngrams, longest_repeat, number_units


def ngrams(units, n):
    return [tuple(units[i : i + n]) for i in range(len(units) - n + 1)]


def longest_by_trying(units):
    return max((n for n in range(len(units)) if len(set(ngrams(units, n))) < len(ngrams(units, n))), default=0)


def test_by_hand():
    units = number_units(["a", "b", "a", "b", "c"])
    assert distinct_ngrams(units) == [(3, 5), (3, 4), (3, 3), (2, 2)]
    assert longest_repeat(units) == 2


@pytest.mark.parametrize("text", ["", "a", "a b", "a a", "a a a a a a a", "a b c a b c a b c a b"])
def test_small_texts(text):
    units = text.split()
    assert longest_repeat(number_units(units)) == longest_by_trying(units)


def test_random_texts_against_trying_every_length():
    generator = random.Random(1)
    for _ in range(200):
        units = [generator.randrange(generator.choice((1, 2, 3, 40))) for _ in range(generator.randrange(40))]
        if generator.random() < 0.5:
            units += units[: generator.randrange(40)]
        numbers = number_units(units)
        expected = [(len(set(ngrams(units, n))), len(ngrams(units, n))) for n in range(1, 5)]
        assert distinct_ngrams(numbers) == expected, units
        assert longest_repeat(numbers) == longest_by_trying(units), units


def test_a_long_text():
    text = np.random.default_rng(1).integers(30_000, size=100_000)
    text[70_000:80_000] = text[10_000:20_000]
    assert longest_repeat(number_units(text.tolist())) == 10_000
