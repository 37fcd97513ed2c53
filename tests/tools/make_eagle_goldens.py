#!/usr/bin/env python3
"""Writes tests/data/eagle: tiny random draft heads in the layouts of published EAGLE heads, and what PyTorch computes.

Run by hand when a case is added or a target changes. The results are committed, so that no test needs PyTorch:

    pip install torch transformers safetensors
    python3 tests/tools/make_parity_goldens.py tests/data/parity --only llama-8-layers
    python3 tests/tools/make_eagle_goldens.py tests/data

Targets are folders of tests/data/parity; transformers computes their hidden states in float32. A row of the draft head
joins the target's state at a position with the embedding of the token after it, so that rows are one position behind
the text. Weights depend only on the seed; logits may differ in the last digits with another PyTorch.
tests/data/parity/README.md describes the files.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import safetensors.torch
import torch
import transformers
from eagle_heads import HEADS, Head
from make_parity_goldens import numbers, write_json
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

NUM_TOKENS = 48  # the last one is the root: emitted, but not yet in the target's KV cache
CHAIN_STEPS = 3
WIDTH, DEPTH, MAX_NODES = 3, 3, 8  # of the tree: nodes expanded and children of each, levels, nodes kept under the root
MIN_RATIO = 1 + 1e-3  # of one probability to the next smaller one
MIN_LOGIT_GAP = 1e-3  # between the best and the second token, as a part of the logits' range
MIN_DIFFERENCE = 0.05  # from what a wrong reading of the layout computes, as a part of the logits' range


# --- the target -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Target:
    """What a head takes from its target, in float32. States are [positions, hidden]."""

    embedding: Tensor
    lm_head: Tensor
    before_norm: Tensor
    after_norm: Tensor
    entering: list[Tensor]  # by layer: the residual stream that enters it


def load_target(folder: pathlib.Path, tokens: list[int]) -> Target:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    entering, norms = [], []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0][0]))
    model.model.norm.register_forward_hook(lambda _, inputs, output: norms.extend([inputs[0][0], output[0]]))
    logits = model(torch.tensor([tokens])).logits[0]
    assert torch.equal(model.lm_head(norms[1]), logits), "the state after the norm multiplies the output head"
    return Target(model.model.embed_tokens.weight, model.lm_head.weight, *norms, entering)


def tap_layers(num_layers: int) -> list[int]:
    layers = [2, num_layers // 2, num_layers - 3]
    assert layers == sorted(set(layers)), "three different layers: at least 7"
    return layers


# --- the head ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Cache:
    """Keys and values of rows, [KV heads, rows, head_dim]. Never changed in place: branches share it."""

    keys: Tensor
    values: Tensor
    next_position: int = 0


class Draft:
    """A draft head in float32: one decoder layer, with the fusion before it and the output head behind it."""

    def __init__(self, config: dict, weights: dict[str, Tensor], target: Target, norms: dict | None = None):
        self.config = config
        self.norms = norms or {}
        self.weights = {name: x.float() if x.is_floating_point() else x for name, x in weights.items()}
        self.target = target
        self.is_eagle3 = "draft_vocab_size" in config
        self.layer = "midlayer." if self.is_eagle3 and norms is None else "layers.0."
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.theta = config.get("rope_theta", 10000.0)
        # Target's id of each of the draft's.
        self.token_ids = torch.arange(config.get("draft_vocab_size", config["vocab_size"])) + self.weights.get("d2t", 0)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def embed(self, tokens: Tensor) -> Tensor:
        return self.weights.get("embed_tokens.weight", self.target.embedding)[tokens]

    def states(self) -> Tensor:
        """The target's states as the head reads them: after the final norm, or three taps side by side."""
        if not self.is_eagle3:
            return self.target.after_norm
        return torch.cat([self.target.entering[layer] for layer in self.taps()], dim=-1)

    def taps(self) -> list[int]:
        return self.norms.get("eagle_aux_hidden_state_layer_ids") or tap_layers(len(self.target.entering))

    def own_states(self, states: Tensor) -> Tensor:
        """The target's states in the form of the layer's own outputs, which a step of a chain reads."""
        if self.norms.get("norm_before_fc"):
            states = self.norm("input_norm", states)
        if self.norms.get("fc_norm"):
            taps = states.chunk(3, dim=-1)
            states = torch.cat([self.norm(f"fc_norm.{i}", tap) for i, tap in enumerate(taps)], dim=-1)
        return self.linear("fc", states) if self.is_eagle3 else states

    def layer_inputs(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and what the attention reads. `states` are the target's or the layer's own outputs."""
        embedded = self.embed(tokens)
        if not self.is_eagle3:
            fused = self.linear("fc", torch.cat([embedded, states], dim=-1))
            return fused, fused
        hidden = states if states.shape[-1] == self.config["hidden_size"] else self.own_states(states)
        embedded = self.norm(f"{self.layer}input_layernorm", embedded)
        state = self.norm(f"{self.layer}hidden_norm", hidden)
        residual = state if self.norms.get("norm_before_residual") else hidden
        return residual, torch.cat([embedded, state], dim=-1)

    def rotate(self, x: Tensor, first_position: int) -> Tensor:
        half = self.head_dim // 2
        positions = torch.arange(first_position, first_position + x.shape[1], dtype=torch.float32)
        angles = positions[:, None] * self.theta ** (-torch.arange(half, dtype=torch.float32) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)

    def empty_cache(self) -> Cache:
        nothing = torch.zeros(self.config["num_key_value_heads"], 0, self.head_dim)
        return Cache(nothing, nothing)

    def forward(self, cache: Cache, tokens: Tensor, states: Tensor) -> tuple[Tensor, Cache]:
        """The layer's outputs [rows, hidden] for rows that follow those of `cache`, and the cache with them."""
        residual, attended = self.layer_inputs(tokens, states)
        by_head = {
            which: self.linear(f"{self.layer}self_attn.{which}_proj", attended)
            .unflatten(-1, (-1, self.head_dim))
            .transpose(0, 1)
            for which in "qkv"
        }
        if self.config["model_type"] == "qwen3":
            for which in "qk":
                by_head[which] = self.norm(f"{self.layer}self_attn.{which}_norm", by_head[which])
        queries = self.rotate(by_head["q"], cache.next_position)
        keys = torch.cat([cache.keys, self.rotate(by_head["k"], cache.next_position)], dim=1)
        values = torch.cat([cache.values, by_head["v"]], dim=1)
        group = queries.shape[0] // keys.shape[0]
        scores = queries @ keys.repeat_interleave(group, 0).transpose(1, 2) / math.sqrt(self.head_dim)
        unseen = torch.ones(scores.shape[1:], dtype=torch.bool).triu(cache.keys.shape[1] + 1)
        if window := self.config.get("sliding_window"):
            unseen |= torch.ones(scores.shape[1:], dtype=torch.bool).tril(cache.keys.shape[1] - window)
        mixed = scores.masked_fill(unseen, -math.inf).softmax(-1) @ values.repeat_interleave(group, 0)
        x = residual + self.linear(f"{self.layer}self_attn.o_proj", mixed.transpose(0, 1).flatten(1))
        read = self.norm(f"{self.layer}post_attention_layernorm", x)
        gate, up = (self.linear(f"{self.layer}mlp.{which}_proj", read) for which in ("gate", "up"))
        x = x + self.linear(f"{self.layer}mlp.down_proj", torch.nn.functional.silu(gate) * up)
        x = self.norm("norm", x) if self.norms.get("norm_output") else x
        return x, Cache(keys, values, cache.next_position + len(tokens))

    def logits(self, outputs: Tensor) -> Tensor:
        if self.is_eagle3:
            return self.linear("lm_head", outputs if self.norms.get("norm_output") else self.norm("norm", outputs))
        return outputs @ self.target.lm_head.T

    def prefill(self, tokens: list[int], states: Tensor) -> tuple[Tensor, Cache]:
        """The output of the last row: of the root with the state before it."""
        outputs, cache = self.forward(self.empty_cache(), torch.tensor(tokens[1:]), states[:-1])
        return outputs[-1], cache

    def best_token(self, output: Tensor) -> int:
        return self.token_ids[self.logits(output).argmax()].item()


@dataclasses.dataclass
class Chain:
    logits: Tensor  # [1 + steps, draft vocabulary]
    tokens: list[int]  # the best of each row, all but the last one fed
    outputs: Tensor


def run_chain(
    draft: Draft,
    tokens: list[int],
    states: Tensor,
    fed: list[int] | None = None,
    feed: Callable[[Tensor], Tensor] = lambda output: output,
    position_shift: int = 0,
) -> Chain:
    """A chain of the best tokens, or of those in `fed`; each step reads the output of the one before.

    `feed` and `position_shift` are for what a wrong implementation does.
    """
    output, cache = draft.prefill(tokens, states)
    cache.next_position += position_shift
    outputs, chosen = [output], [draft.best_token(output)]
    for step in range(CHAIN_STEPS):
        token = fed[step] if fed else chosen[-1]
        output, cache = draft.forward(cache, torch.tensor([token]), feed(output)[None])
        output = output[0]
        outputs.append(output)
        chosen.append(draft.best_token(output))
    stacked = torch.stack(outputs)
    return Chain(draft.logits(stacked), chosen, stacked)


@dataclasses.dataclass
class Node:
    token: int
    log_probability: float  # joint: the sum along the path
    parent: "Node | None"
    depth: int
    output: Tensor | None = None  # of the row that predicts its children
    cache: Cache | None = None

    def path(self) -> "list[Node]":
        return [*self.parent.path(), self] if self.parent else [self]


def children(draft: Draft, node: Node) -> list[Node]:
    log_probabilities = draft.logits(node.output).double().log_softmax(-1)
    best = log_probabilities.topk(WIDTH + 1)
    assert_apart(best.values)
    return [
        Node(draft.token_ids[at].item(), node.log_probability + value.item(), node, node.depth + 1)
        for value, at in zip(best.values[:WIDTH], best.indices[:WIDTH], strict=True)
    ]


def assert_apart(log_probabilities: Tensor) -> None:
    falling = log_probabilities.sort(descending=True).values
    assert (falling[:-1] - falling[1:]).min() > math.log(MIN_RATIO), "another seed: probabilities are too close"


def grow_tree(draft: Draft, tokens: list[int], states: Tensor) -> list[Node]:
    """The tree of EAGLE-2, the root first, then by depth and falling probability."""
    root = Node(tokens[-1], 0.0, None, 0, *draft.prefill(tokens, states))
    candidates, expanded = [], [root]
    for depth in range(1, DEPTH + 1):
        level = [child for node in expanded for child in children(draft, node)]
        candidates += level
        if depth == DEPTH:
            break
        expanded = sorted(level, key=lambda node: -node.log_probability)[:WIDTH]
        for node in expanded:
            fed = torch.tensor([node.token])
            outputs, node.cache = draft.forward(node.parent.cache, fed, node.parent.output[None])
            node.output = outputs[0]
    assert_apart(torch.tensor([node.log_probability for node in candidates]))
    kept = sorted(candidates, key=lambda node: -node.log_probability)[:MAX_NODES]
    assert all(node.parent is root or any(node.parent is other for other in kept) for node in kept)
    return [root, *sorted(kept, key=lambda node: (node.depth, -node.log_probability))]


# --- checks -----------------------------------------------------------------------------------------------------------


def outputs_of_transformers(folder: pathlib.Path, draft: Draft, tokens: Tensor, states: Tensor) -> Tensor:
    """Outputs of rows from position 0 by transformers' decoder layer, given what `layer_inputs` computes."""
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation="eager")
    residual, attended = draft.layer_inputs(tokens, states)

    class Attended(torch.nn.Module):
        """In the place of the layer's first norm."""

        def forward(self, hidden: Tensor) -> Tensor:
            assert torch.equal(hidden[0], residual)
            return attended[None]

    layer = model.eval().layers[0]
    layer.input_layernorm, model.norm = Attended(), torch.nn.Identity()
    for name, tensor in draft.weights.items():
        module, _, parameter = name.removeprefix(draft.layer).rpartition(".")
        if module.startswith(("self_attn", "mlp", "post_attention")):
            setattr(layer.get_submodule(module), parameter, torch.nn.Parameter(tensor))
    outputs = model(inputs_embeds=residual[None], use_cache=False).last_hidden_state[0]
    return draft.norm("norm", outputs) if draft.norms.get("norm_output") else outputs


