"""Trains the model on a folder of text, resumably.

python train.py --text FOLDER --out STATE --tokenizer MODEL --stage base --minutes 80
python train.py --text FOLDER --out STATE --tokenizer MODEL --stage long --minutes 40

base: short windows, constant rate after a warm-up; ends after --minutes or --tokens of this stage (or when STATE/stop
appears) and leaves STATE/base.pt, from which any number of last stages can start. long: goes on from base.pt with the rate
falling to zero, and reads some long windows. State is in STATE/base.pt or STATE/long.pt, the log in STATE/log.jsonl. Run the same command again to resume.
--start-from MODEL begins with exported weights where no state was kept; another --seed then gives windows not yet seen.
--size draft --teacher MODEL trains a small model on what MODEL holds probable instead of on what the text says.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import time

import numpy as np
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file
from tokenizers import Tokenizer

import data
from evaluate import load
from model import SIZES, Llama, rotary
from muon import Muon


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", required=True, help="folder of *.txt files")
    p.add_argument("--out", required=True, help="folder for the state")
    p.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    p.add_argument("--start-from", help="folder with exported weights to begin the first stage with, instead of random ones")
    p.add_argument("--size", choices=SIZES, default="target")
    p.add_argument("--teacher", help="folder with exported weights of the same vocabulary, whose distribution is learnt")
    p.add_argument("--generated", nargs="*", default=[], help="text of the teacher, from generated.py")
    p.add_argument("--generated-share", type=float, default=0.5, help="its share of all windows")
    p.add_argument("--stage", choices=["base", "long"], default="base")
    p.add_argument("--minutes", type=float, default=0, help="length of this stage by the clock")
    p.add_argument("--tokens", type=float, default=0, help="length of this stage by tokens")
    p.add_argument("--step-tokens", type=int, default=4096, help="tokens per step")
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--long-window", type=int, default=8192)
    p.add_argument("--long-share", type=float, default=0.15, help="share of the last stage's steps that read long windows")
    p.add_argument("--skip-share", type=float, default=0.5, help="share of the last stage's long windows with position skips (of the short: 0.4 of it)")
    p.add_argument("--micro", type=int, default=1024, help="tokens of short windows a forward pass")
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--warm-up", type=int, default=100, help="steps")
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--processes", type=int, default=os.cpu_count(), help="each computes gradients on one core")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--save-seconds", type=float, default=180)
    return p.parse_args()


def is_matrix(name, p):
    return p.dim() == 2 and "embed" not in name


class Worker:
    """One process's share of the gradients, and of Muon's updates.

    A process a core, not threads: where other programs run on the machine too, threads wait for each other in every operation,
    processes a few times per step, and the faster process takes more of the step's batches. Parameters, gradients and Muon's momentum
    lie in shared memory.
    """

    def __init__(self, rank, args, config, tokens, shared):
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        self.rank, self.args, self.shared = rank, args, shared
        self.model = Llama(config)
        at, self.mine, matrices = 0, [], 0
        for (name, p), value in zip(self.model.named_parameters(), shared["parameters"]):
            p.data = value
            p.grad = shared["gradients"][rank, at : at + p.numel()].view_as(p)
            if is_matrix(name, p):
                if matrices % args.processes == rank:
                    self.mine.append((p, shared["gradients"][:, at : at + p.numel()], shared["momentum"][matrices]))
                matrices += 1
            at += p.numel()
        self.muon = Muon([p for p, _, _ in self.mine], args.rate, weight_decay=args.weight_decay)
        for p, _, momentum in self.mine:
            self.muon.state[p]["momentum"] = momentum
        compiled = (lambda f: f) if args.no_compile else (lambda f: torch.compile(f, dynamic=False))
        self.teacher = compiled(load(args.teacher).requires_grad_(False)) if args.teacher else None
        self.loss = compiled(self.model.divergence if args.teacher else self.model.loss)
        self.windows = {n: data.Windows(tokens, n, args.seed) for n in (args.window, args.long_window)}

    def gradients(self):
        """Adds to this process's gradients and loss until the batches of the step are taken."""
        args, shared = self.args, self.shared
        step, length, count, first = shared["order"].tolist()
        size = max(1, args.micro // length)
        shared["gradients"][self.rank].zero_()
        shared["losses"][self.rank] = 0.0
        while True:
            with shared["taken"].get_lock():
                at = shared["taken"].value
                shared["taken"].value += size
            if at >= count:
                return
            batch = torch.from_numpy(np.stack([self.windows[length][first + i] for i in range(at, min(count, at + size))]))
            positions = np.arange(length)
            rng = np.random.default_rng([args.seed, step, at])
            long = length == args.long_window
            if args.stage == "long" and rng.random() < args.skip_share * (1 if long else 0.4):
                limit = self.model.config.max_position_embeddings
                positions = data.skipped_positions(length, limit, rng, chunks=4 if long else 2)
            cos, sin = rotary(self.model.config, torch.from_numpy(positions))
            read = batch[:, :-1]
            wanted = batch[:, 1:] if self.teacher is None else self.teacher(read, cos, sin)
            loss = self.loss(read, wanted, cos, sin) * (len(batch) / count)
            loss.backward()
            shared["losses"][self.rank] += loss.item()

    def update(self):
        """Muon's step on this process's matrices; each gradient is the sum of what all processes found."""
        kept = [p.grad for p, _, _ in self.mine]
        for p, gradients, _ in self.mine:
            p.grad = gradients.sum(0).view_as(p)
        self.muon.param_groups[0]["lr"] = self.shared["rate"].item()
        self.muon.step()
        for (p, _, _), grad in zip(self.mine, kept):
            p.grad = grad


def follow(index, args, config, tokens, shared, barrier):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what arrives when process 0 dies; a background shell has it ignored
    worker = Worker(index + 1, args, config, tokens, shared)  # process 0 leads
    while True:
        barrier.wait()
        if shared["order"][2] == 0:
            return
        worker.gradients()
        barrier.wait()
        worker.update()
        barrier.wait()


def save(path, state):
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def main():
    args = arguments()
    if not args.minutes and not args.tokens:
        raise SystemExit("train.py: give --minutes or --tokens, the length of the stage")
    torch.manual_seed(args.seed)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.tokenizer) / "tokenizer.json"))
    tokens = data.tokens_of(args.text, tokenizer, out / "tokens.npy")
    print(f"{len(tokens) / 1e6:.2f} M tokens of text", flush=True)
    if args.generated:
        tokens = data.mixed(tokens, np.concatenate([np.load(path) for path in args.generated]), args.generated_share)

    config = dataclasses.replace(SIZES[args.size], vocab_size=tokenizer.get_vocab_size())
    model = Llama(config)
    named = list(model.named_parameters())
    others = [p for n, p in named if not is_matrix(n, p)]
    adam = torch.optim.AdamW(others, args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    momentum = {n: torch.zeros_like(p.data) for n, p in named if is_matrix(n, p)}

    # seen: tokens and seconds of this stage; place: next window of each length; earlier: tokens and seconds before this stage.
    state = dict(step=0, seen=0, seconds=0.0, place={}, earlier_seen=0, earlier_seconds=0.0)
    path = out / f"{args.stage}.pt"
    source = path if path.exists() or args.stage == "base" else out / "base.pt"
    if source.exists():
        saved = torch.load(source, weights_only=False)
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        momentum = saved["momentum"]
        state = saved["state"]
        if source != path:
            state.update(seen=0, seconds=0.0, earlier_seen=state["seen"], earlier_seconds=state["seconds"])
        print(f"goes on from {source} at step {state['step']}", flush=True)
    elif args.stage == "long":
        raise SystemExit(f"train.py: {source} is missing: the last stage starts from the end of --stage base")
    elif args.start_from:
        weights = load_file(pathlib.Path(args.start_from) / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): w.float() for name, w in weights.items()})
        print(f"begins with the weights of {args.start_from}", flush=True)

    parameters = [p.data.share_memory_() for _, p in named]
    shared = dict(
        parameters=parameters,
        gradients=torch.zeros(args.processes, sum(p.numel() for p in parameters)).share_memory_(),
        momentum=[m.share_memory_() for m in momentum.values()],
        rate=torch.zeros(1).share_memory_(),
        losses=torch.zeros(args.processes).share_memory_(),
        order=torch.zeros(4, dtype=torch.int64).share_memory_(),  # step, window length, windows (0: the end), number of the first
        taken=mp.get_context("spawn").Value("q", 0),
    )
    barrier = mp.get_context("spawn").Barrier(args.processes)
    context = mp.spawn(follow, (args, config, tokens, shared, barrier), args.processes - 1, join=False)
    own = Worker(0, args, config, tokens, shared)

    def content():
        return dict(model=model.state_dict(), adam=adam.state_dict(), momentum=momentum, config=dataclasses.asdict(config), state=state)

    log = open(out / "log.jsonl", "a", buffering=1)
    saved_at = clock = time.monotonic()
    recent, recent_from = [], (state["seen"], clock)
    while True:
        progress = max(
            state["seconds"] / (60 * args.minutes) if args.minutes else 0, state["seen"] / args.tokens if args.tokens else 0
        )
        if progress >= 1 or (args.stage == "base" and (out / "stop").exists()):
            break
        rate = args.rate * (min(1, (state["step"] + 1) / args.warm_up) if args.stage == "base" else 1 - progress)
        long = args.stage == "long" and np.random.default_rng([args.seed, state["step"]]).random() < args.long_share
        length = args.long_window if long else args.window
        count = max(args.step_tokens // length, args.processes if long else 1)  # a long window for each process
        first = state["place"].get(length, 0)
        shared["order"].copy_(torch.tensor([state["step"], length, count, first]))
        shared["taken"].value = 0
        shared["rate"].fill_(rate)
        barrier.wait()
        own.gradients()
        barrier.wait()
        loss = shared["losses"].sum().item()
        own.update()
        at = 0
        for name, p in named:
            if not is_matrix(name, p):
                p.grad = shared["gradients"][:, at : at + p.numel()].sum(0).view_as(p)
            at += p.numel()
        norm = torch.nn.utils.clip_grad_norm_(others, 1.0)  # Muon's updates do not depend on the gradient's size
        adam.param_groups[0]["lr"] = rate
        adam.step()
        barrier.wait()

        now = time.monotonic()
        state["seconds"], clock = state["seconds"] + now - clock, now
        state["step"] += 1
        state["seen"] += count * length
        state["place"][length] = first + count
        seen = state["earlier_seen"] + state["seen"]
        line = dict(
            stage=args.stage, step=state["step"], tokens=seen, seconds=round(state["earlier_seconds"] + state["seconds"], 1),
            loss=round(loss, 4), rate=round(rate, 6), long=long, norm=round(norm.item(), 3),
        )
        log.write(json.dumps(line) + "\n")
        recent.append(loss)
        if state["step"] % 20 == 0:
            speed = (state["seen"] - recent_from[0]) / (now - recent_from[1])
            mean = sum(recent) / len(recent)
            print(f"step {state['step']}  {seen / 1e6:.2f} M tokens  loss {mean:.3f}  {speed:.0f} tokens/s  {progress:.0%}", flush=True)
            recent, recent_from = [], (state["seen"], now)
        if now - saved_at > args.save_seconds:
            save(path, content())
            saved_at = now
    save(path, content())
    shared["order"][2] = 0
    barrier.wait()
    context.join()
    print(f"the stage is over: {path}", flush=True)


if __name__ == "__main__":
    main()
