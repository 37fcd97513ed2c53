"""Draft heads for a trained model: small layers that guess the tokens behind the next one from the model's own hidden state.

python heads.py states --target MODEL --text BOOKS --windows 500 --out STATE/books
python heads.py states --target MODEL --generated GENERATED.npy --windows 500 --out STATE/own
python heads.py train --target MODEL --states STATE/books STATE/own --out STATE/heads.pt
python heads.py export --target MODEL --state STATE/heads.pt --out HEADS
python heads.py measure --target MODEL --heads HEADS --file HELD-OUT.txt

With h0 the target's hidden state at position t, before its final norm, and i = 1, 2, 3:

    h_i = h0 + W_i · RMSNorm_in,i(h0)                independent heads (Medusa; the baseline "Medusa*" of TokenSwift)
    h_i = h_(i-1) + W_i · RMSNorm_in,i(h_(i-1))      --chained (TokenSwift's own)
    logits_i = lm_head(RMSNorm_post,i(h_i))          the target's own head, which stays as it is

The model itself predicts token t+1, head i token t+1+i. W_i is [hidden, hidden], without bias.

states: runs the target over windows of text once and keeps tokens and hidden states on disk ([window, position, hidden],
float16). train: learns from them. RMSNorm_post,i starts as the target's final norm, W_i from a linear regression (or, with
--regression-blocks 0, from zero: every head is then a copy of the target's own prediction). Run the same command again to
resume either. export: a folder in bf16, with the tensor names of TokenSwift's published checkpoints. measure: accuracy of
each head on held-out text.
"""

import argparse
import json
import math
import os
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

import data
from evaluate import load, tokenizer_of
from generated import read
from model import Norm, rotary
from stored_states import States


class Head(nn.Module):
    """One step along the residual stream, and the norm before the target's head. Names as in published checkpoints."""

    def __init__(self, size, eps):
        super().__init__()
        self.linear = nn.Linear(size, size, bias=False)
        self.input_layernorm, self.post_layernorm = Norm(size, eps), Norm(size, eps)

    def forward(self, x):
        return x + self.linear(self.input_layernorm(x))


class Heads(nn.Module):
    def __init__(self, size, eps, count, chained):
        super().__init__()
        self.medusa_layers, self.chained = nn.ModuleList(Head(size, eps) for _ in range(count)), chained

    def start_from(self, final_norm):
        """Every head begins as the target's own prediction."""
        for head in self.medusa_layers:
            nn.init.zeros_(head.linear.weight)
            head.post_layernorm.weight.data.copy_(final_norm.weight.data)

    def forward(self, h0):
        """What the target's head is given, of each head: hidden states [..., hidden] behind their own norm."""
        h = h0
        for head in self.medusa_layers:
            h = head(h if self.chained else h0)
            yield head.post_layernorm(h)


def load_heads(folder):
    """The exported heads of a folder, in f32."""
    folder = pathlib.Path(folder)
    c = json.loads((folder / "config.json").read_text())
    heads = Heads(c["hidden_size"], c["rms_norm_eps"], c["medusa_heads"], c["chained"]).eval()
    weights = load_file(folder / "model.safetensors")
    heads.load_state_dict({name.removeprefix("model."): w.float() for name, w in weights.items()})
    return heads


# --- states ---


def windows_of(args):
    """Windows of length + 1 tokens, by number: of books, or of text that the target wrote."""
    if args.generated:
        tokens = np.concatenate([np.load(path) for path in args.generated])
    else:
        tokens = data.tokens_of(args.text, tokenizer_of(args.target), pathlib.Path(args.out) / "all.npy")
    return data.Windows(tokens, args.length, args.seed)


def open_array(path, dtype, shape):
    """An array on disk that is written window by window; one that is there already is opened as it is."""
    if path.exists():
        found = np.load(path, mmap_mode="r+")
        if found.shape != shape:
            raise SystemExit(f"{path}: has shape {found.shape}, wanted {shape}: remove it, or ask for as many windows")
        return found
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


