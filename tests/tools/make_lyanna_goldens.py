#!/usr/bin/env python3
"""Writes tests/data/lyanna: tiny random Lyanna draft layers (drafts of hidden states), and what PyTorch computes.

Run by hand when a case is added or a target changes. The results are committed, so that no test needs PyTorch:

    pip install torch transformers safetensors
    python3 tests/tools/make_lyanna_goldens.py tests/data

The layer is that of EAGLE 1 and 2 (make_eagle_goldens.py), and so are the targets and the text. What differs: behind
the text the layer reads its own last output directly, without `fc` and without a token. A token adds a row of its own
to the logits of the next level instead, so that one chain serves every path of a tree, and later another root.
Weights depend only on the seed; logits may differ in the last digits with another PyTorch.
tests/data/parity/README.md describes the files.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
from collections.abc import Callable

import safetensors.torch
import torch
import transformers
from make_eagle_goldens import (
    DEPTH,
    HEADS,
    MAX_NODES,
    MIN_DIFFERENCE,
    NUM_TOKENS,
    WIDTH,
    Cache,
    Chain,
    Draft,
    Head,
    Node,
    Target,
    assert_apart,
    check_passes,
    load_target,
    random_weights,
    rolled,
    without,
)
from make_parity_goldens import numbers, write_json
from torch import Tensor

NO_TOKEN = -1  # instead of a row's token: the layer reads the row's state directly
REJECTED_LEVEL = 1  # of whose drafts none was accepted
RESAMPLED_NODES = 4  # kept under the bonus token
STEP_GAIN = 0.8  # of what the layer adds to its input, beside the head's gain: logits grow less along the chain
INFO_GAIN = 1.6  # 0.4 to 0.5 of the logits' standard deviation: ranks change, and the logits still count

Info = Callable[[Node], Tensor]  # what a node adds to the logits of its children, [vocabulary]


@dataclasses.dataclass
class Case:
    head: Head
    info_scale: float  # of the weights of both factors
    num_hot: int | None = None  # None: no tensor `hot_tokens`


def lyanna(name: str, eagle: str, seed: int, rank: int) -> Head:
    """A Lyanna layer of the sizes of this EAGLE head."""
    head = next(head for head in HEADS if head.name == eagle)
    config = head.config | {"draft_layer": "lyanna", "token_info_rank": rank}
    return dataclasses.replace(head, name=name, config=config, seed=seed)


CASES = [
    # Token info is so small before its norm that the epsilon counts; the target has another one.
    Case(lyanna("lyanna-llama", "eagle1-llama", seed=1310, rank=8), info_scale=0.02),
    Case(lyanna("lyanna-qwen2", "eagle2-qwen2", seed=2592, rank=4), info_scale=0.2, num_hot=40),
]


# --- the layer and its trees ------------------------------------------------------------------------------------------


class Lyanna(Draft):
    """The layer in float32, and what tokens add to its logits."""

    def __init__(self, config: dict, weights: dict[str, Tensor], target: Target):
        super().__init__(config, weights, target)
        self.hot = self.weights.get("hot_tokens", torch.arange(config["vocab_size"]))

    def layer_inputs(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        fused, _ = super().layer_inputs(tokens, states)
        read = torch.where(tokens[:, None] == NO_TOKEN, states, fused)
        return read, read

    def info_before_norm(self, token: int) -> Tensor:
        return self.linear("token_info.up", self.linear("token_info.down", self.target.embedding[token]))

    def to_vocabulary(self, values: Tensor) -> Tensor:
        """From [hot tokens] to [vocabulary], where the others get 0."""
        return torch.zeros(self.config["vocab_size"]).index_put((self.hot,), values)

    def info(self, token: int) -> Tensor:
        if token not in self.hot:
            return torch.zeros(self.config["vocab_size"])
        return self.to_vocabulary(self.norm("token_info.norm", self.info_before_norm(token)))


def run_chain(
    draft: Lyanna,
    tokens: list[int],
    states: Tensor,
    fed: int = NO_TOKEN,
    change_cache: Callable[[Cache, int], Cache] = lambda cache, step: cache,
) -> Chain:
    """All levels' outputs and logits. `fed` and `change_cache` are for what a wrong implementation does."""
    output, cache = draft.prefill(tokens, states)
    outputs = [output]
    for step in range(1, DEPTH):
        output, cache = draft.forward(change_cache(cache, step), torch.tensor([fed]), outputs[-1][None])
        outputs.append(output[0])
    stacked = torch.stack(outputs)
    return Chain(draft.logits(stacked), [NO_TOKEN] * DEPTH, stacked)


