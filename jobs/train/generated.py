"""Text that the target itself wrote, for its draft model to learn from or to be measured on.

python generated.py prompts --text FOLDER --tokenizer MODEL --out PROMPTS.jsonl
    cuts prompts out of books, for `longhaul run generate.cfg --data=PROMPTS.jsonl --output=RUN`
python generated.py tokens --tokenizer MODEL --prompts PROMPTS.jsonl --run RUN --out GENERATED.npy
    prompts and continuations as one array of tokens, for `train.py --generated`
"""

import argparse
import json
import pathlib

import numpy as np
from tokenizers import Tokenizer

import data


def cut(tokens, special, count, shortest, longest, seed):
    """Pieces of shortest to longest tokens at random places, within one book each."""
    rng = np.random.default_rng(seed)
    pieces = []
    while len(pieces) < count:
        length = int(rng.integers(shortest, longest + 1))
        start = int(rng.integers(len(tokens) - length))
        piece = tokens[start : start + length]
        if not np.isin(piece, special).any():
            pieces.append(piece)
    return pieces


def read(prompts, run, tokenizer):
    """Pairs of token lists, prompt (from begin_of_text) and continuation, of a run of `task = prompts` with `token-ids = true`."""
    texts = [json.loads(line)["prompt"] for line in pathlib.Path(prompts).read_text(encoding="utf-8").splitlines()]
    with open(pathlib.Path(run) / "results.jsonl", encoding="utf-8") as results:
        for record in map(json.loads, results):
            if "error" not in record:
                yield tokenizer.encode(texts[int(record["id"]) - 1]).ids, record["token_ids"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prompts", "tokens"])
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--text", help="prompts: folder of *.txt files")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--shortest", type=int, default=64, help="tokens of the shortest prompt")
    parser.add_argument("--longest", type=int, default=384)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", help="tokens: what `prompts` wrote")
    parser.add_argument("--run", help="tokens: the run folder")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.tokenizer) / "tokenizer.json"))
    if args.what == "prompts":
        tokens, special = data.tokens_of(args.text, tokenizer), [tokenizer.token_to_id(t) for t in data.ENDS]
        pieces = cut(tokens, special, args.count, args.shortest, args.longest, args.seed)
        with open(args.out, "w", encoding="utf-8") as out:
            for piece in pieces:
                # A cut may part the bytes of a letter.
                out.write(json.dumps({"prompt": tokenizer.decode(piece.tolist()).strip("\ufffd")}) + "\n")
    else:
        parts = [np.array(prompt + new, dtype=np.uint16) for prompt, new in read(args.prompts, args.run, tokenizer)]
        np.save(args.out, np.concatenate(parts))
        print(f"{sum(map(len, parts))} tokens of {len(parts)} texts")


if __name__ == "__main__":
    main()