@torch.inference_mode()
def states(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    target, windows = load(args.target), windows_of(args)
    place = rotary(target.config, torch.arange(args.length))
    tokens = open_array(out / "tokens.npy", np.uint16, (args.windows, args.length + 1))
    hidden = open_array(out / "hidden.npy", np.float16, (args.windows, args.length, target.config.hidden_size))
    # Windows are done in order; the file of this number is written behind their arrays.
    done = out / "done.json"
    first, started = json.loads(done.read_text()) if done.exists() else 0, time.monotonic()
    for number in range(first, args.windows):
        tokens[number] = windows[number]
        h = target.hidden(torch.from_numpy(windows[number])[None, :-1], *place)[0]
        if h.abs().max() > 6e4:
            raise SystemExit("heads.py: a hidden state is too large for float16")
        hidden[number] = h.half().numpy()
        if number % 10 == 9 or number + 1 == args.windows:
            tokens.flush(), hidden.flush()
            write_whole(done, lambda path: path.write_text(json.dumps(number + 1)))
            speed = (number + 1 - first) * args.length / (time.monotonic() - started)
            print(f"{number + 1} of {args.windows} windows, {speed:.0f} tokens/s", flush=True)


def write_whole(path, write):
    """The file appears whole or not at all."""
    partial = path.with_suffix(".partial")
    write(partial)
    os.replace(partial, path)


# --- train ---


def learn(args, name, model, adam, losses_of, decay, clip=math.inf, **kept):
    """Trains until args.steps, args.batch blocks per step. The state is in args.out, from where the same command goes on.

    losses_of(number): what is minimised, of one block, and by name what is logged of it (one number per head or level); both are
    means over the blocks of a step. decay(done): of the rate, when this share of the steps is done. kept: what else the state
    holds, for export. Every ten steps a line of means goes to the log beside the state (.jsonl).
    """
    step, seconds, path = 0, 0.0, pathlib.Path(args.out)
    log = path.with_suffix(".jsonl")
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved[name])
        adam.load_state_dict(saved["adam"])
        step, seconds = saved["step"], saved["seconds"]
        print(f"goes on from {path} at step {step}", flush=True)
    else:
        log.unlink(missing_ok=True)
    clock = saved_at = time.monotonic()
    recent = []
    while True:
        if step >= args.steps or clock - saved_at > args.save_seconds:
            saved_at = clock
            content = {name: model.state_dict(), "adam": adam.state_dict(), "step": step, "seconds": seconds} | kept
            write_whole(path, lambda partial: torch.save(content, partial))
        if step >= args.steps:
            break
        rate = args.rate * min(1, (step + 1) / args.warm_up) * decay(step / args.steps)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.zero_grad()
        logged = {}
        for number in range(step * args.batch, (step + 1) * args.batch):
            loss, parts = losses_of(number)
            (loss / args.batch).backward()
            logged = {key: logged.get(key, 0.0) + part.detach() / args.batch for key, part in parts.items()}
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        adam.step()
        step += 1
        recent.append(logged)
        now = time.monotonic()
        seconds, clock = seconds + now - clock, now
        if step % 10 == 0 or step == args.steps:
            means = {key: torch.stack([each[key] for each in recent]).mean(0).tolist() for key in logged}
            with log.open("a") as file:
                print(json.dumps({"step": step, "tokens": step * args.batch * args.block} | means), file=file)
            shown = "  ".join(f"{key} {' '.join(f'{x:.4f}' for x in mean)}" for key, mean in means.items())
            print(f"step {step} of {args.steps}  {shown}  rate {rate:.2e}  {seconds:.0f} s", flush=True)
            recent = []


def losses(target, heads, tokens, h0, against):
    """Loss of each head over one block, mean over its positions, nats.

    against = "text": cross entropy of head i at t against token t+1+i. "target": against the distribution that the target
    itself, having read the text to t+i, gives for that token; less noise than the one token that came, same optimum on
    text that the target wrote.
    """
    if against == "target":
        with torch.no_grad():
            wanted = torch.softmax(target.head(target.norm(h0)), -1)
    for i, x in enumerate(heads(h0), 1):
        logits = target.head(x[: len(h0) - i])
        yield F.cross_entropy(logits, wanted[i:] if against == "target" else tokens[1 + i :])