def check_passes(
    folder: pathlib.Path, draft: Draft, tokens: list[int], states: Tensor, chain: Chain, tree: list[Node]
) -> None:
    """Row by row with a cache, all rows in one causal pass, and transformers compute the same."""

    def assert_same(fed: list[int], outputs: Tensor) -> None:
        all_tokens = torch.tensor(tokens[1:] + fed)
        all_states = torch.cat([draft.own_states(states[:-1]), outputs[:-1]])
        in_one_pass, _ = draft.forward(draft.empty_cache(), all_tokens, all_states)
        by_transformers = outputs_of_transformers(folder, draft, all_tokens, all_states)
        bound = 1e-5 * in_one_pass.abs().max()
        assert (in_one_pass - by_transformers).abs().max() < bound, "not what transformers computes"
        assert (in_one_pass[-len(outputs) :] - outputs).abs().max() < bound, "row by row differs from one pass"

    assert_same(chain.tokens[:-1], chain.outputs)
    for node in tree[1:]:
        if node.output is not None:
            path = node.path()
            assert_same([below.token for below in path[1:]], torch.stack([below.output for below in path]))


def rolled(draft: Draft, names: list[str], columns: int) -> Draft:
    weights = draft.weights | {name: draft.weights[name].roll(columns, dims=1) for name in names}
    return Draft(draft.config, weights, draft.target, draft.norms or None)


