#!/usr/bin/env python3
"""Writes the prompts of jobs/longwriter.jsonl: eight texts, each asked for in six lengths, as LongWrite-Ruler does it
(LongWriter, arXiv 2408.07055). Lines {"id", "prompt", "type", "length"}, data of `task = longwriter`.

usage: longwriter.py > longwriter.jsonl
"""

import json

LENGTHS = (1000, 2000, 5000, 10000, 20000, 30000)
SUBJECTS = {
    "lighthouse": ("fiction", "novel about a lighthouse keeper who finds letters in her own hand"),
    "explorer": ("fiction", "biography of an explorer who never existed, with her travels and quarrels"),
    "inheritance": ("fiction", "detective story in which nobody wants to inherit the house"),
    "beekeeping": ("guide", "handbook for someone who keeps bees for the first time, season by season"),
    "museum": ("plan", "plan for turning an old mill into a small museum, with rooms, costs and risks"),
    "railways": ("history", "history of night trains in Europe"),
    "water": ("report", "report on the water supply of a city that doubles its population"),
    "statistics": ("lecture", "course of lectures on statistics for people who distrust numbers"),
}


def main():
    for length in LENGTHS:
        for name, (kind, text) in SUBJECTS.items():
            prompt = f"Write a {length}-word {text}."
            print(json.dumps({"id": f"{name}-{length}", "prompt": prompt, "type": kind, "length": length}))


if __name__ == "__main__":
    main()
