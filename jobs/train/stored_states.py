"""Hidden states of a target on disk, from `heads.py states` or from a job with `hidden-states`, and the ends of that target.

A folder of `heads.py states` has windows of one length: tokens.npy, hidden.npy, done.json. A folder that longhaul wrote has
one HDF5 file per text (engine/checkpoint/hidden_states.hpp), also with the target's most probable next tokens.
"""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from model import Config, Norm


class ArrayWindow:
    """A window of the arrays of `heads.py states`."""

    def __init__(self, tokens, hidden, row):
        self.tokens, self.rows, self.top = tokens[row], hidden[row], None

    def __len__(self):
        return len(self.rows)

    def hidden(self, start, end):
        return self.rows[start:end].astype(np.float32)


class TextFile:
    """The file of a text. It is opened for each read: there may be more of them than files that may be open."""

    def __init__(self, path):
        import h5py

        self.path, self.open = path, lambda: h5py.File(path, "r")
        with self.open() as file:
            if file.attrs.get("format") != b"longhaul hidden states" or file.attrs["format_version"] != 1:
                raise SystemExit(f"{path}: format: expected longhaul hidden states, version 1, got another file")
            self.length = file["hidden"].shape[0]

    def __len__(self):
        return self.length

    @property
    def tokens(self):
        with self.open() as file:
            return file["tokens"][:]

    def hidden(self, start, end):
        with self.open() as file:
            return (file["hidden"][start:end].astype(np.uint32) << 16).view(np.float32)

    def top(self, start, end):
        """Tokens and log-probabilities [positions, k]."""
        with self.open() as file:
            return file["top_ids"][start:end].astype(np.int64), file["top_logprobs"][start:end]


def windows_of(folder):
    folder = pathlib.Path(folder)
    if (folder / "done.json").exists():
        arrays = [np.load(folder / name, mmap_mode="r") for name in ("tokens.npy", "hidden.npy")]
        return [ArrayWindow(*arrays, row) for row in range(json.loads((folder / "done.json").read_text()))]
    return [TextFile(path) for path in sorted(folder.glob("*.h5"))]


class States:
    """Blocks of positions of the texts of several folders: texts in a shuffled order per epoch, of each a random block.

    Texts that are shorter than a block are left out.
    """

    def __init__(self, folders, block, seed):
        self.windows = [window for folder in folders for window in windows_of(folder) if len(window) >= block]
        self.block, self.seed = block, seed
        if not self.windows:
            raise SystemExit(f"{', '.join(map(str, folders))}: expected states of texts of {block} tokens, got none; lower --block")

    def place(self, number):
        """Window and first position of a block."""
        epoch, index = divmod(number, len(self.windows))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.windows))
        window = self.windows[int(order[index])]
        return window, int(np.random.default_rng([self.seed, number, 1]).integers(len(window) - self.block + 1))

    def __getitem__(self, number):
        """Tokens [block + 1] and hidden states [block, hidden] of a block."""
        window, start = self.place(number)
        tokens = window.tokens[start : start + self.block + 1].astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(window.hidden(start, start + self.block))

    def top(self, number, vocab_size):
        """The target's distributions [block, vocabulary] behind a block, from the stored tokens: other tokens have none."""
        window, start = self.place(number)
        if window.top is None:
            raise SystemExit("--top-logits: expected states of a job with hidden-states, got those of heads.py")
        ids, logprobs = map(torch.from_numpy, window.top(start, start + self.block))
        return torch.zeros(len(ids), vocab_size).scatter_(1, ids, torch.softmax(logprobs, -1))

    def counts(self, vocab_size):
        """How often each token occurs."""
        return sum(np.bincount(window.tokens, minlength=vocab_size) for window in self.windows)


class Ends(nn.Module):
    """A target without its layers: embedding, final norm and output head, for targets that do not fit into memory."""

    def __init__(self, folder):
        super().__init__()
        folder = pathlib.Path(folder)
        c = json.loads((folder / "config.json").read_text())
        if "text_config" in c:
            raise SystemExit(f"{folder}/config.json: text_config: expected a text model, got one with images: not in this version")
        others = ("cohere", "gemma", "gpt_neox", "granite", "nemotron", "opt", "phi", "stablelm", "starcoder2")
        if c.get("model_type", "llama").startswith(others) and c["model_type"] != "phi3":
            raise SystemExit(f"{folder}/config.json: model_type: expected embeddings, norms and a head like Llama's, got {c['model_type']}: not in this version")
        scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ("default", "yarn"):
            raise SystemExit(f"{folder}/config.json: rope_scaling: expected none or yarn, got {kind}: not in this version")
        size, heads = c["hidden_size"], c["num_attention_heads"]
        self.config = Config(
            head_dim=c.get("head_dim") or size // heads,
            num_key_value_heads=c.get("num_key_value_heads", heads),
            rope_theta=scaling.get("rope_theta", c.get("rope_theta", 10000.0)),
            rope_factor=scaling.get("factor", 1.0),
            original_max_position_embeddings=scaling.get("original_max_position_embeddings", c["max_position_embeddings"]),
            **{k: c[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                 "rms_norm_eps")},
        )
        self.embed_tokens = nn.Embedding.from_pretrained(tensor_of(folder, "model.embed_tokens.weight"))
        self.norm = Norm(size, self.config.rms_norm_eps)
        self.norm.weight.data = tensor_of(folder, "model.norm.weight")
        tied = c.get("tie_word_embeddings", False)
        self.output = self.embed_tokens.weight if tied else nn.Parameter(tensor_of(folder, "lm_head.weight"))

    def head(self, normed):
        return F.linear(normed, self.output)


def tensor_of(folder, name):
    """A tensor of a model folder, in f32; the others are not read."""
    index = folder / "model.safetensors.index.json"
    shard = json.loads(index.read_text())["weight_map"][name] if index.exists() else "model.safetensors"
    with safe_open(str(folder / shard), framework="pt") as file:
        return file.get_tensor(name).float()
