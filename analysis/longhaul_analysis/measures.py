"""The measures, with the definitions the field uses.

BLEU and chrF are sacrebleu's, over the whole corpus at once. Every other measure is a ratio of sums over items: each
item gives a part and a whole, and the value is `finish(sum of parts / sum of wholes)`; where the whole is 1, that is
the mean over items. What an item does not have, it leaves out.

A failed item counts as the empty text against its reference or required length, so that no run gains by failing, and
is left out of everything else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .repetition import distinct_ngrams, longest_repeat, loop_onset, number_units
from .runs import Item

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Ratio = tuple[float, float]  # part, whole


@dataclass(frozen=True)
class Measure:
    """A number that a run has."""

    name: str
    title: str
    digits: int  # after the point, in tables
    family: str  # what computes it; "corpus" by sacrebleu, "summary" read from summary.json
    definition: str
    finish: Callable[[float], float] = lambda ratio: ratio

    @property
    def per_sample(self) -> bool:
        """Computed for each sample of the prompts apart; else once, over all of them."""
        return self.family in ("corpus", "rouge", "exact", "words", "tokens", "logprobs", "loops", "length")

    @property
    def needs_reference(self) -> bool:
        """Whether it compares with references."""
        return self.family in ("corpus", "rouge", "exact", "own")

    @property
    def uses_answer(self) -> bool:
        """Whether it leaves out the reasoning before an answer."""
        return self.needs_reference or self.family == "length"


def exp_of(loss: float) -> float:
    """Perplexity of a loss in nats a token."""
    return math.exp(loss) if loss < 700 else math.inf


def _repetition_measures(family: str, prefix: str, units: str) -> list[Measure]:
    def measure(name: str, digits: int, definition: str) -> Measure:
        full = f"{prefix}_{name}" if prefix else name
        title = full.replace("_", " ") if not name[-1].isdigit() else f"{full[:-2].replace('_', ' ')}-{name[-1]}"
        return Measure(full, title, digits, family, definition)

    return [
        *(
            measure(f"distinct_{n}", 3, f"distinct {n}-grams / all {n}-grams of {units} of an item, mean over items")
            for n in range(1, 5)
        ),
        measure("distinct", 3, "mean of the four distinct-n"),
        measure("repetition", 3, f"share of an item's 4-grams of {units} that it had before, mean over items"),
        measure("longest_repeat", 1, f"{units} of the longest span that an item has twice, mean over items"),
    ]


MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        Measure("bleu", "BLEU", 2, "corpus", "sacrebleu, whole corpus"),
        Measure("chrf", "chrF", 2, "corpus", "sacrebleu, whole corpus"),
        Measure("rouge1", "ROUGE-1", 2, "rouge", "rouge-score, 100 x F1, mean over items"),
        Measure("rouge2", "ROUGE-2", 2, "rouge", "rouge-score, 100 x F1, mean over items"),
        Measure("rougeL", "ROUGE-L", 2, "rouge", "rouge-score, 100 x F1, mean over items"),
        Measure("exact_match", "exact match", 2, "exact", "100 x share of answers that equal their references"),
        Measure("acc", "acc", 2, "choices", "100 x share of questions or continuations whose most probable is right"),
        Measure("acc_norm", "acc_norm", 2, "choices", "the same of the choice that is most probable per character"),
        Measure("mc2", "mc2", 2, "choices", "100 x share of the right choices in the probability of all choices"),
        *_repetition_measures("words", "", "words"),
        *_repetition_measures("tokens", "token", "tokens"),
        Measure("words", "words", 1, "length", "words as LongWriter counts them, mean over items asked for a length"),
        Measure("length_score", "S_l", 2, "length", "LongWriter's score of words against the required length, mean"),
        Measure("loss", "loss", 4, "likelihood", "nats a token of the given continuations"),
        Measure("perplexity", "perplexity", 3, "likelihood", "exp of the loss", exp_of),
        Measure("token_accuracy", "token acc", 2, "likelihood", "100 x share of tokens that greedy decoding chooses"),
        Measure("bits_per_byte", "bits/byte", 4, "likelihood", "nll in bits / UTF-8 bytes of what was scored"),
        Measure("own_perplexity", "own perplexity", 3, "logprobs",
                "exp of the mean -log p of the generated tokens, by the raw logits", exp_of),
        Measure("loops", "loops", 3, "loops", "share of items whose text repeats itself"),
        Measure("loop_onset", "loop onset", 1, "loops",
                "tokens before the first repeated one, mean over the items that repeat themselves"),
        Measure("accuracy", "accuracy", 2, "own", "the task's own measure: BLEU for wmt, ROUGE-2 for xsum"),
        Measure("tokens", "tokens", 1, "statistics", "tokens per item, mean over items"),
        Measure("block_efficiency", "block efficiency", 3, "statistics", "tokens / target calls"),
        Measure("mbsu", "MBSU", 3, "statistics", "memory-bound speedup: tokens / (target calls + cost of drafts)"),
        Measure("acceptance", "acceptance", 3, "statistics", "accepted / drafted tokens"),
        Measure("drafts_per_call", "drafts/call", 2, "statistics", "drafted tokens / target calls"),
        Measure("resampled", "re-sampled", 3, "statistics", "accepted tokens that only re-sampling drafted / accepted"),
        Measure("tokens_per_second", "tokens/s", 1, "summary", "of a replica, in passes that decode alone"),
        Measure("speedup", "speedup", 2, "summary", "tokens/s over those of autoregressive decoding"),
    )
}  # fmt: skip


_ACCURACY_OF_TASK = {"wmt": "bleu", "xsum": "rouge2"}  # as the papers have it


def measure_of_task(measure: Measure, task: str | None) -> Measure | None:
    """What `accuracy` is for a task, None where the task has none; any other measure itself."""
    if measure.family != "own":
        return measure
    name = _ACCURACY_OF_TASK.get(task or "")
    return MEASURES[name] if name else None


def choose_measures(names: Sequence[str] | None) -> list[Measure]:
    """The measures of these names; None: all. UsageError for what is none."""
    for name in names or []:
        if name not in MEASURES:
            raise UsageError(f"measure: expected one of {', '.join(MEASURES)}; got {name!r}")
    if names is None:
        return [measure for measure in MEASURES.values() if measure.family != "own"]  # it is one of the others
    return [MEASURES[name] for name in dict.fromkeys(names)]


def missing_reason(measure: Measure) -> str:
    """What a run needs to have the measure."""
    needs = {
        "corpus": "references: references.jsonl in the run folder, or --references FILE",
        "own": "task = wmt or xsum, with references: references.jsonl in the run folder, or --references FILE",
        "rouge": "references: references.jsonl in the run folder, or --references FILE",
        "exact": "references: references.jsonl in the run folder, or --references FILE",
        "choices": "questions whose answer is known, or given continuations: mode = multiple-choice or perplexity",
        "words": "texts that are long enough",
        "tokens": "token ids: run the job with token-ids = true",
        "length": "lengths: a run of task = longwriter",
        "likelihood": "nll: run the job with teacher-forced = true or mode = perplexity",
        "logprobs": "logprobs: run the job with logprobs > 0",
        "loops": "token ids, and of loop_onset texts that loop: run the job with token-ids = true or stop-loops > 0",
        "statistics": "stats.jsonl in the run folder",
        "summary": "summary.json in the run folder",
    }[measure.family]
    if measure.name == "mbsu":
        needs += " (with --draft-ratio, of drafts by a draft model with a fixed draft-tree)"
    if measure.name == "speedup":
        needs = "baseline = true in the job, or the same job with draft = ar beside it"
    return f"expected {needs}; got none"


@dataclass(frozen=True)
class Scoring:
    """How texts are cut into words, and the scorers that do it."""

    tokenizer: str = "13a"  # of BLEU: a name of sacrebleu's
    stemmer: bool = True  # ROUGE: Porter's, as the summarisation papers have it (ROUGE-1.5.5 -m)
    draft_ratio: float | None = None  # MBSU: draft parameters / target parameters, in place of the run's own
    answer_after: str | None = None  # what a model writes between its reasoning and its answer: "</think>"
    extract: re.Pattern[str] | None = None  # exact match: what of an answer is compared

    def answer(self, item: Item) -> str:
        """What is held against a reference or a required length; empty for an item that failed or did not get there."""
        if item.failed or self.lacks_answer(item):
            return ""
        if self.answer_after is not None:
            return item.text.rpartition(self.answer_after)[2].strip()
        return item.text if item.answer is None else item.answer.strip()

    def lacks_answer(self, item: Item) -> bool:
        """Whether the text has reasoning alone."""
        if self.answer_after is None:
            return not item.failed and item.has_reasoning and item.answer is None
        return not item.failed and self.answer_after not in item.text

    def num_without_answer(self, items: Iterable[Item]) -> int:
        """Of the items that have something to hold an answer against."""
        return sum(self.lacks_answer(item) for item in items if item.has_target)

    def corpus_metric(self, name: str) -> Metric:
        """A fresh metric of sacrebleu; UsageError for a tokenizer that it does not have."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        if name == "chrf":
            return CHRF()
        known = BLEU.TOKENIZERS
        if self.tokenizer not in known:
            raise UsageError(f"--tokenize: expected one of {', '.join(known)}; got {self.tokenizer!r}")
        try:
            return BLEU(tokenize=self.tokenizer, force=True)
        except (Exception, SystemExit) as error:  # the tokenizer's own package or model file is missing
            reason = " ".join(str(error).split())
            raise UsageError(f"--tokenize: {self.tokenizer}: {reason}") from None

    @property
    def rouge_signature(self) -> str:
        """What a paper says beside a ROUGE score."""
        return f"F1|stemmer:{'porter' if self.stemmer else 'no'}|version:{version('rouge-score')}"

    def extracted(self, text: str) -> str | None:
        """The last match of `extract` that is not empty, or its first group; None where there is none."""
        if self.extract is None:
            return text.strip()
        found = None
        for match in self.extract.finditer(text):
            groups = match.groups() if self.extract.groups > 0 else (match.group(),)
            found = next((group.strip() for group in groups if group), None) or found
        return found

    def exact_match(self, item: Item) -> dict[str, Ratio]:
        """Whether the answer equals the reference; nothing where it has none."""
        if item.reference is None:
            return {}
        wanted = self.extracted(item.reference) or item.reference.strip()  # or the reference is the answer alone
        is_right = not item.failed and not self.lacks_answer(item) and self.extracted(self.answer(item)) == wanted
        return {"exact_match": (100.0 if is_right else 0.0, 1.0)}

    def rouge(self, item: Item) -> dict[str, Ratio]:
        """ROUGE of one item, 100 x F1; nothing where it has no reference."""
        if item.reference is None:
            return {}
        from .rouge import rouge_f1  # its stemmer takes a quarter of a second, which other measures need not wait for

        scores = rouge_f1(item.reference, self.answer(item), self.stemmer)
        return {kind: (100 * score, 1.0) for kind, score in scores.items()}


