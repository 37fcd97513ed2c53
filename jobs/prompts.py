#!/usr/bin/env python3
"""Cuts prompts out of books: the same number from each, at places evenly spread, from a word's beginning on.

usage: prompts.py BOOKS [--count 20] [--characters 600] > prompts.jsonl

BOOKS is a folder of NAME.txt; the lines are {"id", "prompt"}, data of `task = prompts`.
"""

import argparse
import json
import sys
from pathlib import Path


def cut(text, places, characters):
    """`places` pieces of `characters` from the beginnings of as many equal parts of the text."""
    for place in range(places):
        start = place * len(text) // places
        if start > 0:
            start = text.find(" ", start) + 1
        piece = text[start : start + characters]
        yield piece[: piece.rfind(" ")]


def main():
    parser = argparse.ArgumentParser(description="Cuts prompts out of a folder of books, as JSON lines.")
    parser.add_argument("books", type=Path, metavar="BOOKS", help="folder of books NAME.txt")
    parser.add_argument("--count", type=int, default=20, help="prompts in all (20)")
    parser.add_argument("--characters", type=int, default=600, help="of a prompt, at most (600)")
    options = parser.parse_args()
    books = sorted(options.books.glob("*.txt"))
    if not books or options.count % len(books) or options.characters < 2:
        sys.exit(f"error: {options.books}: expected books NAME.txt that --count is a multiple of, got {len(books)}")
    for book in books:
        text = book.read_text(encoding="utf-8")
        for place, piece in enumerate(cut(text, options.count // len(books), options.characters)):
            print(json.dumps({"id": f"{book.stem}-{place}", "prompt": piece}, ensure_ascii=False))


if __name__ == "__main__":
    main()
