#!/usr/bin/env python3
"""Compares longhaul's tokenizer with the Python packages: all files of a folder, and random strings. Run by hand.

    compare_tokenizers.py --tokenize BUILD/tests/tokenize [--data FOLDER] [--random 10000] [MODEL_FOLDER ...]

`cmake --build BUILD --target tokenize` builds the program.
Without MODEL_FOLDERs: the kinds of tests/data/tokenizer. Random strings use characters assigned in Unicode 14 (the
version of Debian 12's libraries and of Python 3.11; another Python is refused), drawn so that letters, marks, white
space and punctuation of all scripts are mixed. Further texts hold every assigned character, runs of white space, and
the model's own added tokens, whole and cut. Texts are compared whole and line by line; then what comes before a text
if special tokens are asked for, the decoded text, and that of random ids. If there are differences, prints the first
ones and exits with code 1.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import time
import unicodedata

import tokenizer_reference as reference


def assigned_characters():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"error: needs a Python with Unicode 14 (3.11), this one has {unicodedata.unidata_version}")
    groups = {}
    for code in range(1, 0x110000):
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs"):
            groups.setdefault("Co" if category == "Co" else category, []).append(chr(code))
    return groups


def random_strings(count, seed):
    rng = random.Random(seed)
    groups = assigned_characters()
    everything = [c for group, chars in groups.items() if group != "Co" for c in chars]
    ascii_text = [chr(code) for code in range(32, 127)] + ["\n", "\r", "\t", " ", " ", " ", "'"]
    names = sorted(groups)
    marks = groups["Mn"] + groups["Mc"] + groups["Me"]

    def character():
        kind = rng.random()
        if kind < 0.35:
            return rng.choice(everything)
        if kind < 0.60:
            return rng.choice(ascii_text)
        if kind < 0.85:
            return rng.choice(groups[rng.choice(names)])
        if kind < 0.95:
            return rng.choice(marks)
        return rng.choice(["'s", "'LL", "'\u017f", "\u180e", "\u0085", "  ", "\r\n", "123", "\u2581", "<s>", "<0x0A>"])

    return ["".join(character() for _ in range(rng.randrange(1, 40))) for _ in range(count)]


def all_characters(per_text=24):
    """Every assigned character once alone among spaces and once among its neighbours (private use: a few)."""
    groups = assigned_characters()
    groups["Co"] = groups.get("Co", [])[::1000]
    characters = sorted(c for chars in groups.values() for c in chars)
    rows = [characters[i:i + per_text] for i in range(0, len(characters), per_text)]
    return ["".join(row) for row in rows] + [" ".join(row) for row in rows]


def white_space_texts():
    """Runs of white space of all lengths up to 40, and of mixed kinds, between words and at the ends."""
    rng = random.Random(3)
    runs = [c * n for c in " \n\t\r\u2581\u00a0" for n in range(1, 41)]
    runs += ["".join(rng.choice(" \n\t\r\u2581\u3000") for _ in range(rng.randrange(2, 30))) for _ in range(300)]
    return [left + run + right for run in runs for left in ("", "a", "1", ".") for right in ("", "b", "2", "!")]


def added_token_texts(names, count):
    """Added tokens of the model in all surroundings: next to each other, to white space and words, and cut."""
    rng = random.Random(5)
    names = [name for name in names if name]
    if not names:
        return []
    around = ["", " ", "  ", "\n", "\n\n", "\t", "a", "Word", " word", "\u2581", "\u00e9", "e\u0301", "\u4e2d", "7",
              "<", ">", "|"]

    def part():
        kind = rng.random()
        name = rng.choice(names)
        if kind < 0.5:
            return rng.choice(around)
        if kind < 0.9:
            return name
        at = rng.randrange(len(name))
        return rng.choice([name[:at], name[at:], name[:at] + " " + name[at:], name.upper(), name[:at] + name])

    return names + ["".join(part() for _ in range(rng.randrange(2, 9))) for _ in range(count)]


def data_texts(folder):
    texts = []
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file() and path.suffix not in (".xz", ".gz", ".md"):
            text = path.read_bytes().decode("utf-8").replace("\0", "")
            texts += [text] + text.splitlines(keepends=True)
    return texts


class Ours:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def _run(self, mode, data):
        return subprocess.run([self.program, mode, self.folder], input=data, stdout=subprocess.PIPE, check=True).stdout

    def encode(self, texts):
        lines = self._run("encode", "".join(text + "\0" for text in texts).encode()).decode().splitlines()
        return [[int(word) for word in line.split()] for line in lines]

    def before_text(self):
        return [int(word) for word in self._run("before", b"").split()]

    def decode(self, rows):
        texts = self._run("decode", "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()).split(b"\0")
        # Some texts contain NUL, so the whole output is compared at once.
        return b"\0".join(texts)


def report(kind, what, cases):
    print(f"{kind}: {what}: {len(cases)} differences")
    for case in cases[:3]:
        print("   ", *[repr(part)[:300] for part in case], sep="\n    ")


def compare(program, folder, texts, num_rows):
    judge, ours = reference.load(folder), Ours(program, folder)
    kind = pathlib.Path(folder).name
    texts = texts + added_token_texts(judge.added_tokens(), num_rows)
    start = time.time()
    expected = [judge.encode(text) for text in texts]
    theirs_seconds = time.time() - start
    start = time.time()
    found = ours.encode(texts)
    ours_seconds = time.time() - start
    if len(found) != len(expected):
        sys.exit(f"error: {len(found)} lines for {len(expected)} texts")
    wrong = [(t, e, f) for t, e, f in zip(texts, expected, found) if e != f]
    num_ids = sum(map(len, expected))
    report(kind, f"{len(texts)} texts, {num_ids} tokens (theirs {theirs_seconds:.1f} s, ours {ours_seconds:.1f} s)", wrong)

    before = [judge.before_text(), ours.before_text()]
    wrong_before = [before] if before[0] != before[1] else []
    report(kind, f"ids before a text: {before[1]}", wrong_before)

    rng = random.Random(7)
    size = judge.vocab_size()
    rows = [ids for ids in expected if len(ids) < 1000][-20000:]
    rows += [[rng.randrange(size if i % 2 else min(size, 270)) for _ in range(rng.randrange(1, 12))]
             for i in range(num_rows)]
    wrong_rows = []
    for begin in range(0, len(rows), 1000):
        part = rows[begin:begin + 1000]
        texts_of = lambda row: (judge.decode(row, True) + "\0" + judge.decode(row, False) + "\0").encode()
        if ours.decode(part) != b"".join(map(texts_of, part)):
            wrong_rows += [(row, texts_of(row), ours.decode([row])) for row in part if ours.decode([row]) != texts_of(row)]
    report(kind, f"decoding {len(rows)} rows of ids", wrong_rows)
    return len(wrong) + len(wrong_before) + len(wrong_rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", required=True, help="the program built from tests/tools/tokenize_main.cpp")
    parser.add_argument("--data", help="folder of texts")
    parser.add_argument("--random", type=int, default=10000, help="random strings, and random rows of ids (10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random strings (1)")
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    folders = options.models or sorted(
        path for path in (pathlib.Path(__file__).parent.parent / "data" / "tokenizer").iterdir() if path.is_dir())
    texts = data_texts(options.data) if options.data else []
    texts += random_strings(options.random, options.seed) + all_characters() + white_space_texts()
    differences = sum(compare(options.tokenize, str(folder), texts, options.random) for folder in folders)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