def item_ratios(items: Sequence[Item], measures: Iterable[Measure], scoring: Scoring) -> dict[str, NDArray[np.float64]]:
    """Of each measure that is a ratio of sums: [item, (part, whole)]; 0 and 0 where an item does not have it."""
    wanted = [measure for measure in measures if measure.family not in ("corpus", "summary", "own")]
    table = {measure.name: np.zeros((len(items), 2)) for measure in wanted}
    families = dict.fromkeys(measure.family for measure in wanted)
    for place, item in enumerate(items):
        for family in families:
            for name, ratio in _family(item, family, scoring).items():
                if name in table:
                    table[name][place] = ratio
    return table


def corpus_statistics(metric: Metric, texts: Sequence[str], references: Sequence[str]) -> NDArray[np.float64]:
    """[item, statistic]: what sacrebleu sums over a corpus before it makes the score.

    In pieces, since it holds the n-grams of all references that it is given at once.
    """
    pieces = [
        metric._extract_corpus_statistics(texts[start : start + 1000], [references[start : start + 1000]])
        for start in range(0, len(texts), 1000)
    ]
    return np.array([row for piece in pieces for row in piece], dtype=np.float64)


def corpus_value(metric: Metric, sums: NDArray[np.float64]) -> float:
    """sacrebleu's score of a corpus with these sums."""
    return float(metric._compute_score_from_stats(list(sums)).score)


