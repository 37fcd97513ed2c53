"""Measures an exported model on held-out books and lets it write; everything through our own forward pass.

python evaluate.py --model MODEL --text FOLDER bits        bits per byte of every book, windows of 512 and of 8192
python evaluate.py --model MODEL --text FOLDER positions   loss by position, to 64K, on the longest books
python evaluate.py --model MODEL samples                   two samples
python evaluate.py --model MODEL --text FOLDER parity      the same logits as transformers' LlamaForCausalLM
Results are also written to --out, a JSON file, under the name of what was measured.
"""

import argparse
import json
import math
import pathlib
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

from model import Cache, Config, Llama, rotary


def load(folder):
    """The exported model of a folder, in f32."""
    folder = pathlib.Path(folder)
    c = json.loads((folder / "config.json").read_text())
    config = Config(
        rope_factor=c["rope_scaling"]["factor"],
        original_max_position_embeddings=c["rope_scaling"]["original_max_position_embeddings"],
        **{k: c[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                             "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta")},
    )
    model = Llama(config).eval()
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return model


def tokenizer_of(folder):
    return Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))


def read(tokenizer, path):
    """A book as it stands, behind begin_of_text, and its size in bytes."""
    text = path.read_text(encoding="utf-8")
    return torch.tensor(tokenizer.encode(text).ids), len(text.encode())


def nats(model, tokens, cache_capacity=0, chunk=512):
    """Negative log probability of each token after the first; with a cache, read chunk by chunk as one context."""
    targets, tokens = tokens[1:], tokens[:-1]
    if not cache_capacity:
        return F.cross_entropy(model(tokens[None], *rotary(model.config, torch.arange(len(tokens))))[0], targets, reduction="none")
    cache, out = Cache(cache_capacity), []
    for start in range(0, len(tokens), chunk):
        piece = tokens[start : start + chunk]
        logits = model(piece[None], *rotary(model.config, torch.arange(start, start + len(piece))), cache)
        cache.length += len(piece)
        out.append(F.cross_entropy(logits[0], targets[start : start + chunk], reduction="none"))
    return torch.cat(out)


def bits(model, tokenizer, folder, window, limit):
    """Windows do not overlap: each begins with no context, as in training. Every token but the first of the book is counted once."""
    result, all_nats, all_bytes = {}, 0.0, 0
    for path in sorted(pathlib.Path(folder).glob("*.txt")):
        tokens, size = read(tokenizer, path)
        if limit and len(tokens) > limit:
            # The bytes of a prefix are those of its tokens; begin_of_text has none.
            tokens = tokens[:limit]
            size = len(tokenizer.decode(tokens.tolist()).encode())
        total = sum(nats(model, tokens[s : s + window + 1]).sum().item() for s in range(0, len(tokens) - 1, window))
        result[path.name] = round(total / size / math.log(2), 4)
        all_nats, all_bytes = all_nats + total, all_bytes + size
        print(f"{path.name:36} {result[path.name]:.4f} bits per byte, windows of {window}", flush=True)
    result["all"] = round(all_nats / all_bytes / math.log(2), 4)
    print(f"{'all':36} {result['all']:.4f}", flush=True)
    return result


def positions(model, tokenizer, folder, books, length):
    """Mean loss in nats a token of position ranges, one context, and of the same tokens read in windows of 512 (the yardstick)."""
    edges = [0, 512, 1024, 2048, 4096, 8192, 16384, 24576, 32768, 49152, 65536, 98304, 131072]
    edges = [e for e in edges if e < length] + [length]
    chosen = sorted(pathlib.Path(folder).glob("*.txt"), key=lambda p: -p.stat().st_size)[:books]
    result = {}
    for path in chosen:
        tokens, _ = read(tokenizer, path)
        tokens = tokens[: length + 1]
        started = time.monotonic()
        long = nats(model, tokens, cache_capacity=length)
        short = torch.cat([nats(model, tokens[s : s + 513]) for s in range(0, len(tokens) - 1, 512)])
        rows = []
        for a, b in zip(edges, edges[1:]):
            if a < len(long):
                rows.append([a, min(b, len(long)), round(long[a:b].mean().item(), 4), round(short[a:b].mean().item(), 4)])
        result[path.name] = rows
        print(f"{path.name} ({time.monotonic() - started:.0f} s): positions, nats a token in one context, in windows of 512")
        for row in rows:
            print("  {:6d} .. {:6d}   {:.4f}   {:.4f}".format(*row), flush=True)
    return result


def write(model, tokenizer, prompt, count, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt).ids
    cache, piece = Cache(len(ids) + count), torch.tensor([ids])
    eos = tokenizer.token_to_id("<|end_of_text|>")
    for _ in range(count):
        at = torch.arange(cache.length, cache.length + piece.shape[1])
        logits = model(piece, *rotary(model.config, at), cache)[0, -1]
        cache.length += piece.shape[1]
        ids.append(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator).item())
        if ids[-1] == eos:
            break
        piece = torch.tensor([[ids[-1]]])
    return tokenizer.decode(ids)


def parity(model, tokenizer, folder, model_folder):
    from transformers import LlamaForCausalLM

    theirs = LlamaForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    path = sorted(pathlib.Path(folder).glob("*.txt"))[0]
    tokens = read(tokenizer, path)[0][:700]
    result = {}
    for offset in (0, 60000):  # also far out, where a wrong frequency shows
        at = torch.arange(offset, offset + len(tokens))
        ours = model(tokens[None], *rotary(model.config, at))
        result[str(offset)] = (ours - theirs(tokens[None], position_ids=at[None]).logits).abs().max().item()
        print(f"positions from {offset}: largest difference of a logit {result[str(offset)]:.2e}", flush=True)
    if max(result.values()) > 2e-3:
        raise SystemExit("evaluate.py: the forward pass differs from transformers'")
    return result


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", help="folder with tokenizer.json, where that of the model has none")
    parser.add_argument("--text")
    parser.add_argument("--out")
    parser.add_argument("--windows", type=int, nargs="*", default=[512, 8192])
    parser.add_argument("--limit", type=int, default=0, help="tokens of each book (0 = all)")
    parser.add_argument("--books", type=int, default=2)
    parser.add_argument("--length", type=int, default=65536)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("what", nargs="+", choices=["bits", "positions", "samples", "parity"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model), tokenizer_of(args.tokenizer or args.model)
    out = pathlib.Path(args.out) if args.out else None
    results = json.loads(out.read_text()) if out and out.exists() else {}
    for what in args.what:
        if what == "bits":
            results["bits"] = {str(w): bits(model, tokenizer, args.text, w, args.limit) for w in args.windows}
        elif what == "positions":
            results["positions"] = positions(model, tokenizer, args.text, args.books, args.length)
        elif what == "parity":
            results["parity"] = parity(model, tokenizer, args.text, args.model)
        else:
            prompts = ["CHAPTER I\n\n\nIt was a cold evening in November when", '"I shall never forgive him," said Margaret,']
            results["samples"] = [write(model, tokenizer, p, 300, args.temperature, seed) for seed, p in enumerate(prompts, 1)]
            print("\n----\n".join(results["samples"]))
        if out:
            out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