def without(draft: Draft, suffix: str) -> Draft:
    weights = {name: tensor for name, tensor in draft.weights.items() if not name.endswith(suffix)}
    assert len(weights) < len(draft.weights)
    return Draft(draft.config, weights, draft.target)


def wrong_readings(draft: Draft, tokens: list[int], states: Tensor, chain: Chain) -> dict[str, Tensor]:
    """Logits of the chain by implementations that differ in one respect."""
    fed, width = chain.tokens, draft.config["hidden_size"]

    def by(other: Draft = draft, read: Tensor = states, **options) -> Tensor:
        return run_chain(other, tokens, read, **({"fed": fed} | options)).logits

    def read_as(config: dict, norms: dict | None) -> Draft:
        return Draft(draft.config | config, draft.weights, draft.target, norms)

    far = read_as({"rope_theta": 50 * draft.theta}, draft.norms or None)
    wrong = {"another RoPE base": by(far), "steps at the position in the text": by(position_shift=1)}
    if not draft.is_eagle3:
        wrong["state before the final norm"] = by(read=draft.target.before_norm)
        wrong["fc on [state, embedding]"] = by(rolled(draft, ["fc.weight"], width))
        if draft.config.get("bias", True):
            wrong["no bias of fc"] = by(without(draft, "fc.bias"))
        if draft.config.get("qkv_bias"):
            wrong["no biases of q, k and v"] = by(without(draft, "_proj.bias"))
        return wrong
    for which, on in draft.norms.items():
        if isinstance(on, bool):
            wrong[f"{which} {not on}".lower()] = by(read_as({}, draft.norms | {which: not on}))
    if "sliding_window" in draft.config:
        wrong["no window"] = by(read_as({"sliding_window": None}, draft.norms))
    inputs = [f"{draft.layer}self_attn.{which}_proj.weight" for which in "qkv"]
    leaving = [draft.target.entering[layer + 1] for layer in draft.taps()]
    wrong["taps that leave the layers"] = by(read=torch.cat(leaving, dim=-1))
    wrong["taps in another order"] = by(rolled(draft, ["fc.weight"], width))
    wrong["attention on [state, embedding]"] = by(rolled(draft, inputs, width))
    if not draft.norms.get("norm_output"):
        wrong["steps read the normed output"] = by(feed=lambda output: draft.norm("norm", output))
    draft_ids = [(draft.token_ids == token).nonzero().item() for token in fed]
    wrong["steps embed the draft's ids"] = by(fed=draft_ids)
    return wrong