def ratio_value(measure: Measure, ratios: NDArray[np.float64]) -> float | None:
    """The value over items [item, (part, whole)]; None where no item has it."""
    part, whole = ratios.sum(axis=0)
    return measure.finish(float(part / whole)) if whole > 0 else None


def _family(item: Item, family: str, scoring: Scoring) -> dict[str, Ratio]:
    if family == "rouge":
        return scoring.rouge(item)
    if family == "exact":
        return scoring.exact_match(item)
    if family == "length":
        return _length(item, scoring)
    if item.failed:
        return {}
    if family == "choices":
        return _accuracy(item)
    if family == "words":
        return _repetition(item.text.split(), "")
    if family == "tokens":
        return _repetition(item.token_ids or [], "token_")
    if family == "likelihood":
        return _likelihood(item)
    if family == "logprobs":
        return _own_likelihood(item)
    if family == "loops":
        return _loops(item)
    return _statistics(item, scoring)


# LongWriter (arXiv 2408.07055, evaluation/pred.py): Chinese characters, and runs of a to z that no other letter, digit
# or underscore touches.
_COUNTED = re.compile(r"[\u4e00-\u9fff]|\b[A-Za-z]+\b")


def count_words(text: str) -> int:
    """The length of a text as LongWriter measures it."""
    return sum(1 for _ in _COUNTED.finditer(text))


