"""How often a draft model's token is accepted, on text that the target wrote.

python acceptance.py --target MODEL --draft DRAFT --prompts PROMPTS.jsonl --run RUN --temperature 0.3
RUN: continuations of PROMPTS by the target at this temperature (generated.py). Of each token that it wrote, with p the
target's and q the draft's distribution at this temperature, the mean of
  rejection   sum min(p, q): a token drawn from q is accepted by rejection sampling
  coupled     one Gumbel noise on log p and log q has the same argmax: `verify = coupled`
  greedy      the most probable token of both is the same
"""

import argparse

import torch

from evaluate import load, tokenizer_of
from generated import read
from model import rotary

NOISES = 4


def rates(p, q, generator):
    """Rates of the rows of two log-distributions."""
    result = {"rejection": torch.minimum(p.exp(), q.exp()).sum(-1)}
    same = torch.zeros(len(p))
    for _ in range(NOISES):
        noise = -torch.empty_like(p).exponential_(generator=generator).log()
        same += ((p + noise).argmax(-1) == (q + noise).argmax(-1)) / NOISES
    return {**result, "coupled": same, "greedy": (p.argmax(-1) == q.argmax(-1)).float()}


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("target", "draft", "prompts", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, draft, tokenizer = load(args.target), load(args.draft), tokenizer_of(args.target)
    generator = torch.Generator().manual_seed(1)
    found = []
    for prompt, new in read(args.prompts, args.run, tokenizer):
        tokens = torch.tensor([prompt + new[:-1]])
        place = rotary(target.config, torch.arange(tokens.shape[1]))
        p, q = (
            torch.log_softmax(model(tokens, *place)[0, len(prompt) - 1 :] / args.temperature, -1) for model in (target, draft)
        )
        found.append(rates(p, q, generator))
    for name in found[0]:
        print(f"{name:10} {torch.cat([rows[name] for rows in found]).mean():.4f}")
    print(f"{sum(len(rows['greedy']) for rows in found)} tokens of {len(found)} texts, temperature {args.temperature}")


if __name__ == "__main__":
    main()