def check_goldens(draft: Draft, tokens: list[int], states: Tensor, chain: Chain, tree: list[Node]) -> str:
    """The goldens must tell a right draft from a wrong one, and not depend on the order of sums."""
    spread = chain.logits.max() - chain.logits.min()
    best = chain.logits.topk(2).values
    gap = ((best[:, 0] - best[:, 1]).min() / spread).item()
    assert gap > MIN_LOGIT_GAP, "another seed: best tokens are too close"
    assert len(set(chain.tokens[:-1])) == CHAIN_STEPS, "another seed: a token is fed twice"
    differences = {}
    for what, logits in wrong_readings(draft, tokens, states, chain).items():
        differences[what] = ((logits - chain.logits).abs().max() / spread).item()
        assert differences[what] > MIN_DIFFERENCE, f"another seed: {what} makes no difference"
    parents = {id(node.parent) for node in tree if node.depth == 2}
    assert tree[-1].depth == DEPTH, "another seed: nothing kept of the last level"
    assert len(parents) > 1, "another seed: one node has all children"
    least = min(differences, key=differences.get)
    return f"logits spread over {spread:.2f}, gap {gap:.1e}, smallest difference {differences[least]:.3f} ({least})"


# --- files ------------------------------------------------------------------------------------------------------------


def random_weights(head: Head, target: Target) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(head.seed)
    config, eagle3 = head.config, "draft_vocab_size" in head.config
    width, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    read = 2 * width if eagle3 else width  # what q, k and v are wide
    layer = "midlayer." if eagle3 and head.norms is None else "layers.0."
    weights = {}

    def add(name: str, *shape: int, scale: float = 0.2) -> None:
        noise = torch.randn(shape, generator=generator)
        weights[name] = (1.0 + 0.3 * noise if "norm" in name else scale * noise).to(head.dtype)

    add("fc.weight", width, (3 if eagle3 else 2) * width, scale=0.2 * head.gain)
    if not eagle3 and config.get("bias", True):
        add("fc.bias", width)
    for which, rows in (("q", queries), ("k", keys), ("v", keys)):
        add(f"{layer}self_attn.{which}_proj.weight", rows, read, scale=0.2 if which == "v" or eagle3 else 0.5)
        if config.get("qkv_bias"):
            add(f"{layer}self_attn.{which}_proj.bias", rows)
    add(f"{layer}self_attn.o_proj.weight", width, queries, scale=head.gain)
    for which in ("gate", "up"):
        add(f"{layer}mlp.{which}_proj.weight", inner, width)
    add(f"{layer}mlp.down_proj.weight", width, inner, scale=0.2 * head.gain)
    add(f"{layer}post_attention_layernorm.weight", width)
    if not eagle3:
        weights["embed_tokens.weight"] = target.embedding.to(head.dtype)
        assert torch.equal(weights["embed_tokens.weight"].float(), target.embedding)
        return weights
    for name in (f"{layer}hidden_norm", f"{layer}input_layernorm", "norm"):
        add(f"{name}.weight", width)
    if config["model_type"] == "qwen3":
        for which in "qk":
            add(f"{layer}self_attn.{which}_norm.weight", head_dim)
    if (head.norms or {}).get("norm_before_fc"):
        add("input_norm.weight", 3 * width)
    for tap in range(3 if (head.norms or {}).get("fc_norm") else 0):
        add(f"fc_norm.{tap}.weight", width)
    vocabulary = config["draft_vocab_size"]
    add("lm_head.weight", vocabulary, width, scale=0.4)
    known = torch.randperm(config["vocab_size"], generator=generator)[:vocabulary].sort().values
    weights["d2t"] = known - torch.arange(vocabulary)
    weights["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool)
    weights["t2d"][known] = True
    return weights


def speculators_config(head: Head) -> dict:
    """The layer's fields without max_position_embeddings, which is what both classes of transformers fill in."""
    layer = {key: value for key, value in head.config.items() if key not in ("draft_vocab_size", "max_position_embeddings")}
    return {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": head.config["draft_vocab_size"],
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": head.target}},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    } | head.norms


def write_drafts(path: pathlib.Path, draft: Draft, head: Head, tokens: list[int], states: Tensor, chain: Chain,
                 tree: list[Node]) -> None:  # fmt: skip
    lines = [f'"target": "{head.target}"', f'"tokens": {json.dumps(tokens)}', f'"last_state": {numbers(states[-2])}']
    if draft.is_eagle3:
        lines.append(f'"taps": {json.dumps(draft.taps())}')
        lines.append(f'"token_ids": {json.dumps(draft.token_ids.tolist())}')
    lines.append(f'"chain": {json.dumps(chain.tokens)}')
    lines.append('"logits": [\n    ' + ",\n    ".join(map(numbers, chain.logits)) + "]")
    places = {id(node): place for place, node in enumerate(tree)}
    fields = [f'"width": {WIDTH}, "depth": {DEPTH}, "max_nodes": {MAX_NODES}']
    fields.append(f'"tokens": {json.dumps([node.token for node in tree])}')
    fields.append(f'"parents": {json.dumps([places.get(id(node.parent), -1) for node in tree])}')
    fields.append(f'"probabilities": {numbers(math.exp(node.log_probability) for node in tree)}')
    lines.append('"tree": {' + ",\n    ".join(fields) + "}")
    path.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


@torch.no_grad()
def make_head(head: Head, root: pathlib.Path) -> None:
    folder = root / "eagle" / head.name
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(head.config["vocab_size"], (NUM_TOKENS,), generator=generator).tolist()
    target = load_target(root / "parity" / head.target, tokens)
    weights = random_weights(head, target)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", head.config if head.norms is None else speculators_config(head))
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    draft = Draft(head.config, weights, target, head.norms)
    states = draft.states()
    chain, tree = run_chain(draft, tokens, states), grow_tree(draft, tokens, states)
    with tempfile.TemporaryDirectory() as plain:
        windowed = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}  # LlamaForCausalLM knows no window
        config = head.config | (windowed if "sliding_window" in head.config else {})
        write_json(pathlib.Path(plain) / "config.json", config)
        check_passes(pathlib.Path(plain), draft, tokens, states, chain, tree)
    print(f"{head.name}: {check_goldens(draft, tokens, states, chain, tree)}")
    write_drafts(folder / "drafts.json", draft, head, tokens, states, chain, tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data")
    parser.add_argument("--only", metavar="PREFIX", default="", help="only folders whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for head in HEADS:
        if head.name.startswith(options.only):
            make_head(head, options.folder)


if __name__ == "__main__":
    main()