@dataclasses.dataclass
class Tree:
    kept: list[Node]  # the root first, then by depth and falling probability
    expanded: list[Node]  # each with its children's log probabilities, [vocabulary], as `output`
    candidates: list[Node]

    def columns(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and joint probabilities."""
        places = {id(node): place for place, node in enumerate(self.kept)}
        return (
            [node.token for node in self.kept],
            [places.get(id(node.parent), -1) for node in self.kept],
            [math.exp(node.log_probability) for node in self.kept],
        )


def grow_tree(root_token: int, logits: Tensor, info: Info, max_nodes: int) -> Tree:
    """Algorithm 1 of the paper, then its pruning. `logits` has a row for each level."""
    root = Node(root_token, 0.0, None, 0)
    expanded, candidates = [], []
    level = [root]
    for depth, row in enumerate(logits, start=1):
        growing = sorted(level, key=lambda node: -node.log_probability)[:WIDTH]
        level = []
        for node in growing:
            node.output = (row + info(node)).double().log_softmax(-1)
            best = node.output.topk(WIDTH)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                level.append(Node(token, node.log_probability + value, node, depth))
        expanded += growing
        candidates += level
    kept = sorted(candidates, key=lambda node: -node.log_probability)[:max_nodes]
    return Tree([root, *sorted(kept, key=lambda node: (node.depth, -node.log_probability))], expanded, candidates)


@dataclasses.dataclass
class Grown:
    """All that is grown from one chain, with one reading of what tokens add."""

    tree: Tree
    bonus: int
    resampled: Tree


def grow(draft: Lyanna, root_token: int, logits: Tensor, bonus: int | None = None, info: Info | None = None) -> Grown:
    """Without `bonus` it is the most probable hot token of the rejected level that was not drafted."""
    info = info or (lambda node: draft.info(node.token))
    tree = grow_tree(root_token, logits, info, MAX_NODES)
    if bonus is None:
        others = tree.expanded[0].output.argsort(descending=True)[WIDTH:].tolist()
        bonus = next(token for token in others if token in draft.hot)
    # The paper's Algorithm 2.
    return Grown(tree, bonus, grow_tree(bonus, logits[REJECTED_LEVEL:], info, RESAMPLED_NODES))


# --- checks -----------------------------------------------------------------------------------------------------------


def wrong_chains(draft: Lyanna, tokens: list[int], states: Tensor, best_token: int) -> dict[str, Tensor]:
    """Logits of the chain by implementations that differ in one respect."""
    num_rows = len(tokens) - 1  # of the text

    def by(other: Draft = draft, read: Tensor = states, **options) -> Tensor:
        return run_chain(Lyanna(other.config, other.weights, other.target), tokens, read, **options).logits

    def further_on(cache: Cache, step: int) -> Cache:
        return dataclasses.replace(cache, next_position=num_rows + step)

    def same_position(cache: Cache, step: int) -> Cache:
        return dataclasses.replace(cache, next_position=num_rows - 1)

    def text_only(cache: Cache, step: int) -> Cache:
        return dataclasses.replace(cache, keys=cache.keys[:, :num_rows], values=cache.values[:, :num_rows])

    def chain_only(cache: Cache, step: int) -> Cache:
        first = num_rows if step == 1 else 0
        return dataclasses.replace(cache, keys=cache.keys[:, first:], values=cache.values[:, first:])

    wrong = {
        "steps through fc with the best token": by(fed=best_token),
        "steps through fc with the root": by(fed=tokens[-1]),
        "steps at the position in the text": by(change_cache=further_on),
        "steps at the position of the last row": by(change_cache=same_position),
        "steps that do not see each other": by(change_cache=text_only),
        "steps that do not see the text": by(change_cache=chain_only),
        "another RoPE base": by(Draft(draft.config | {"rope_theta": 50 * draft.theta}, draft.weights, draft.target)),
        "state before the final norm": by(read=draft.target.before_norm),
        "fc on [state, embedding]": by(rolled(draft, ["fc.weight"], draft.config["hidden_size"])),
    }
    if draft.config.get("bias", True):
        wrong["no bias of fc"] = by(without(draft, "fc.bias"))
    if draft.config.get("qkv_bias"):
        wrong["no biases of q, k and v"] = by(without(draft, "_proj.bias"))
    return wrong


def wrong_infos(draft: Lyanna, tokens: list[int], target_epsilon: float) -> dict[str, Info]:
    nothing = torch.zeros(draft.config["vocab_size"])
    gain = draft.weights["token_info.norm.weight"]
    other = Lyanna(draft.config | {"rms_norm_eps": target_epsilon}, draft.weights, draft.target)

    def normed(node: Node) -> Tensor:
        return draft.norm("token_info.norm", draft.info_before_norm(node.token))

    def if_hot(node: Node, values: Tensor) -> Tensor:
        return draft.to_vocabulary(values) if node.token in draft.hot else nothing

    wrong = {
        "no token info": lambda node: nothing,
        "info of the token before": lambda node: draft.info(node.parent.token if node.parent else tokens[-2]),
        "info of the root at every level": lambda node: draft.info(tokens[-1]),
        "info without its norm": lambda node: if_hot(node, draft.info_before_norm(node.token)),
        "info without the norm's gain": lambda node: if_hot(node, normed(node) / gain),
    }
    if target_epsilon != draft.config["rms_norm_eps"]:
        wrong["info with the target's epsilon"] = lambda node: other.info(node.token)
    if "hot_tokens" in draft.weights:
        wider = math.sqrt(len(nothing) / len(draft.hot))
        padding = torch.zeros(len(nothing) - len(draft.hot))
        wrong["info's norm over the vocabulary"] = lambda node: draft.info(node.token) * wider
        wrong["info of tokens that are not hot"] = lambda node: draft.to_vocabulary(normed(node))
        wrong["info's value j on token j"] = lambda node: (
            torch.cat([normed(node), padding]) if node.token in draft.hot else nothing
        )
    return wrong


def tree_difference(right: Tree, wrong: Tree) -> float:
    """The greatest relative difference of two probabilities; 1 if other tokens are kept."""
    (*nodes, right_probabilities), (*wrong_nodes, wrong_probabilities) = right.columns(), wrong.columns()
    if nodes != wrong_nodes:
        return 1.0
    return max(abs(a / b - 1) for a, b in zip(wrong_probabilities, right_probabilities, strict=True))


def differences(
    draft: Lyanna, tokens: list[int], states: Tensor, chain: Chain, grown: Grown, target_epsilon: float
) -> dict[str, float]:
    """What wrong readings change: of the logits, as a part of their range; of trees, see `tree_difference`."""
    logits, bonus = chain.logits, grown.bonus
    spread = logits.max() - logits.min()
    found = {
        what: ((wrong - logits).abs().max() / spread).item()
        for what, wrong in wrong_chains(draft, tokens, states, grown.tree.kept[1].token).items()
    }
    for what, info in wrong_infos(draft, tokens, target_epsilon).items():
        wrong = grow(draft, tokens[-1], logits, bonus, info)
        found[what] = max(tree_difference(grown.tree, wrong.tree), tree_difference(grown.resampled, wrong.resampled))

    def resampled(rows: list[int], root: int = bonus) -> float:
        def info(node: Node) -> Tensor:
            return draft.info(node.token if node.parent else root)

        return tree_difference(grown.resampled, grow_tree(bonus, logits[rows], info, RESAMPLED_NODES))

    first_row_only = grow(draft, tokens[-1], logits[[0] * DEPTH])
    found["every level reads the first row"] = tree_difference(grown.tree, first_row_only.tree)
    found["re-sampling from the first row"] = resampled([0, 1])
    found["re-sampling in one row"] = resampled([1, 1])
    found["re-sampling with the old root's info"] = resampled([1, 2], tokens[-1])
    return found


def check_goldens(
    draft: Lyanna, tokens: list[int], states: Tensor, chain: Chain, grown: Grown, target_epsilon: float
) -> str:
    """The goldens must tell a right draft from a wrong one, and not depend on the order of sums."""
    for tree in (grown.tree, grown.resampled):
        for node in tree.expanded:
            assert_apart(node.output.topk(WIDTH + 1).values)
        assert_apart(torch.tensor([node.log_probability for node in tree.candidates], dtype=torch.double))
        assert tree.kept[-1].depth == tree.candidates[-1].depth, "another seed: nothing kept of the last level"
        assert len({id(node.parent) for node in tree.kept if node.depth == 2}) > 1, "another seed: one node has it all"
    best = {node.output.argmax().item() for node in grown.tree.expanded if node.depth == 1}
    assert len(best) > 1, "another seed: all drafts of the first level have the same best child"
    assert tokens[-1] in draft.hot, "another seed: the root is not hot"
    if "hot_tokens" in draft.weights:
        assert any(node.token not in draft.hot for node in grown.tree.expanded), "another seed: all are hot"
    found = differences(draft, tokens, states, chain, grown, target_epsilon)
    assert found["no token info"] == 1, "another seed: token info does not change what is kept"
    least = min(found, key=found.get)
    assert found[least] > MIN_DIFFERENCE, f"another seed: {least} makes no difference"
    spread, deviation = chain.logits.max() - chain.logits.min(), chain.logits.std(-1).mean()
    gain = draft.weights["token_info.norm.weight"].abs().mean() / deviation
    return (
        f"logits spread over {spread:.2f}, info's gain {gain:.2f} of their deviation, "
        f"smallest of {len(found)} differences {found[least]:.3f} ({least})"
    )


# --- files ------------------------------------------------------------------------------------------------------------


def random_layer(case: Case, target: Target) -> dict[str, Tensor]:
    head, config = case.head, case.head.config
    weights = random_weights(head, target)
    del weights["embed_tokens.weight"]  # the target's
    for name in ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
        weights[name] = (STEP_GAIN * weights[name].float()).to(head.dtype)
    generator = torch.Generator().manual_seed(head.seed + 1000)
    vocabulary, rank = config["vocab_size"], config["token_info_rank"]
    num_columns = case.num_hot or vocabulary
    for name, shape in (("down", (rank, config["hidden_size"])), ("up", (num_columns, rank))):
        noise = torch.randn(shape, generator=generator)
        weights[f"token_info.{name}.weight"] = (case.info_scale * noise).to(head.dtype)
    gain = INFO_GAIN * (1.0 + 0.3 * torch.randn(num_columns, generator=generator))
    weights["token_info.norm.weight"] = gain.to(head.dtype)
    if case.num_hot:
        weights["hot_tokens"] = torch.randperm(vocabulary, generator=generator)[: case.num_hot].sort().values
    return weights


def info_tokens(draft: Lyanna, tokens: list[int], grown: Grown) -> list[int]:
    """The root, the bonus token, and an expanded node's: one that is not hot if there is one."""
    drafted = [node.token for node in grown.tree.expanded[1:]]
    return [tokens[-1], grown.bonus, next((token for token in drafted if token not in draft.hot), drafted[0])]


def tree_fields(tree: Tree, **settings: int) -> str:
    tokens, parents, probabilities = tree.columns()
    fields = [", ".join(f'"{name}": {value}' for name, value in settings.items())]
    fields += [f'"tokens": {json.dumps(tokens)}', f'"parents": {json.dumps(parents)}']
    return "{" + ",\n    ".join([*fields, f'"probabilities": {numbers(probabilities)}']) + "}"


def write_drafts(path: pathlib.Path, draft: Lyanna, case: Case, tokens: list[int], chain: Chain, grown: Grown) -> None:
    infos = [
        f'{{"token": {token}, "added": {numbers(draft.info(token))}}}' for token in info_tokens(draft, tokens, grown)
    ]
    tree = tree_fields(grown.tree, width=WIDTH, depth=DEPTH, max_nodes=MAX_NODES)
    resampled = tree_fields(
        grown.resampled, level=REJECTED_LEVEL, bonus=grown.bonus, width=WIDTH, max_nodes=RESAMPLED_NODES
    )
    lines = [f'"target": "{case.head.target}"', f'"tokens": {json.dumps(tokens)}']
    lines.append('"logits": [\n    ' + ",\n    ".join(map(numbers, chain.logits)) + "]")
    lines.append('"info": [\n    ' + ",\n    ".join(infos) + "]")
    lines += [f'"tree": {tree}', f'"resampled": {resampled}']
    path.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


@torch.no_grad()
def make_case(case: Case, root: pathlib.Path) -> None:
    head = case.head
    folder, target_folder = root / "lyanna" / head.name, root / "parity" / head.target
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(head.config["vocab_size"], (NUM_TOKENS,), generator=generator).tolist()
    target = load_target(target_folder, tokens)
    weights = random_layer(case, target)
    draft = Lyanna(head.config, weights, target)
    states = draft.states()
    chain = run_chain(draft, tokens, states)
    grown = grow(draft, tokens[-1], chain.logits)
    target_epsilon = json.loads((target_folder / "config.json").read_text())["rms_norm_eps"]
    summary = check_goldens(draft, tokens, states, chain, grown, target_epsilon)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", head.config)
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    check_passes(folder, draft, tokens, states, chain, tree=[])
    write_drafts(folder / "drafts.json", draft, case, tokens, chain, grown)
    print(f"{head.name}: {summary}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data")
    parser.add_argument("--only", metavar="PREFIX", default="", help="only folders whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for case in CASES:
        if case.head.name.startswith(options.only):
            make_case(case, options.folder)


if __name__ == "__main__":
    main()