def length_score(required: int, words: int) -> float:
    """S_l of LongWriter (evaluation/eval_length.py): 100 at the required length, 0 at 4 times and at 1/3 of it."""
    if words == 0:
        return 0.0
    excess = (words / required - 1) / 3 if words > required else (required / words - 1) / 2
    return 100 * max(0.0, 1 - excess)


def _length(item: Item, scoring: Scoring) -> dict[str, Ratio]:
    if item.required_words is None:
        return {}
    words = count_words(scoring.answer(item))
    return {"words": (float(words), 1.0), "length_score": (length_score(item.required_words, words), 1.0)}


def mean_distinct(units: Sequence[int]) -> float:
    """Mean of distinct-1 to -4, of those that the text is long enough for."""
    shares = [distinct / count for distinct, count in distinct_ngrams(number_units(units)) if count > 0]
    return math.fsum(shares) / len(shares)


def _repetition(units: Sequence[str] | Sequence[int], prefix: str) -> dict[str, Ratio]:
    numbers = number_units(units)
    if len(numbers) == 0:
        return {}
    shares = [distinct / count for distinct, count in distinct_ngrams(numbers) if count > 0]
    values = {f"distinct_{n}": share for n, share in enumerate(shares, start=1)}
    if len(shares) == 4:
        values["distinct"] = sum(shares) / 4
        values["repetition"] = 1 - shares[3]
    values["longest_repeat"] = longest_repeat(numbers)
    return {prefix + name: (value, 1.0) for name, value in values.items()}


def onset_of(item: Item) -> int | None:
    """Tokens of the item before the first repeated one; None where it does not loop."""
    if item.finish_reason == "repetition":
        return max(item.num_tokens - item.loop_length, 0)
    return loop_onset(number_units(item.token_ids or []), item.loop_length)


def _loops(item: Item) -> dict[str, Ratio]:
    if not item.shows_loops:
        return {}
    onset = onset_of(item)
    return {"loops": (0.0, 1.0)} if onset is None else {"loops": (1.0, 1.0), "loop_onset": (float(onset), 1.0)}


def _accuracy(item: Item) -> dict[str, Ratio]:
    shares = {"acc": item.acc, "acc_norm": item.acc_norm, "mc2": item.mc2}
    return {name: (100.0 * share, 1.0) for name, share in shares.items() if share is not None}


def _likelihood(item: Item) -> dict[str, Ratio]:
    if item.nll is None or item.scored_tokens <= 0:
        return {}
    loss = (item.nll, float(item.scored_tokens))
    bits = item.nll / math.log(2) if item.scored_bytes > 0 else 0.0
    ratios = {"loss": loss, "perplexity": loss, "bits_per_byte": (bits, float(item.scored_bytes))}
    if item.greedy_tokens is not None:
        ratios["token_accuracy"] = (100.0 * item.greedy_tokens, float(item.scored_tokens))
    return ratios


def _own_likelihood(item: Item) -> dict[str, Ratio]:
    if item.own_nll is None or item.num_tokens <= 0:
        return {}
    return {"own_perplexity": (item.own_nll, float(item.num_tokens))}


def _statistics(item: Item, scoring: Scoring) -> dict[str, Ratio]:
    def ratio(part: str, whole: str) -> Ratio:
        return float(item.stats.get(part, 0)), float(item.stats.get(whole, 0))

    ratios: dict[str, Ratio] = {"tokens": (float(item.num_tokens), 1.0)}
    if item.stats:
        ratios["block_efficiency"] = ratio("num_tokens", "target_calls")
        ratios["acceptance"] = ratio("accepted", "drafted")
        ratios["drafts_per_call"] = ratio("drafted", "target_calls")
        ratios["resampled"] = ratio("accepted_resampled", "accepted")
        ratios["mbsu"] = _memory_bound(item, scoring.draft_ratio)
    return ratios


def _memory_bound(item: Item, draft_ratio: float | None) -> Ratio:
    """Tokens, and target calls with what drafts cost beside them; where nothing was drafted that is nothing.

    `draft_ratio`: the cost of a level of the draft tree, for another pair of models than the run's.
    """
    tokens, calls = float(item.stats.get("num_tokens", 0)), float(item.stats.get("target_calls", 0))
    if draft_ratio is not None and item.stats.get("draft_calls", 0) > 0:
        return (0.0, 0.0) if item.draft_depth is None else (tokens, calls * (item.draft_depth * draft_ratio + 1))
    efficiency, mbsu = item.stats.get("block_efficiency", 0), item.stats.get("mbsu", 0)
    if mbsu > 0:
        return tokens, calls * efficiency / mbsu
    return (tokens, calls) if item.stats.get("draft_calls", 0) == 0 else (0.0, 0.0)
