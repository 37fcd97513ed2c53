#!/usr/bin/env python3
"""Writes tests/data/parity/tokenswift-*: tiny random models in the layouts of published TokenSwift checkpoints.

With them, what PyTorch computes for their draft passes.

Run by hand when a case is added. The results are committed, so that no test needs PyTorch:

    pip install torch transformers safetensors
    python3 tests/tools/make_tokenswift_goldens.py tests/data/parity

Each folder is a whole model (target and heads), golden.json as in the other folders (make_parity_goldens.py), and
drafts.json. A draft pass reads only some of the positions before it. Here it is a row behind the text, in one forward
pass of transformers over both, with an attention mask for each layer and head. Weights depend only on the seed; logits
may differ in the last digits with another PyTorch. tests/data/parity/README.md describes the files.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import tempfile

import torch
import transformers
from make_parity_goldens import (
    LLAMA3,
    SMALL,
    Model,
    numbers,
    random_weights,
    without_none,
    write_golden,
    write_json,
    write_model,
)
from safetensors.torch import load_file
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

NUM_HEADS = 3
PAGE = 64  # positions
SINKS = 16  # the first positions, always read
MIN_GAP = 1e-4  # between the last selected and the first other position, as a part of all scores' range
MIN_LOGIT_GAP = 1e-3  # between the third and the fourth best token, as a part of the logits' range


@dataclasses.dataclass
class Layout:
    model: Model
    seed: int
    max_positions: int  # the key partial-cache; 0: auto
    prompt_tokens: int
    cases: list  # (partial-cache-mode, positions before the root), ascending


SHORT_CASES = [("window", 300), ("dynamic", 300), ("dynamic", 320), ("dynamic", 370)]

LAYOUTS = [
    # TokenSwift-Llama-3.1-8B: 4 query heads per KV head, untied, several files.
    Layout(
        Model(
            "tokenswift-llama3.1",
            {
                "num_attention_heads": 8,
                "tie_word_embeddings": False,
                "rope_theta": 500000.0,
                "rope_scaling": LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 128},
                "torch_dtype": "bfloat16",
            },
            num_tokens=372,
            dtype=torch.bfloat16,
            shard_bytes=30000,
        ),
        seed=1,
        max_positions=256,
        prompt_tokens=40,
        cases=SHORT_CASES,
    ),
    # TokenSwift-Yarn-Llama-2-7b-128k: as many KV heads as query heads, yarn in its older form.
    Layout(
        Model(
            "tokenswift-yarn",
            {
                "intermediate_size": 40,
                "num_hidden_layers": 3,
                "num_key_value_heads": 4,
                "head_dim": None,
                "tie_word_embeddings": False,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 16.0,
                    "original_max_position_embeddings": 64,
                    "finetuned": True,
                },
                "torch_dtype": "bfloat16",
            },
            num_tokens=372,
            dtype=torch.bfloat16,
        ),
        seed=1,
        max_positions=256,
        prompt_tokens=40,
        cases=SHORT_CASES,
    ),
    # TokenSwift-Qwen2.5-1.5B: 3 query heads per KV head, biases, tied. partial-cache = auto: the prompt's length.
    Layout(
        Model(
            "tokenswift-qwen2.5",
            {
                "architectures": ["Qwen2ForCausalLM"],
                "model_type": "qwen2",
                "hidden_size": 36,
                "intermediate_size": 32,
                "num_attention_heads": 6,
                "head_dim": None,
                "max_position_embeddings": 2048,
                "max_window_layers": 2,
                "sliding_window": 2048,
                "use_sliding_window": False,
                "rope_theta": 1000000.0,
                "rms_norm_eps": 1e-06,
            },
            num_tokens=1302,
        ),
        seed=6,
        max_positions=0,
        prompt_tokens=1100,
        cases=[("dynamic", 1150), ("dynamic", 1280), ("window", 1300), ("dynamic", 1300)],
    ),
]


# --- which positions a draft pass reads, and when they are selected ---------------------------------------------------


def whole_pages(positions):
    return positions // PAGE * PAGE


def positions_read(layout, mode, num_tokens):
    wanted = layout.max_positions or max(1024, layout.prompt_tokens)
    return min(num_tokens, max(wanted, 4 * PAGE) if mode == "dynamic" else wanted)


@dataclasses.dataclass
class Selection:
    """Of the positions from SINKS to `before` the `count` best are read; those behind are all read."""

    ranked_at: int  # the token whose queries rank
    before: int
    count: int
    chosen: dict = dataclasses.field(default_factory=dict)  # bool [KV heads, before], by layer


def selection_for(layout, num_tokens):
    """The selection that a draft pass behind `num_tokens` positions reads."""

    def interval(positions):
        return 256 if positions >= 1024 else 128 if positions >= 512 else PAGE

    every = interval(positions_read(layout, "dynamic", num_tokens))
    ranked_at = (num_tokens - 1) // every * every
    positions = positions_read(layout, "dynamic", ranked_at + 1)
    gathered = whole_pages(positions) - PAGE - interval(positions)
    return Selection(ranked_at, whole_pages(ranked_at - PAGE), gathered - SINKS)


def window(layout, num_tokens):
    """The first page and the last ones: bool [num_tokens]."""
    pages = math.ceil(num_tokens / PAGE)
    wanted = max(math.ceil(positions_read(layout, "window", num_tokens) / PAGE), 2)
    read = torch.ones(num_tokens, dtype=torch.bool)
    if wanted < pages:
        read[PAGE : (pages - wanted + 1) * PAGE] = False
    return read


# --- the forward pass -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """A row behind the text: the root of a draft, or the row that ranks, a copy of a row of the text.

    Of the text before `num_tokens` it sees `read` (bool [num_tokens]), or what `selection` reads. A root also sees
    itself.
    """

    token: int
    position: int
    num_tokens: int
    read: torch.Tensor = None
    selection: Selection = None
    ranks: bool = False


class PartialAttention:
    """Attention for transformers: causal for the text, masks of their own for the rows behind it."""

    def __init__(self, text_length, rows):
        self.text_length, self.rows = text_length, rows
        self.smallest_gap = math.inf

    def rank(self, layer, selection, query, keys):
        """Selects by the sum of q·k, unscaled, over a KV head's query heads.

        query: [heads, dim]; keys: [KV heads, text, dim].
        """
        num_kv_heads = keys.shape[0]
        chosen = torch.zeros(num_kv_heads, selection.before, dtype=torch.bool)
        chosen[:, :SINKS] = True
        for head, queries in enumerate(query.chunk(num_kv_heads)):
            scores = (queries @ keys[head, SINKS : selection.before].T).sum(0)
            best, order = scores.sort(descending=True, stable=True)  # stable: of equals the lower position
            chosen[head, order[: selection.count] + SINKS] = True
            gap = (best[selection.count - 1] - best[selection.count]) / (best[0] - best[-1])
            self.smallest_gap = min(self.smallest_gap, gap.item())
        selection.chosen[layer] = chosen

    def __call__(self, module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        heads, total = query.shape[1:3]
        group = heads // key.shape[1]
        text = self.text_length
        sees = torch.zeros(heads, total, total, dtype=torch.bool)
        sees[:, :text, :text] = torch.ones(text, text, dtype=torch.bool).tril()
        for place, row in enumerate(self.rows, text):
            if row.ranks:
                self.rank(module.layer_idx, row.selection, query[0, :, place], key[0, :, :text])
            if row.selection is None:
                sees[:, place, : row.num_tokens] = row.read
            else:
                sees[:, place, row.selection.before : row.num_tokens] = True
                chosen = row.selection.chosen[module.layer_idx]
                sees[:, place, : row.selection.before] = chosen.repeat_interleave(group, dim=0)
            sees[:, place, place] = not row.ranks
        keys, values = (x[0].repeat_interleave(group, dim=0) for x in (key, value))
        scores = (query[0] @ keys.transpose(1, 2) * scaling).masked_fill(~sees, -math.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1)[None], None


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="partial").eval()


def weights_of(folder):
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


@torch.no_grad()
def logits_of_rows(folder, tokens, rows):
    """Logits [row, 1 + heads, vocabulary] of rows behind the text, and the attention that computed them."""
    model, config, weights = load(folder), json.loads((folder / "config.json").read_text()), weights_of(folder)
    attention = PartialAttention(len(tokens), rows)
    AttentionInterface.register("partial", attention)
    before_norm = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0][0]))
    ids = torch.tensor([tokens + [row.token for row in rows]])
    positions = torch.tensor([list(range(len(tokens))) + [row.position for row in rows]])
    own = model(ids, position_ids=positions, use_cache=False).logits[0, len(tokens) :]

    def norm(head, which, x):
        gain = weights[f"model.medusa_layers.{head}.{which}.weight"].float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * gain

    h, levels = before_norm[0][len(tokens) :], [own]
    for head in range(NUM_HEADS):
        linear = weights[f"model.medusa_layers.{head}.linear.weight"].float()
        h = h + norm(head, "input_layernorm", h) @ linear.T
        levels.append(model.lm_head(norm(head, "post_layernorm", h)))
    return torch.stack(levels, dim=1), attention


# --- files ------------------------------------------------------------------------------------------------------------


def write_folder(layout, folder):
    config = without_none(SMALL | layout.model.config | {"medusa_heads": NUM_HEADS})
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_json(pathlib.Path(scratch) / "config.json", config)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(scratch), dtype=torch.float32)
    generator = torch.Generator().manual_seed(layout.seed)
    random_weights(model, generator)
    width, state = config["hidden_size"], model.state_dict()
    for head in range(NUM_HEADS):
        layer = f"model.medusa_layers.{head}."
        state[layer + "linear.weight"] = 0.2 * torch.randn(width, width, generator=generator)
        for name in ("input_layernorm", "post_layernorm"):
            state[f"{layer}{name}.weight"] = 1.0 + 0.3 * torch.randn(width, generator=generator)
    with_heads = dataclasses.replace(layout.model, config=layout.model.config | {"medusa_heads": NUM_HEADS})
    write_model(with_heads, folder, state)


def draft_rows(layout, tokens):
    """The rows that make the selections, and those of the cases."""
    selections, cases = {}, []
    for mode, num_tokens in layout.cases:
        row = Row(tokens[num_tokens], num_tokens, num_tokens)
        if mode == "window":
            row.read = window(layout, num_tokens)
        else:
            made = selection_for(layout, num_tokens)
            row.selection = selections.setdefault(made.ranked_at, made)
        cases.append(row)
    ranking = [Row(tokens[at], at, at + 1, selection=made, ranks=True) for at, made in selections.items()]
    return ranking, cases


def check(layout, tokens, folder, rows, logits, attention):
    """The goldens must tell a right draft from a wrong one, and not depend on the order of sums."""
    spread = logits.max() - logits.min()
    whole = [Row(row.token, row.position, row.num_tokens, torch.ones(row.num_tokens, dtype=torch.bool)) for row in rows]
    with_all, _ = logits_of_rows(folder, tokens, whole)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        of_text = plain(torch.tensor([tokens])).logits[0, [row.position for row in rows]]
    assert (with_all[:, 0] - of_text).abs().max() < 1e-5 * spread, "rows behind the text that see all of it"
    differences = (with_all - logits).abs().amax((1, 2)) / spread
    assert differences.min() > 0.01, "a part of the positions, and all of them"
    best = logits.topk(4).values
    logit_gap = ((best[..., 2] - best[..., 3]).min() / spread).item()
    print(
        f"{layout.model.name}: gap of scores {attention.smallest_gap:.1e}, of logits {logit_gap:.1e}, "
        f"difference from all positions {differences.min():.3f}"
    )
    assert attention.smallest_gap > MIN_GAP, "another seed"
    assert logit_gap > MIN_LOGIT_GAP, "another seed"


def write_drafts(layout, folder, tokens):
    ranking, cases = draft_rows(layout, tokens)
    logits, attention = logits_of_rows(folder, tokens, ranking + cases)
    logits = logits[len(ranking) :]
    check(layout, tokens, folder, cases, logits, attention)
    selections = []
    for row in ranking:
        made = row.selection
        by_layer = [made.chosen[layer] for layer in sorted(made.chosen)]
        skipped = [[(~head).nonzero().flatten().tolist() for head in heads] for heads in by_layer]
        fields = f'"ranked_at": {made.ranked_at}, "ranked_before": {made.before}, "selected": {SINKS + made.count}'
        layers = ",\n      ".join(json.dumps(layer) for layer in skipped)
        selections.append(f'{{{fields}, "skipped": [\n      {layers}]}}')
    drafts = []
    for (mode, num_tokens), row, levels in zip(layout.cases, cases, logits, strict=True):
        fields = f'"mode": "{mode}", "num_tokens": {num_tokens}'
        if row.selection is not None:
            fields += f', "ranked_at": {row.selection.ranked_at}'
        drafts.append(f'{{{fields}, "logits": [\n      ' + ",\n      ".join(map(numbers, levels)) + "]}")
    lines = [f'"max_positions": {layout.max_positions}', f'"prompt_tokens": {layout.prompt_tokens}']
    for key, values in (("selections", selections), ("drafts", drafts)):
        lines.append(f'"{key}": [\n    ' + ",\n    ".join(values) + "]")
    (folder / "drafts.json").write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data/parity")
    parser.add_argument("--only", metavar="NAME", default="", help="only folders whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()  # transformers reports the heads as unexpected tensors
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    AttentionInterface.register("partial", PartialAttention(0, []))
    for layout in LAYOUTS:
        if not layout.model.name.startswith(options.only):
            continue
        folder = options.folder / layout.model.name
        write_folder(layout, folder)
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        generator = torch.Generator().manual_seed(7)
        tokens = torch.randint(vocabulary, (layout.model.num_tokens,), generator=generator).tolist()
        write_golden(layout.model, folder, tokens)
        write_drafts(layout, folder, tokens)


if __name__ == "__main__":
    main()
