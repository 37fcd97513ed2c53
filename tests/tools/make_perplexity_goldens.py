#!/usr/bin/env python3
"""Writes tests/data/parity/perplexity.json: the losses of Hugging Face transformers on given texts, window by window.

Run by hand when a case is added or the demo's weights change. The result is committed, so that no test needs PyTorch:

    pip install torch transformers
    python3 tests/tools/make_perplexity_goldens.py tests/data/parity

The loop is that of transformers' documentation, "Perplexity of fixed-length models"; prompt tokens are not counted.
"""

import argparse
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "jobs" / "demo"

# model, prompt tokens, window, stride
CASES = [
    ("llama-default", 1, 1024, 512),
    ("llama-default", 20, 128, 64),
    ("llama-default", 20, 128, 128),
    ("llama-default", 300, 100, 7),
    ("demo", 1, 512, 256),
    ("demo", 40, 64, 16),
    ("demo", 40, 512, 512),
]


def random_tokens(parity):
    return json.loads((parity / "llama-default" / "golden.json").read_text())["tokens"]


def book_tokens():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "model" / "tokenizer.json"))
    text = (DEMO / "books" / "84-frankenstein.txt").read_text(encoding="utf-8")
    return tokenizer.encode(text[:6000], add_special_tokens=False)[:900]


@torch.no_grad()
def losses(model, tokens, prompt_tokens, window, stride):
    """(position, -log p) of every scored token."""
    scored = []
    previous_end = 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + window, len(tokens))
        logits = model(torch.tensor([tokens[begin:end]])).logits[0]
        first = max(previous_end, prompt_tokens, begin + 1)  # a window's first token has no context
        for position in range(first, end):
            target = torch.tensor(tokens[position])
            scored.append((position, torch.nn.functional.cross_entropy(logits[position - 1 - begin], target).item()))
        previous_end = end
        if end == len(tokens):
            break
    return scored


def golden(model, name, tokens, prompt_tokens, window, stride):
    scored = losses(model, tokens, prompt_tokens, window, stride)
    buckets = {}
    for position, loss in scored:
        first = 1 << (position.bit_length() - 1)
        count, nll = buckets.get(first, (0, 0.0))
        buckets[first] = (count + 1, nll + loss)
    return {
        "model": name,
        "prompt_tokens": prompt_tokens,
        "window": window,
        "stride": stride,
        "num_tokens": len(scored),
        "nll": round(sum(loss for _, loss in scored), 6),
        "loss_by_position": [[first, count, round(nll, 6)] for first, (count, nll) in sorted(buckets.items())],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data/parity")
    parity = parser.parse_args().folder
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    tokens = {"llama-default": random_tokens(parity), "demo": book_tokens()}
    folders = {"llama-default": parity / "llama-default", "demo": DEMO / "model"}
    models = {}
    for name, folder in folders.items():
        models[name] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    cases = [golden(models[name], name, tokens[name], *rest) for name, *rest in CASES]
    lines = [f'"tokens": {json.dumps(tokens)}', '"cases": [\n    ' + ",\n    ".join(map(json.dumps, cases)) + "\n  ]"]
    (parity / "perplexity.json").write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")
    for case in cases:
        print(case["model"], case["window"], case["stride"], case["nll"] / case["num_tokens"])


if __name__ == "__main__":
    main()