@torch.no_grad()
def regress(target, heads, seen, blocks):
    """Sets every W_i to the least-squares map to the direction of the target's hidden state at t+i.

    From that state comes the target's own prediction of token t+1+i. Costs one pass over a few blocks, without logits. The
    length of a hidden state is lost in the norm before the head, so all are brought to the mean length.
    """
    length = lambda h: h.pow(2).mean(-1, keepdim=True).sqrt()
    sample = [seen[number][1] for number in range(blocks)]
    mean_length = torch.stack([length(h0).mean() for h0 in sample]).mean()
    for i, head in enumerate(heads.medusa_layers, 1):
        square, cross = 0.0, 0.0
        for h0 in sample:
            start = h0
            if heads.chained:
                for earlier in heads.medusa_layers[: i - 1]:
                    start = earlier(start)
            start, wanted = start[:-i], h0[i:] * (mean_length / length(h0[i:]))
            x = head.input_layernorm(start)
            square, cross = square + x.T @ x, cross + x.T @ (wanted - start)
        square += 1e-4 * square.diagonal().mean() * torch.eye(len(square))
        head.linear.weight.copy_(torch.linalg.solve(square, cross).T)


def train(args):
    torch.manual_seed(args.seed)
    target = load(args.target).requires_grad_(False)
    seen = States(args.states, args.block, args.seed)
    heads = Heads(target.config.hidden_size, target.config.rms_norm_eps, args.count, args.chained)
    heads.start_from(target.norm)
    matrices = [p for p in heads.parameters() if p.dim() == 2]
    gains = [p for p in heads.parameters() if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=args.weight_decay), dict(params=gains, weight_decay=0.0)]
    adam = torch.optim.AdamW(groups, args.rate, betas=(0.9, 0.999))
    if args.regression_blocks and not pathlib.Path(args.out).exists():
        regress(target, heads, seen, args.regression_blocks)

    def losses_of(number):
        # Block by block and head by head: logits of the whole step would not fit the L2 cache.
        parts = torch.stack(list(losses(target, heads, *seen[number], args.against)))
        return parts.sum(), {"loss": parts}

    learn(args, "heads", heads, adam, losses_of, lambda done: 0.5 * (1 + math.cos(math.pi * done)), count=args.count, chained=args.chained)


# --- export ---


