#!/usr/bin/env python3
"""Writes tests/data/mtp: tiny random models with a layer for multi-token prediction (MTP), and what PyTorch computes.

Run by hand when a case is added. The results are committed, so that no test needs PyTorch:

    pip install torch transformers safetensors
    python3 tests/tools/make_mtp_goldens.py tests/data

transformers ignores such layers. Their decoder layer is computed by its model of one layer, whose final norm is the
MTP layer's own. A row joins the hidden state at a position, after the final norm, with the embedding of the token after
it. Steps of a chain read the layer's own outputs after its norm, as SGLang's drafts do. Weights depend only on the seed;
logits may differ in the last digits with another PyTorch. tests/data/parity/README.md describes the files.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import tempfile

import safetensors.torch
import torch
from make_parity_goldens import EAGER, numbers, published_experts, random_weights, without_none, write_json, write_model
from make_parity_goldens import write_model_with_images
from parity_configs import DEEPSEEK_V3, FOUR_HEADS, GLM4_MOE, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT, SMALL
from parity_models import Model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

NUM_TOKENS = 48  # the last one is the root: emitted, but not yet in the target's KV cache
CHAIN_STEPS = 3
MIN_DIFFERENCE = 0.05  # from what a wrong reading of the layout computes, as a part of the logits' range
GAIN = 0.3  # of what the layer adds to the residual stream: small, so that it guesses better than chance

NUMBERED = {"fusion": "eh_proj", "token_norm": "enorm", "state_norm": "hnorm", "output_norm": "shared_head.norm"}
NAMED = {"fusion": "mtp.fc", "token_norm": "mtp.pre_fc_norm_embedding", "state_norm": "mtp.pre_fc_norm_hidden",
         "output_norm": "mtp.norm"}  # fmt: skip
ONE_MOE = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
ONE_FULL = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []}


@dataclasses.dataclass
class Case:
    """One folder. `layer`: what the model of one layer has instead in its config."""

    model: Model
    layer: dict
    seed: int
    numbered: bool = False  # names as DeepSeek's
    stacked: bool = False  # the layer's experts are one tensor, though the model's are not


CASES = [
    Case(Model("glm4-moe", GLM4_MOE), ONE_MOE, 1, numbered=True),
    Case(Model("deepseek-v3", DEEPSEEK_V3 | FOUR_HEADS | {"num_nextn_predict_layers": 1}), ONE_MOE, 2, numbered=True),
    Case(Model("qwen3.5-images", QWEN3_5 | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
               with_images="Qwen3_5ForConditionalGeneration qwen3_5"), ONE_FULL, 3),
    Case(Model("qwen3.5-moe", QWEN3_5_MOE), ONE_FULL, 4, stacked=True),
    Case(Model("qwen3-next", QWEN3_NEXT | {"num_hidden_layers": 2, "mlp_only_layers": [0]}), ONE_FULL, 5),
]


def random_model(config: dict, generator: torch.Generator):
    with tempfile.TemporaryDirectory() as scratch:
        write_json(pathlib.Path(scratch) / "config.json", without_none(config))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(scratch), dtype=torch.float32, **EAGER)
    random_weights(model, generator)
    return model.eval()


class Layer:
    """The layer on one text. `swap` and `normed` are for what a wrong implementation does."""

    def __init__(self, case: Case, target, generator: torch.Generator):
        self.target = target
        self.one = random_model(SMALL | case.model.config | case.layer, generator)
        width = target.config.hidden_size
        for name, parameter in self.one.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.data *= GAIN
        norm = type(target.model.norm)
        self.norms = {which: norm(width, eps=target.config.rms_norm_eps) for which in ("token_norm", "state_norm")}
        for module in self.norms.values():
            module.weight.data += 0.3 * torch.randn(width, generator=generator)
        noise = torch.randn(width, 2 * width, generator=generator)
        self.fusion = 0.05 * noise + torch.cat([torch.zeros(width, width), torch.eye(width)], dim=1)

    def outputs(self, tokens: list[int], states: Tensor, swap: bool = False) -> tuple[Tensor, Tensor]:
        """[rows, hidden], before and after the last norm."""
        token = self.norms["token_norm"](self.target.model.embed_tokens(torch.tensor(tokens)))
        state = self.norms["state_norm"](states)
        fused = torch.cat([state, token] if swap else [token, state], dim=-1) @ self.fusion.T
        before = []
        hook = self.one.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0][0]))
        after = self.one.model(inputs_embeds=fused[None], use_cache=False).last_hidden_state[0]
        hook.remove()
        return before[0], after

    def chain(self, tokens: list[int], states: Tensor, fed: list[int] | None = None, swap: bool = False,
              normed: bool = True) -> tuple[Tensor, list[int]]:  # fmt: skip
        """Logits of a chain of the best tokens, or of those in `fed`, and the tokens."""
        rows, all_tokens, logits, chosen = states[:-1], tokens[1:], [], []
        for step in range(CHAIN_STEPS + 1):
            before, after = self.outputs(all_tokens, rows, swap)
            logits.append(self.target.lm_head(after[-1]))
            chosen.append(int(logits[-1].argmax()))
            rows = torch.cat([rows, (after if normed else before)[-1:]])
            all_tokens = [*all_tokens, fed[step] if fed else chosen[-1]]
        return torch.stack(logits), chosen

    def tensors(self, case: Case) -> dict[str, Tensor]:
        names = NUMBERED if case.numbered else NAMED
        below = f"model.layers.{self.target.config.num_hidden_layers}." if case.numbered else ""
        layer = below or "mtp.layers.0."
        tensors = {
            below + names["fusion"]: self.fusion,
            below + names["token_norm"]: self.norms["token_norm"].weight,
            below + names["state_norm"]: self.norms["state_norm"].weight,
            below + names["output_norm"]: self.one.model.norm.weight,
        }
        if case.numbered:  # copies of the model's
            tensors[below + "embed_tokens"] = self.target.model.embed_tokens.weight
            tensors[below + "shared_head.head"] = self.target.lm_head.weight
        tensors = {f"{name}.weight": tensor.detach().clone() for name, tensor in tensors.items()}
        state = {name: tensor.contiguous() for name, tensor in self.one.state_dict().items()}
        state = state if case.stacked else published_experts(state, case.model.config["model_type"])
        prefix = "model.layers.0."
        return tensors | {layer + name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def check(layer: Layer, tokens: list[int], states: Tensor, before_norm: Tensor, logits: Tensor, fed: list[int]) -> str:
    """The goldens must tell a right draft from a wrong one."""
    spread = logits.max() - logits.min()
    wrong = {
        "fusion of [state, embedding]": layer.chain(tokens, states, fed, swap=True)[0],
        "steps read the output before its norm": layer.chain(tokens, states, fed, normed=False)[0],
        "tokens one position later": layer.chain([*tokens[1:], tokens[0]], states, fed)[0],
    }
    if not torch.allclose(layer.norms["state_norm"](states), layer.norms["state_norm"](before_norm), rtol=0.01):
        wrong["states before the final norm"] = layer.chain(tokens, before_norm, fed)[0]
    differences = {what: ((other - logits).abs().max() / spread).item() for what, other in wrong.items()}
    least = min(differences, key=differences.get)
    assert differences[least] > MIN_DIFFERENCE, f"another seed: {least} makes no difference"
    return f"logits spread over {spread:.2f}, smallest difference {differences[least]:.3f} ({least})"


@torch.no_grad()
def make_case(case: Case, root: pathlib.Path) -> None:
    folder = root / "mtp" / case.model.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(case.seed)
    target = random_model(SMALL | case.model.config, generator)
    layer = Layer(case, target, generator)
    if case.model.with_images:
        with tempfile.TemporaryDirectory() as plain:
            write_model_with_images(case.model, folder, pathlib.Path(plain), target.state_dict())
    else:
        write_model(case.model, folder, target.state_dict())
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file) | layer.tensors(case)
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})

    tokens = torch.randint(SMALL["vocab_size"], (NUM_TOKENS,), generator=torch.Generator().manual_seed(7)).tolist()
    norms = []
    hook = target.model.norm.register_forward_hook(lambda _, inputs, output: norms.extend([inputs[0][0], output[0]]))
    target.model(torch.tensor([tokens]), use_cache=False)
    hook.remove()
    logits, chain = layer.chain(tokens, norms[1])
    print(f"{case.model.name}: {check(layer, tokens, norms[1], norms[0], logits, chain)}")
    lines = [f'"tokens": {json.dumps(tokens)}', f'"chain": {json.dumps(chain)}']
    lines.append('"logits": [\n    ' + ",\n    ".join(map(numbers, logits)) + "]")
    (folder / "drafts.json").write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        make_case(case, options.folder)


if __name__ == "__main__":
    main()
