"""How often the drafts of `draft = self` are accepted, by partial-cache-mode, draft-precision and length of the text.

python3 partial_cache.py LONGHAUL MODEL BOOKS [--lengths 4096 16384 65536] [--books 3] [--tokens 500]

BOOKS: a folder of long texts (task pg19). Continues each book after a prompt of the given length with one draft a step
and prints the share of accepted drafts with its standard error, over all books, and the tokens per second beside those
of plain decoding. The texts of all runs are compared: they must be equal.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile

MODES = ("window", "dynamic", "static", "full")
PRECISIONS = ("int4", "int8", "same")


def run(args, folder, length, **keys):
    keys = {
        "task": "pg19",
        "data": pathlib.Path(args.books_folder).resolve(),
        "model": pathlib.Path(args.model).resolve(),
        "output": folder,
        "limit": args.books,
        "prompt-tokens": length,
        "max-tokens": args.tokens,
        "ignore-eos": "true",
        "temperature": 0.8,
        "min-p": 0.1,
        **keys,
    }
    job = folder.with_suffix(".cfg")
    job.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    done = subprocess.run([args.longhaul, "run", job], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    stats = [json.loads(line) for line in (folder / "stats.jsonl").read_text().splitlines()]
    return stats, (folder / "results.jsonl").read_bytes()


def speed(stats):
    return sum(s["num_tokens"] - 1 for s in stats) / sum(s["seconds"] - s["prefill_seconds"] for s in stats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("longhaul")
    parser.add_argument("model")
    parser.add_argument("books_folder")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--modes", nargs="+", default=MODES)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--budget", default="auto", help="partial-cache")
    parser.add_argument("--books", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=500)
    args = parser.parse_args()
    for length in args.lengths:
        with tempfile.TemporaryDirectory() as folder:
            plain, right = run(args, pathlib.Path(folder) / "plain", length, draft="ar")
            for mode in args.modes:
                for precision in args.precisions:
                    keys = {"draft": "self", "draft-tree": 1, "ngram-top": 0, "draft-precision": precision}
                    keys |= {"partial-cache-mode": mode, "partial-cache": args.budget}
                    stats, text = run(args, pathlib.Path(folder) / f"{mode}-{precision}", length, **keys)
                    if text != right:
                        raise SystemExit(f"{mode}, {precision}: another text than plain decoding's")
                    drafted = sum(s["drafted"] for s in stats)
                    rate = sum(s["accepted"] for s in stats) / drafted
                    error = math.sqrt(rate * (1 - rate) / drafted)
                    gain = speed(stats) / speed(plain)
                    print(f"{length:7} {mode:8} {precision:5} {rate:.3f} +- {error:.3f}   x {gain:.2f}", flush=True)


if __name__ == "__main__":
    main()
