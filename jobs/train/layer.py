"""A draft layer for a trained model: one decoder layer that continues the model's own hidden states.

python heads.py states --target MODEL --text BOOKS --windows 240 --out STATE/books
python heads.py states --target MODEL --generated GENERATED.npy --windows 360 --out STATE/own
python layer.py train --target MODEL --states STATE/books STATE/own --out STATE/layer.pt
python layer.py export --target MODEL --state STATE/layer.pt --out LAYER
python layer.py measure --target MODEL --layers LAYER … --prompts PROMPTS.jsonl --run RUN

With h_0 the target's hidden state at position t, behind its final norm, t_i the token at position t + i, E the target's
embedding, and Layer without a norm in front of its attention:

    h_1 = Layer(fc [E(t_1), h_0])                                                          an estimate of the state at t + 1
    h_(i+1) = Layer(fc [E(t_(i+1)), h_i])      --kind eagle (the layout of EAGLE 1 and 2)                     … at t + i + 1
    h_(i+1) = Layer(h_i)                       --kind lyanna: no token enters behind the first
    logits of t_(i+1) = lm_head(h_i)           the target's own head, as it is
        + RMSNorm(up(down(E(t_i))))            lyanna's token info; with --hot-tokens only of these tokens and for these tokens

Level i is at position t + i - 1 and reads the keys and values of what level 1 computes at all positions to t, and those of
levels 2 … i of its own chain. All chains of a block, one from every position, are computed together.

train: from blocks of the states that heads.py keeps, or a job of longhaul with `hidden-states` (for targets that do not fit
into memory here: of those only embedding, final norm and output head are read), chains of --depth levels; cross entropy against the distribution that
the target's own state gives, and the distance to that state. Run the same command again to resume. export: a folder in bf16.
measure: how often the first guess of each level is the target's.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from evaluate import load
from heads import add_text, learn, pieces, write_folder
from model import Attention, FeedForward, Norm, rotary
from stored_states import Ends, States


class DecoderLayer(nn.Module):
    """Names as in published checkpoints."""

    def __init__(self, c):
        super().__init__()
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.mlp = FeedForward(c)

    def forward(self, x, cos, sin, cache):
        x = x + self.self_attn(x, cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Chains:
    """Keys and values of the chains from all positions, for Attention: row t is the chain that starts at t.

    It reads the first level's entries up to t; of each later level, which is one more call, only entry t: its own.
    """

    def __init__(self):
        self.keys, self.values, self.masks = [], [], []

    def append(self, owner, k, v):
        every = torch.ones(k.shape[2], k.shape[2], dtype=torch.bool)
        self.masks.append(every.triu().tril() if self.keys else every.tril())
        self.keys.append(k), self.values.append(v)
        return torch.cat(self.keys, 2), torch.cat(self.values, 2), torch.cat(self.masks, 1)


class TokenInfo(nn.Module):
    """What a token adds to the logits of the next one."""

    def __init__(self, c, rank, columns):
        super().__init__()
        self.down = nn.Linear(c.hidden_size, rank, bias=False)
        self.up = nn.Linear(rank, columns, bias=False)
        self.norm = Norm(columns, c.rms_norm_eps)

    def forward(self, embedded):
        return self.norm(self.up(self.down(embedded)))


class DraftLayer(nn.Module):
    def __init__(self, c, lyanna=False, rank=0, hot_tokens=None):
        super().__init__()
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(c)])
        self.lyanna, self.vocab_size = lyanna, c.vocab_size
        self.register_buffer("hot_tokens", hot_tokens)
        self.token_info = TokenInfo(c, rank, c.vocab_size if hot_tokens is None else len(hot_tokens)) if rank else None

    def start(self):
        """Begins with the state passed on as it is, and with little token info."""
        size = self.fc.out_features
        nn.init.normal_(self.fc.weight, std=0.02)
        self.fc.weight.data[:, size:] += torch.eye(size)
        nn.init.zeros_(self.fc.bias)
        for name, p in self.layers.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                nn.init.zeros_(p)
            elif p.dim() == 2:
                nn.init.normal_(p, std=0.5 * p.shape[1] ** -0.5)
        if self.token_info:
            nn.init.constant_(self.token_info.norm.weight, 0.1)

    def leave_tokens_out(self):
        """The part of fc that reads the token is zero and stays so."""
        unread = torch.arange(self.fc.in_features) < self.fc.out_features
        self.fc.weight.data[:, unread] = 0
        self.fc.weight.register_hook(lambda gradient: gradient.masked_fill(unread, 0))

    def info(self, tokens, embedded):
        info = self.token_info(embedded)
        if self.hot_tokens is None:
            return info
        info = info * torch.isin(tokens, self.hot_tokens)[..., None]
        return info.new_zeros(*tokens.shape, self.vocab_size).index_copy(-1, self.hot_tokens, info)

    def chains(self, target, tokens, states, depth, place):
        """Of each level, states and logits [batch, start, …] of the chains whose h_0 are these states [batch, start, hidden].

        tokens [batch, start + depth or more]: from the first start's position on.
        """
        starts, cache, h = states.shape[1], Chains(), states
        embedded = target.embed_tokens(tokens)
        info = self.info(tokens, embedded) if self.token_info else None
        for i in range(1, depth + 1):
            last = slice(i, i + starts)  # t_i of each chain
            x = h if self.lyanna and i > 1 else self.fc(torch.cat([embedded[:, last], h], -1))
            h = self.layers[0](x, *(part[i - 1 : i - 1 + starts] for part in place), cache)
            logits = target.head(h)
            yield h, logits if info is None else logits + info[:, last]


def load_layer(folder, target):
    """The exported layer of a folder, in f32."""
    folder = pathlib.Path(folder)
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    kind = config.get("draft_layer") == "lyanna", config.get("token_info_rank", 0), weights.get("hot_tokens")
    layer = DraftLayer(target.config, *kind).eval()
    layer.load_state_dict({name: p.float() if p.is_floating_point() else p for name, p in weights.items()})
    return layer


# --- train ---


def losses(target, layer, tokens, states, wanted, depth, place):
    """Cross entropy, distance, and share of right first guesses (the target's most probable token) of each level over blocks
    of tokens [batch, length + 1], their normed states, and what the target expects behind them [batch, length, vocabulary]."""
    starts = states.shape[1] - depth  # of chains that end within the block
    for i, (h, logits) in enumerate(layer.chains(target, tokens, states[:, :starts], depth, place), 1):
        right = slice(i, i + starts)
        cross = F.cross_entropy(logits.flatten(0, 1), wanted[:, right].flatten(0, 1))
        accuracy = (logits.argmax(-1) == wanted[:, right].argmax(-1)).float().mean()
        yield cross, F.smooth_l1_loss(h, states[:, right]), accuracy


def most_frequent(seen, count, vocab_size):
    """So many tokens of these texts, in the order of their numbers."""
    return torch.from_numpy(np.sort(np.argsort(-seen.counts(vocab_size), kind="stable")[:count]))


def train(args):
    torch.manual_seed(args.seed)
    target = Ends(args.target).requires_grad_(False)
    seen = States(args.states, args.block, args.seed)
    lyanna, c = args.kind == "lyanna", target.config
    rank = args.token_info_rank if lyanna else 0
    hot = most_frequent(seen, args.hot_tokens, c.vocab_size) if rank and args.hot_tokens else None
    layer = DraftLayer(c, lyanna, rank, hot)
    layer.start()
    if args.without_first_token:
        layer.leave_tokens_out()
    adam = torch.optim.AdamW(layer.parameters(), args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    place = rotary(c, torch.arange(args.block))

    def losses_of(number):
        tokens, h0 = seen[number]
        with torch.no_grad():
            states = target.norm(h0)
            wanted = seen.top(number, c.vocab_size) if args.top_logits else torch.softmax(target.head(states), -1)
        cross, far, accuracy = map(
            torch.stack, zip(*losses(target, layer, tokens[None], states[None], wanted[None], args.depth, place))
        )
        return (cross + args.distance * far).mean(), {"loss": cross, "accuracy": accuracy}

    config = {"draft_layer": "lyanna", "token_info_rank": rank} if lyanna else {}
    learn(args, "layer", layer, adam, losses_of, lambda done: 1 - done, clip=0.5, config=config)


# --- export ---


def config_of_layer(target):
    """The target's config.json as that of its draft layer, which has one MLP where the target may have experts."""
    config = json.loads((pathlib.Path(target) / "config.json").read_text())
    if config["model_type"] in ("qwen3_moe", "mixtral", "glm4_moe", "gpt_oss"):
        config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False}
    for key in ("layer_types", "partial_rotary_factor", "quantization_config"):  # the target's alone
        config.pop(key, None)
    for key in ("rope_scaling", "rope_parameters"):
        if config.get(key, {}):
            config[key] = config[key] | {"truncate": True}  # as yarn() of model.py, with which the layer was trained
            config[key].pop("partial_rotary_factor", None)
    return config


