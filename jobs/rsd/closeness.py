#!/usr/bin/env python3
"""How close a draft model is to its target, and how often each rule keeps one of K drafts of a token.

usage: closeness.py TARGET DRAFT PROMPTS.jsonl RESULTS.jsonl [--temperature 1] [--top-p 1] [--every 8] [--drafts 1,2,5]

PROMPTS.jsonl and RESULTS.jsonl are data and results of a job (`task = prompts`). Both models read its texts as they
were generated. At every 8th generated position the rules are computed from their distributions p (draft) and q
(target):

  K-SEQ        K drafts with replacement (SpecTr): 1 - (1 - b)^K, b = sum of min(p, q / g), g the best gamma
  multi-round  the same drafts, tried one after another (SpecInfer)
  recursive    K drafts without replacement (RSD): the sum over the first rejected draft; from the third draft on over
               64 drawn sequences of rejected drafts

Needs torch and transformers.
"""

import argparse
import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def distribution(logits, temperature, top_p):
    """Probabilities of a row after temperature and top-p."""
    row = torch.softmax(logits.double() / temperature, dim=-1).numpy()
    if top_p < 1:
        order = np.argsort(-row, kind="stable")
        kept = order[: np.searchsorted(np.cumsum(row[order]), top_p) + 1]
        filtered = np.zeros_like(row)
        filtered[kept] = row[kept]
        row = filtered / filtered.sum()
    return row


def k_seq(p, q, drafts):
    """Probability that K-SEQ with the best gamma accepts one of the drafts."""
    low, high = 1.0, float(drafts)
    for _ in range(40):
        gamma = (low + high) / 2
        beta = np.minimum(p, q / gamma).sum()
        if 1 - (1 - beta) ** drafts <= gamma * beta:
            high = gamma
        else:
            low = gamma
    return 1 - (1 - np.minimum(p, q / high).sum()) ** drafts


def multi_round(p, q, drafts):
    """The same for independent drafts that are tried one after another."""
    rejected = 1.0
    for _ in range(drafts):
        accepted = np.minimum(p, q).sum()
        rejected *= 1 - accepted
        rest = np.maximum(q - p, 0)
        if rest.sum() <= 0:
            break
        q = rest / rest.sum()
    return 1 - rejected


def recursive(p, q, drafts, random):
    """The same without replacement: exact for two drafts, else the mean of 64 drawn sequences of rejected drafts."""
    first = np.minimum(p, q).sum()
    lost = np.maximum(p - q, 0)  # p(x) times the probability that x is rejected
    if drafts == 1 or lost.sum() <= 1e-12:
        return first
    rest = np.maximum(q - p, 0)
    rest /= rest.sum()
    tokens = np.flatnonzero(lost > 1e-6 * lost.sum())
    if drafts > 2:
        tokens = random.choice(tokens, size=min(64, len(tokens)), p=lost[tokens] / lost[tokens].sum(), replace=True)
    kept = []
    for token in tokens:
        without = p.copy()
        without[token] = 0
        if without.sum() <= 1e-12:
            kept.append(0.0)
            continue
        kept.append(recursive_step(without / without.sum(), rest, drafts - 1, random))
    weights = lost[tokens] if drafts == 2 else np.ones(len(tokens))
    return first + (1 - first) * float(np.average(kept, weights=weights))


def recursive_step(p, q, drafts, random):
    """One drawn sequence of rejected drafts from the second on."""
    rejected = 1.0
    for left in range(drafts, 0, -1):
        rejected *= 1 - np.minimum(p, q).sum()
        if left == 1 or rejected <= 1e-12:
            break
        lost, rest = np.maximum(p - q, 0), np.maximum(q - p, 0)
        if lost.sum() <= 1e-12:
            break
        token = random.choice(len(p), p=lost / lost.sum())
        p = p.copy()
        p[token] = 0
        if rest.sum() <= 0 or p.sum() <= 1e-12:
            break
        q, p = rest / rest.sum(), p / p.sum()
    return 1 - rejected


def texts_of(prompts, results):
    """Pairs of prompt and generated text."""
    with open(prompts, encoding="utf-8") as file:
        given = {line["id"]: line["prompt"] for line in map(json.loads, file)}
    with open(results, encoding="utf-8") as file:
        return [(given[line["id"]], line["text"]) for line in map(json.loads, file) if line["id"] in given]


def main():
    """Prints a table."""
    parser = argparse.ArgumentParser(description="Compares a draft model with its target.")
    for name in ("target", "draft", "prompts", "results"):
        parser.add_argument(name)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=8, help="positions that are compared (every 8th)")
    parser.add_argument("--drafts", default="1,2,5", help="numbers of drafts (1,2,5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
              for folder in (options.draft, options.target)]  # fmt: skip
    counts = [int(number) for number in options.drafts.split(",")]
    rows, random = [], np.random.default_rng(1)
    for prompt, text in texts_of(options.prompts, options.results):
        start = len(tokenizer(prompt)["input_ids"])
        ids = torch.tensor([tokenizer(prompt + text)["input_ids"]])
        with torch.inference_mode():
            logits = [model(ids).logits[0] for model in models]
        for at in range(start - 1, ids.shape[1] - 1, options.every):
            p, q = (distribution(row[at], options.temperature, options.top_p) for row in logits)
            entropy = -float(np.sum(q[q > 0] * np.log(q[q > 0])))
            row = [np.minimum(p, q).sum(), entropy, float((p * p).sum())]
            for drafts in counts:
                row += [k_seq(p, q, drafts), multi_round(p, q, drafts), recursive(p, q, drafts, random)]
            rows.append(row)
    table = np.array(rows)
    mean, error = table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(len(rows))
    print(f"temperature {options.temperature:g}, top-p {options.top_p:g}, {len(rows)} positions")
    print(f"1 - total variation {mean[0]:.3f} ± {error[0]:.3f}; entropy of the target {mean[1]:.2f} nats; "
          f"probability that two drafts are the same token {mean[2]:.3f}\n")  # fmt: skip
    print("| drafts | K-SEQ | multi-round | recursive | recursive - K-SEQ |")
    print("|---:|---:|---:|---:|---:|")
    for place, drafts in enumerate(counts):
        first = 3 + 3 * place
        gain = table[:, first + 2] - table[:, first]
        print(f"| {drafts} | {mean[first]:.3f} | {mean[first + 1]:.3f} | {mean[first + 2]:.3f} | "
              f"{gain.mean():+.4f} ± {gain.std(ddof=1) / np.sqrt(len(rows)):.4f} |")  # fmt: skip


if __name__ == "__main__":
    main()
