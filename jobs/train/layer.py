"""A draft layer for a trained model, in the layout of EAGLE 1 and 2: one decoder layer that continues the model's own hidden states.

python heads.py states --target MODEL --text BOOKS --windows 240 --out STATE/books
python heads.py states --target MODEL --generated GENERATED.npy --windows 360 --out STATE/own
python layer.py train --target MODEL --states STATE/books STATE/own --out STATE/layer.pt
python layer.py export --target MODEL --state STATE/layer.pt --out LAYER

With h_t the target's hidden state at position t behind its final norm, and E its embedding:

    x_t = fc [E(token t+1), h_t],   out_t = Layer(x_t, keys and values of x_0 … x_t)      an estimate of h_(t+1)
    logits of token t+2 = lm_head(out_t)                                                   the target's own head, as it is

The layer has no norm in front of its attention. It learns from blocks of the states that heads.py keeps: cross entropy against
the distribution that the target's own state gives, and the distance to that state. Behind the first pass, which reads the
target's states, --depth - 1 further passes read the layer's own output of the pass before, as drafts do. Run the same command
again to resume.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from evaluate import load
from heads import States, write_whole
from model import Attention, FeedForward, Norm, rotary


class DecoderLayer(nn.Module):
    """Names as in published checkpoints."""

    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = FeedForward(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(x, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class DraftLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(c)])

    def start(self):
        """Begins with the state passed on as it is."""
        size = self.fc.out_features
        nn.init.normal_(self.fc.weight, std=0.02)
        self.fc.weight.data[:, size:] += torch.eye(size)
        nn.init.zeros_(self.fc.bias)
        for name, p in self.layers.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                nn.init.zeros_(p)
            elif p.dim() == 2:
                nn.init.normal_(p, std=0.5 * p.shape[1] ** -0.5)

    def forward(self, embedded, states, cos, sin):
        """Blocks [batch, length, hidden]."""
        return self.layers[0](self.fc(torch.cat([embedded, states], -1)), cos, sin)


def losses(target, layer, tokens, h0, depth, place):
    """Loss of each pass over blocks of tokens [batch, length + 1] and states before the final norm [batch, length, hidden]."""
    with torch.no_grad():
        states, embedded = target.norm(h0), target.embed_tokens(tokens[:, 1:])
        wanted = torch.softmax(target.head(states), -1)
    length, read = states.shape[1], states
    for step in range(1, depth + 1):
        out = layer(embedded, read, *place)
        # out_t is for position t + 1; in pass `step` it has come from the target's state at t + 1 - step.
        got, right = out[:, step - 1 : length - 1], states[:, step:]
        cross = F.cross_entropy(target.head(got).flatten(0, 1), wanted[:, step:].flatten(0, 1))
        yield cross, F.smooth_l1_loss(got, right)
        read = torch.cat([states[:, :1], out[:, :-1]], 1)


def train(args):
    torch.manual_seed(args.seed)
    target = load(args.target).requires_grad_(False)
    seen = States(args.states, args.block, args.seed)
    layer = DraftLayer(target.config)
    layer.start()
    adam = torch.optim.AdamW(layer.parameters(), args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    step, seconds, path = 0, 0.0, pathlib.Path(args.out)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        layer.load_state_dict(saved["layer"])
        adam.load_state_dict(saved["adam"])
        step, seconds = saved["step"], saved["seconds"]
        print(f"goes on from {path} at step {step}", flush=True)
    place = rotary(target.config, torch.arange(args.block))
    clock = saved_at = time.monotonic()
    recent = []
    while True:
        if step == args.steps or clock - saved_at > args.save_seconds:
            saved_at = clock
            content = dict(layer=layer.state_dict(), adam=adam.state_dict(), step=step, seconds=seconds)
            write_whole(path, lambda partial: torch.save(content, partial))
        if step == args.steps:
            break
        rate = args.rate * min(1, (step + 1) / args.warm_up) * (1 - step / args.steps)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.zero_grad()
        total = torch.zeros(args.depth)
        for number in range(step * args.batch, (step + 1) * args.batch):
            tokens, h0 = seen[number]
            parts = list(losses(target, layer, tokens[None], h0[None], args.depth, place))
            (sum(cross + args.distance * far for cross, far in parts) / (args.batch * args.depth)).backward()
            total += torch.stack([cross.detach() for cross, _ in parts]) / args.batch
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        adam.step()
        step += 1
        recent.append(total)
        now = time.monotonic()
        seconds, clock = seconds + now - clock, now
        if step % 20 == 0 or step == args.steps:
            mean = " ".join(f"{x:.4f}" for x in torch.stack(recent).mean(0))
            print(f"step {step} of {args.steps}  cross entropy {mean}  rate {rate:.2e}  {seconds:.0f} s", flush=True)
            recent = []


def export(args):
    saved = torch.load(args.state, weights_only=True)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((pathlib.Path(args.target) / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "bias": True}, indent=2) + "\n")
    weights = {name: p.to(torch.bfloat16).contiguous() for name, p in saved["layer"].items()}
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    print(f"{sum(p.numel() for p in weights.values())} parameters in {out / 'model.safetensors'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    parsers = {command.__name__: commands.add_parser(command.__name__) for command in (train, export)}
    for p in parsers.values():
        p.add_argument("--target", required=True, help="folder with the exported target")
        p.add_argument("--threads", type=int, default=2)
    p = parsers["train"]
    p.add_argument("--states", nargs="+", required=True, help="folders that `heads.py states` wrote")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--depth", type=int, default=3, help="passes")
    p.add_argument("--distance", type=float, default=0.1, help="weight of the distance to the target's state")
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--batch", type=int, default=4, help="blocks per step")
    p.add_argument("--block", type=int, default=512, help="positions per block")
    p.add_argument("--rate", type=float, default=1e-3)
    p.add_argument("--warm-up", type=int, default=20, help="steps")
    p.add_argument("--save-seconds", type=float, default=60)
    p.add_argument("--out", required=True, help="file for the state")
    p = parsers["export"]
    p.add_argument("--state", required=True)
    p.add_argument("--out", required=True, help="folder for the layer")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"train": train, "export": export}[args.what](args)


if __name__ == "__main__":
    main()
