import json
import random
from pathlib import Path

import numpy as np
import pytest

from longhaul_analysis.repetition import distinct_ngrams, longest_repeat, loop_onset, number_units


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


def loop_end_by_definition(units, length):
    for end in range(len(units) + 1):
        for period in range(1, length + 1):
            if end >= length + period and units[end - length : end] == units[end - length - period : end - period]:
                return end
    return -1


def loop_end(units, length):
    onset = loop_onset(number_units(units), length)
    return -1 if onset is None else onset + length


def test_loops_are_those_that_end_an_item():
    """The cases that tests/engine/loop_detector_test.cpp reads."""
    path = Path(__file__).parents[2] / "tests" / "data" / "loops.json"
    cases = json.loads(path.read_text())["cases"]
    assert len(cases) >= 18
    for case in cases:
        assert loop_end(list(case["text"]), case["length"]) == case["end"], case


def test_loops_of_random_texts_by_definition():
    generator = random.Random(4)
    found = 0
    for _ in range(1500):
        units = [generator.randrange(generator.choice((1, 2, 3, 4))) for _ in range(generator.randrange(60))]
        length = generator.randrange(1, 16)
        expected = loop_end_by_definition(units, length)
        found += expected > 0
        assert loop_end(units, length) == expected, (units, length)
    assert 200 < found < 1400


def test_the_loop_of_a_long_text():
    text = np.random.default_rng(2).integers(30_000, size=100_000)
    text[70_000:70_400] = np.tile(text[69_950:70_000], 8)
    assert loop_onset(number_units(text.tolist()), 64) == 70_000
    assert loop_onset(number_units(text.tolist()), 401) is None