def export(args):
    saved = torch.load(args.state, weights_only=True)
    config = config_of_layer(args.target)
    config |= {"num_hidden_layers": 1, "bias": True} | saved.get("config", {})
    write_folder(args.out, config, saved["layer"])


# --- measure ---


def mean_and_error(texts):
    """Mean over the rows of all texts, and its standard error: rows of a text depend on each other, texts do not."""
    rows = sum(map(len, texts))
    mean = torch.cat(texts).mean(0)
    off = torch.stack([(text - mean).sum(0) for text in texts])
    return mean, (off.pow(2).sum(0) * len(texts) / (len(texts) - 1)).sqrt() / rows


@torch.inference_mode()
def measure(args):
    """Prints of each level, in percent with standard error: how often the layer's first guess is the target's most probable
    token, the tokens before it being those of the text. Behind them the mean length of a chain up to its first miss. Of
    every layer but the first also the difference to the first.
    """
    target = load(args.target)
    layers = [load_layer(folder, target) for folder in args.layers]
    hits = [[] for _ in layers]
    for text, first in pieces(args):
        tokens = torch.tensor(text)[None]
        place = rotary(target.config, torch.arange(len(text) - 1))
        states = target.norm(target.hidden(tokens[:, :-1], *place))
        wanted = target.head(states)[0].argmax(-1)
        starts = len(wanted) - args.depth
        for layer, found in zip(layers, hits):
            levels = enumerate(layer.chains(target, tokens, states[:, :starts], args.depth, place), 1)
            right = torch.stack([logits[0].argmax(-1) == wanted[i : i + starts] for i, (_, logits) in levels], -1)
            found.append(torch.cat([100 * right, right.cumprod(-1).sum(-1, keepdim=True)], -1)[first - 1 :].float())
    print(f"{sum(map(len, hits[0]))} positions of {len(hits[0])} texts: level 1 … {args.depth}, accepted per chain")
    cells = lambda texts: "  ".join(f"{m:6.2f} ± {e:.2f}" for m, e in zip(*mean_and_error(texts)))
    for folder, found in zip(args.layers, hits):
        print(f"{folder}\n    {cells(found)}")
        if found is not hits[0]:
            print(f"    {cells([mine - other for mine, other in zip(found, hits[0])])}   more than the first")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    parsers = {command.__name__: commands.add_parser(command.__name__) for command in (train, export, measure)}
    for p in parsers.values():
        p.add_argument("--target", required=True, help="folder with the exported target")
        p.add_argument("--threads", type=int, default=2)
    p = parsers["train"]
    p.add_argument("--states", nargs="+", required=True, help="folders that `heads.py states` wrote, or a job with hidden-states")
    p.add_argument("--kind", choices=["eagle", "lyanna"], default="eagle")
    p.add_argument("--token-info-rank", type=int, default=64, help="lyanna: inner size of the token info (0 = without)")
    p.add_argument("--hot-tokens", type=int, default=0, help="token info only for the most frequent ones of the states (0 = all)")
    p.add_argument("--without-first-token", action="store_true", help="fc reads the state alone")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--top-logits", action="store_true", help="learn the stored next tokens alone, a product with the head less")
    p.add_argument("--depth", type=int, default=3, help="levels of a chain")
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
    p = parsers["measure"]
    p.add_argument("--layers", nargs="+", required=True, help="folders that `export` wrote")
    p.add_argument("--depth", type=int, default=3, help="levels of a chain")
    add_text(p)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    {"train": train, "export": export, "measure": measure}[args.what](args)


if __name__ == "__main__":
    main()