def write_folder(folder, config, weights):
    """config.json and the weights, in bf16 (numbers of tokens as they are)."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: (p.to(torch.bfloat16) if p.is_floating_point() else p).contiguous() for name, p in weights.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    print(f"{sum(p.numel() for p in weights.values() if p.is_floating_point())} parameters in {folder / 'model.safetensors'}")


def export(args):
    saved = torch.load(args.state, weights_only=True)
    config = json.loads((pathlib.Path(args.target) / "config.json").read_text())
    own = {"model_type": "medusa_heads", "medusa_heads": saved["count"]}
    own |= {key: config[key] for key in ("hidden_size", "vocab_size", "rms_norm_eps")} | {"chained": saved["chained"]}
    write_folder(args.out, own, {f"model.{name}": p for name, p in saved["heads"].items()})


# --- measure ---


def pipeline(logits, temperature, min_p):
    """Log probabilities as sampling uses them: temperature, then min-p."""
    log_p = torch.log_softmax(logits / temperature, -1)
    if min_p > 0:
        log_p = log_p.masked_fill(log_p < log_p.max(-1, keepdim=True).values + math.log(min_p), -math.inf)
        log_p = torch.log_softmax(log_p, -1)
    return log_p


def add_text(p):
    """Arguments that name the text to measure on."""
    p.add_argument("--file", help="a book")
    p.add_argument("--prompts", help="or text of the target: what `generated.py prompts` wrote")
    p.add_argument("--run", help="and the run folder with its continuations")
    p.add_argument("--length", type=int, default=2048, help="tokens per window of a book")


def pieces(args):
    """Token lists to measure on, and how many of their tokens were given: the first step begins behind these."""
    tokenizer = tokenizer_of(args.target)
    if args.run:
        for prompt, new in read(args.prompts, args.run, tokenizer):
            yield prompt + new, len(prompt)
        return
    tokens = tokenizer.encode(pathlib.Path(args.file).read_text(encoding="utf-8")).ids
    for start in range(0, len(tokens) - args.length, args.length):
        yield tokens[start : start + args.length + 1], 1


@torch.inference_mode()
def measure(args):
    """Prints for each head, in percent: how often the token is its first guess, or one of its first three.

    text: the token that came. argmax: the target's most probable token, having read the text before it. coupled: the token
    that the target draws at --temperature and --min-p, guesses made with the same Gumbel noise (`verify = coupled`).
    At the end the mean number of tokens accepted per step from a tree of 3, 3, 3: heads count up to the first that missed.
    """
    if args.temperature <= 0:
        raise SystemExit("heads.py: --temperature is above 0; the rows text and argmax do not depend on it")
    target = load(args.target)
    heads = load_heads(args.heads)
    generator = torch.Generator().manual_seed(args.seed)
    kinds = ("text", "argmax", "coupled")
    hits = {kind: [] for kind in kinds}
    for tokens, first in pieces(args):
        tokens = torch.tensor(tokens)
        h0 = target.hidden(tokens[None, :-1], *rotary(target.config, torch.arange(len(tokens) - 1)))[0]
        own = target.head(target.norm(h0))  # row s: of token s + 1
        count = len(heads.medusa_layers)
        rows = len(h0) - count  # positions whose guesses all lie within the text
        # The noise belongs to the token's place in the text: target and head are given the same.
        noise = -torch.empty_like(own).exponential_(generator=generator).log()
        drawn = (pipeline(own, args.temperature, args.min_p) + noise).argmax(-1)
        found = {kind: torch.zeros(rows, count, 2, dtype=torch.bool) for kind in kinds}
        for i, x in enumerate(heads(h0), 1):
            logits = target.head(x[:rows])
            plain = logits.topk(3).indices
            noisy = (pipeline(logits, args.temperature, args.min_p) + noise[i : i + rows]).topk(3).indices
            for kind, guesses, wanted in (
                ("text", plain, tokens[1 + i :]), ("argmax", plain, own[i:].argmax(-1)), ("coupled", noisy, drawn[i:]),
            ):  # fmt: skip
                same = guesses == wanted[:rows, None]
                found[kind][:, i - 1] = torch.stack([same[:, 0], same.any(-1)], -1)
        for kind in kinds:
            hits[kind].append(found[kind][first - 1 :])
        if args.limit and sum(map(len, hits["text"])) >= args.limit:
            break
    print(f"{sum(map(len, hits['text']))} positions, temperature {args.temperature}, min-p {args.min_p}")
    for kind in kinds:
        all_hits = torch.cat(hits[kind]).float()
        rates = 100 * all_hits.mean(0)
        cells = "  ".join(f"head {i} {top1:5.1f} {top3:5.1f}" for i, (top1, top3) in enumerate(rates.tolist(), 1))
        accepted = all_hits[..., 1].cumprod(-1).sum(-1).mean()
        print(f"{kind:8} {cells}  accepted per step {accepted:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    parsers = {command.__name__: commands.add_parser(command.__name__) for command in (states, train, export, measure)}
    for p in parsers.values():
        p.add_argument("--target", required=True, help="folder with the exported target")
        p.add_argument("--seed", type=int, default=1)
        p.add_argument("--threads", type=int, default=2)
    p = parsers["states"]
    p.add_argument("--text", help="folder of *.txt files")
    p.add_argument("--generated", nargs="*", default=[], help="text of the target, from generated.py")
    p.add_argument("--windows", type=int, default=500)
    p.add_argument("--length", type=int, default=2048, help="tokens per window")
    p.add_argument("--out", required=True, help="folder for tokens and hidden states")
    p = parsers["train"]
    p.add_argument("--states", nargs="+", required=True, help="folders that `states` wrote, or a job with hidden-states")
    p.add_argument("--count", type=int, default=3, help="heads")
    p.add_argument("--chained", action="store_true", help="each head starts from the one before, not from the target's state")
    p.add_argument("--against", choices=["text", "target"], default="target", help="what is learnt: the token that came, or the target's distribution")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=6, help="windows per step")
    p.add_argument("--block", type=int, default=256, help="positions per window and step: few of each, so that a step sees many texts")
    p.add_argument("--regression-blocks", type=int, default=400, help="blocks that W_i is started from (0 = start from zero)")
    p.add_argument("--rate", type=float, default=5e-3)
    p.add_argument("--warm-up", type=int, default=50, help="steps")
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--save-seconds", type=float, default=60)
    p.add_argument("--out", required=True, help="file for the state")
    p = parsers["export"]
    p.add_argument("--state", required=True)
    p.add_argument("--out", required=True, help="folder for the heads")
    p = parsers["measure"]
    p.add_argument("--heads", required=True, help="folder that `export` wrote")
    add_text(p)
    p.add_argument("--limit", type=int, default=0, help="positions (0 = all)")
    p.add_argument("--temperature", type=float, default=0.8)
    p.add_argument("--min-p", type=float, default=0.1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"states": states, "train": train, "export": export, "measure": measure}[args.what](args)


if __name__ == "__main__":
    main()
