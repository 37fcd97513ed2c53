"""ROUGE-1, -2 and -L of one text, with rouge-score's definitions."""

from collections.abc import Sequence
from functools import lru_cache

from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenize import tokenize

# rouge-score fills a table of reference times hypothesis words; beyond so many cells the longest common subsequence is
# counted bit by bit instead, which gives the same number.
ROUGE_TABLE_CELLS = 4_000_000


def rouge_words(text: str, stemmer: bool) -> list[str]:
    """As rouge-score cuts a text: lower case, runs of a-z and 0-9, stems (Porter's) if asked."""
    words: list[str] = tokenize(text, _Stems if stemmer else None)
    return words


def rouge_f1(reference: str, text: str, stemmer: bool) -> dict[str, float]:
    """F1 of rouge1, rouge2 and rougeL."""
    words = [rouge_words(side, stemmer) for side in (reference, text)]
    is_long = len(words[0]) * len(words[1]) > ROUGE_TABLE_CELLS
    kinds = ["rouge1", "rouge2"] if is_long else ["rouge1", "rouge2", "rougeL"]
    scores = {kind: score.fmeasure for kind, score in RougeScorer(kinds, tokenizer=_AsTheyAre()).score(*words).items()}
    if is_long:
        scores["rougeL"] = 2 * common_subsequence(*words) / (len(words[0]) + len(words[1]))
    return scores


class _Stems:
    """Porter's stemmer, which takes most of the time of a ROUGE score, with a memory: words come again."""

    stem = staticmethod(lru_cache(maxsize=1_000_000)(PorterStemmer().stem))


class _AsTheyAre:
    """For rouge-score: texts that are words already."""

    def tokenize(self, words: list[str]) -> list[str]:
        return words


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence: a row of the usual table is one number with a bit a word of `first`.

    Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    places: dict[str, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    everything = (1 << len(first)) - 1
    row = everything
    for word in second:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & everything
    return len(first) - row.bit_count()
