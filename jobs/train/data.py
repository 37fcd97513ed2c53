"""Books in, training windows out: reading, line breaks, tokens, and the order in which windows are seen."""

import pathlib
import re
import textwrap

import numpy as np

WIDTH = 72  # Project Gutenberg's printed line
ENDS = ("<|begin_of_text|>", "<|end_of_text|>")


def normalise(text):
    """Gives every book the form of a Project Gutenberg file: lines of about 70 characters, a blank line between paragraphs.

    Books come in three shapes: that one; one line a paragraph; printed lines with no blank line anywhere. Held-out
    books are measured as they stand, in the first shape, and a small model should not spend capacity on the others.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    lines = [line.rstrip() for line in text.split("\n")]
    filled = [line for line in lines if line]
    if not filled:
        return ""
    lengths = sorted(map(len, filled))
    printed = lengths[len(lengths) * 95 // 100] <= 90
    if printed and sum(not line for line in lines) < 0.02 * len(filled):
        # No blank lines: a line ended a paragraph where the next line's first word would still have fitted on it.
        limit = lengths[len(lengths) * 95 // 100]
        out = []
        for line, following in zip(filled, filled[1:] + [""]):
            out.append(line)
            if len(line) + 1 + len(following.split(" ")[0]) <= limit:
                out.append("")
        lines = out
    elif not printed:
        lines = [part for line in filled for part in textwrap.wrap(line, WIDTH, break_on_hyphens=False) + [""]]
    return re.sub(r"\n{5,}", "\n\n\n\n", "\n".join(lines)).strip("\n") + "\n"


def books(folder):
    """The normalised text of each *.txt below folder, in the order of the names."""
    for path in sorted(pathlib.Path(folder).rglob("*.txt")):
        yield path, normalise(path.read_text(encoding="utf-8"))


def tokens_of(folder, tokenizer, cache=None):
    """All books as one uint16 array, kept in the file cache; each begins with begin_of_text and ends with end_of_text."""
    if cache and pathlib.Path(cache).exists():
        return np.load(cache)
    bos, eos = map(tokenizer.token_to_id, ENDS)
    parts = []
    for _, text in books(folder):
        parts.append(np.array([bos, *tokenizer.encode(text, add_special_tokens=False).ids, eos], dtype=np.uint16))
    if not parts:
        raise SystemExit(f"{folder}: no *.txt file below this folder")
    tokens = np.concatenate(parts)
    if cache:
        np.save(cache, tokens)
    return tokens


def mixed(books, generated, share):
    """books, followed by generated as often as it takes to be about this share of the whole."""
    times = round(share / (1 - share) * len(books) / len(generated))
    return np.concatenate([books, *[generated] * times])


class Windows:
    """Windows of length+1 tokens in a shuffled order, each epoch cut at another phase; any number of them, by number."""

    def __init__(self, tokens, length, seed):
        self.tokens, self.length, self.seed = tokens, length, seed
        self.per_epoch = (len(tokens) - 1) // length - 1
        if self.per_epoch < 1:
            raise SystemExit(f"too little text: {len(tokens)} tokens do not fill two windows of {length}")
        self.epoch = -1

    def __getitem__(self, number):
        epoch, index = divmod(number, self.per_epoch)
        if epoch != self.epoch:
            rng = np.random.default_rng([self.seed, self.length, epoch])
            self.phase, self.order, self.epoch = int(rng.integers(self.length)), rng.permutation(self.per_epoch), epoch
        start = self.phase + int(self.order[index]) * self.length
        return self.tokens[start : start + self.length + 1].astype(np.int64)


def skipped_positions(length, limit, rng, chunks=4):
    """Positions 0..length-1 with growing gaps at random cuts, up to limit (PoSE, Zhu et al. 2023): far distances at the cost of near ones."""
    cuts = np.sort(rng.choice(np.arange(1, length), chunks - 1, replace=False))
    # The total of the gaps is uniform in its logarithm, so that 16K is seen as often as 128K.
    room = np.exp(rng.uniform(np.log(length), np.log(limit - length)))
    gaps = np.sort(rng.uniform(0, room, chunks - 1)).astype(np.int64)
    positions = np.arange(length)
    previous = 0
    for cut, gap in zip(cuts, gaps):
        positions[cut:] += gap - previous
        previous = gap
    return positions
