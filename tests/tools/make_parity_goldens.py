#!/usr/bin/env python3
"""Writes tests/data/parity: tiny random checkpoints and the results of Hugging Face transformers for them.

Run by hand when a case is added or the demo's weights change. The results are committed, so that no test needs PyTorch:

    pip install torch transformers safetensors
    python3 tests/tools/make_parity_goldens.py tests/data/parity

Weights depend only on the seed. Logits may differ in the last digits with another PyTorch. The layout of the files is
described in tests/data/parity/README.md.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

import safetensors.torch
import torch
import transformers
from parity_configs import NULL, SMALL
from parity_models import MODELS, ROPE_POSITIONS, ROPES
from stored_weights import SCALED, quantized
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ADDS_ONE = ("gemma", "gemma2", "nemotron", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
SEPARATE = ("qwen3_moe", "mixtral", "minimax_m2", "glm4_moe", "glm4_moe_lite", "deepseek_v2", "deepseek_v3", "qwen2_moe",
            "qwen3_next", "qwen3_5_moe_text")  # fmt: skip
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}  # others want aligned rows


def without_none(config):
    return {key: None if value is NULL else value for key, value in config.items() if value is not None}


def whole_config(spec):
    """A text model's sizes may stand in a section of their own."""
    sizes = {key: value for key, value in SMALL.items() if key != "architectures" and key != "model_type"}
    stored = {"torch_dtype": "bfloat16"} if spec.half else {}
    if "text_config" in spec.config:
        return without_none(spec.config | {"text_config": without_none(sizes | stored | spec.config["text_config"])})
    return without_none(SMALL | stored | spec.config)


def class_of(config):
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def numbers(row):
    """Floats as text that parses back to the same float32."""
    return "[" + ", ".join(f"{float(value):.9g}" for value in row) + "]"


def random_weights(model, generator):
    """Weights with a much larger spread than a trained model's: logits differ by several units, so errors show."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("router.scale", "per_expert_scale")):
            parameter.data = 1.0 + 0.3 * noise
        elif ("norm" in name or ".ln_" in name) and name.endswith("weight"):
            adds_one = model.config.model_type in ADDS_ONE and "linear_attn.norm" not in name
            parameter.data = 0.3 * noise + (0.0 if adds_one else 1.0)
        elif name.endswith("A_log"):
            parameter.data = noise - 3.0
        elif "conv1d" in name:
            parameter.data = 0.5 * noise
        elif "sinks" in name or name.endswith("experts.gate_up_proj"):
            parameter.data = noise
        else:
            parameter.data = noise * (0.4 if "embed" in name or "wte" in name or "lm_head" in name else 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
        if name.endswith("layer_scalar"):
            buffer.copy_(0.7 + 0.2 * torch.rand(buffer.shape, generator=generator))
    model.tie_weights()


def published_experts(tensors, model_type):
    """The experts of a layer as one tensor a matrix, as in published folders: transformers 5 stacks them."""
    if model_type not in SEPARATE:
        return tensors
    separate = {}
    for name, tensor in tensors.items():
        mixtral = model_type in ("mixtral", "minimax_m2")
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if ".experts." not in name:
            separate[name] = tensor
            continue
        prefix, matrix = name.rsplit(".", 1)
        for number, expert in enumerate(tensor):
            parts = {"down_proj": expert} if matrix == "down_proj" else dict(zip(("gate_proj", "up_proj"), expert.chunk(2)))
            for part, rows in parts.items():
                part = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[part] if mixtral else part
                separate[f"{prefix}.{number}.{part}.weight"] = rows.contiguous()
    return separate


def write_scaled_model(spec, folder, plain, state):
    """Writes the folder with scales, and `plain` with what its matrices stand for, which transformers computes with."""
    config = without_none(SMALL | spec.config)
    stored, meant = quantized(published_experts({n: t.contiguous() for n, t in state.items()}, config["model_type"]), spec.scaled)
    if config["tie_word_embeddings"]:
        del stored["lm_head.weight"], meant["lm_head.weight"]
    for place, tensors in ((folder, stored), (plain, meant)):
        safetensors.torch.save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    write_json(plain / "config.json", config)
    write_json(folder / "config.json", config | {"quantization_config": SCALED[spec.scaled][0]})


def write_model_with_images(spec, folder, plain, state):
    """Writes the published form of a text model with a vision tower beside it, and `plain` for transformers."""
    write_model(spec, plain, state)
    class_name, model_type = spec.with_images.split()
    inner = json.loads((plain / "config.json").read_text())
    outer = {key: inner.pop(key) for key in ("torch_dtype", "bos_token_id", "eos_token_id")}
    outer |= {"architectures": [class_name], "model_type": model_type, "vision_config": {"hidden_size": 16}}
    del inner["architectures"]
    write_json(folder / "config.json", outer | {"text_config": inner})
    within = dict.fromkeys(("gemma4", "qwen3_5", "qwen3_5_moe"), "model.language_model").get(model_type, "language_model.model")
    state = {name: tensor.to(spec.stored) for name, tensor in state.items()}
    if model_type == "kimi_k25":
        state = published_experts(state, inner["model_type"])
    tensors = {f"{within}.{name.removeprefix('model.')}": tensor for name, tensor in state.items() if name != "lm_head.weight"}
    if not inner.get("tie_word_embeddings"):
        at_top = model_type == "gemma4" or model_type.startswith("qwen3_5")
        tensors["lm_head.weight" if at_top else "language_model.lm_head.weight"] = state["lm_head.weight"]
    tensors["vision_tower.ln_pre.weight"] = torch.ones(16)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save(folder, to, dtype, state):
    """Has transformers save the model of `folder`/config.json."""
    config = AutoConfig.from_pretrained(folder)
    model = class_of(config).from_config(config, dtype=dtype)
    model.load_state_dict(state)
    (pathlib.Path(to) / "config.json").unlink(missing_ok=True)
    model.save_pretrained(to)


def write_model(spec, folder, state):
    """Writes the folder in published form; config.json by hand in the older form, by transformers in the newer."""
    config = whole_config(spec)
    if spec.modern:
        write_json(folder / "config.json", config)
        save(folder, folder, spec.stored, state)
        return
    write_json(folder / "config.json", config)
    if spec.generation:
        write_json(folder / "generation_config.json", spec.generation)
    if spec.saved:
        with tempfile.TemporaryDirectory() as scratch:
            save(folder, scratch, spec.stored, state)
            tensors = safetensors.torch.load_file(pathlib.Path(scratch) / "model.safetensors")
        if config["model_type"] == "hy_v3":  # a part of a layer for multi-token prediction
            tensors[f"model.layers.{config['num_hidden_layers']}.eh_proj.weight"] = torch.ones(config["hidden_size"], 2)
        if config["model_type"] == "qwen3_vl_moe":  # published column by column, saved row by row
            tensors = {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor for name, tensor in tensors.items()}
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    tensors = {name: tensor.to(spec.stored).contiguous() for name, tensor in state.items()}
    tensors = published_experts(tensors, config["model_type"])
    if config.get("num_nextn_predict_layers"):  # a part of a layer for multi-token prediction
        tensors[f"model.layers.{config['num_hidden_layers']}.eh_proj.weight"] = torch.ones(config["hidden_size"], 2)
    if config.get("tie_word_embeddings", config["model_type"] in ("opt", "gpt2", "gemma3_text", "gemma4_text")):
        del tensors["lm_head.weight"]
    if spec.headless:
        tensors = {name.removeprefix("model.").removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    if not spec.shard_bytes:
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    shards = [{}]
    for name, tensor in tensors.items():
        if sum(t.nbytes for t in shards[-1].values()) + tensor.nbytes > spec.shard_bytes and shards[-1]:
            shards.append({})
        shards[-1][name] = tensor
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        safetensors.torch.save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def load(folder, dtype):
    return class_of(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=dtype, **EAGER).eval()


@torch.no_grad()
def logits(folder, dtype, tokens, positions):
    return load(folder, dtype)(torch.tensor([tokens])).logits[0, positions].float()


@torch.no_grad()
def greedy(folder, prompt, num_tokens=200):
    """The greedy continuation of `prompt`: every step computes the whole text, without a cache."""
    model = load(folder, torch.float32)
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def golden_positions(num_tokens):
    wanted = [0, 1, 31, 32, 63, 511, 512, 4095, 4096, num_tokens - 1]
    return sorted({position for position in wanted if position < num_tokens})


def write_golden(spec, folder, tokens, plain=None):
    """`plain`: the folder that transformers reads, if it is another."""
    positions = golden_positions(spec.num_tokens)
    results = {"logits": logits(plain or folder, torch.float32, tokens, positions)}
    if spec.dtype == torch.bfloat16:
        results["logits_bf16"] = logits(folder, torch.bfloat16, tokens, positions)
    lines = [f'"tokens": {json.dumps(tokens)}', f'"positions": {json.dumps(positions)}']
    for key, rows in results.items():
        lines.append(f'"{key}": [\n    ' + ",\n    ".join(numbers(row) for row in rows) + "\n  ]")
    if spec.prompt > 0:
        lines += [f'"prompt": {spec.prompt}', f'"greedy": {json.dumps(greedy(plain or folder, tokens[: spec.prompt]))}']
    (folder / "golden.json").write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")
    spread = results["logits"].max() - results["logits"].min()
    print(f"{spec.name}: logits spread over {spread:.2f}")


def make_models(root, prefix):
    states = {}
    for number, spec in enumerate(MODELS):
        if not spec.name.startswith(prefix):
            continue
        folder = root / spec.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(1000 + number)
        if spec.weights_of:
            state = states[spec.weights_of]
        else:
            with tempfile.TemporaryDirectory() as scratch:
                write_json(pathlib.Path(scratch) / "config.json", whole_config(spec))
                config = AutoConfig.from_pretrained(scratch)
                model = class_of(config).from_config(config, dtype=torch.float32)
            random_weights(model, generator)
            if spec.half:
                model.to(torch.bfloat16).to(torch.float32)
            state = states[spec.name] = model.state_dict()
        vocab_size = spec.config.get("vocab_size", SMALL["vocab_size"])
        tokens = torch.randint(vocab_size, (spec.num_tokens,), generator=torch.Generator().manual_seed(7)).tolist()
        if not spec.scaled and not spec.with_images:
            write_model(spec, folder, state)
            write_golden(spec, folder, tokens)
            continue
        with tempfile.TemporaryDirectory() as plain:
            write = write_scaled_model if spec.scaled else write_model_with_images
            write(spec, folder, pathlib.Path(plain), state)
            write_golden(spec, folder, tokens, plain)


def make_demo(path, folder):
    """The demo's trained model: 600 tokens, more than one chunk of attention; only every eighth logit."""
    step, positions = 8, [0, 63, 511, 599]
    tokens = torch.randint(4096, (600,), generator=torch.Generator().manual_seed(7)).tolist()
    rows = logits(folder, torch.float32, tokens, positions)[:, ::step]
    lines = [f'"tokens": {json.dumps(tokens)}', f'"positions": {json.dumps(positions)}', f'"step": {step}']
    lines.append('"logits": [\n    ' + ",\n    ".join(numbers(row) for row in rows) + "\n  ]")
    path.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


@torch.no_grad()
def make_demo_heads(path, demo, name):
    """The demo's heads in the folder `name` at the last of 40 tokens of a book: best tokens, and 8 logits."""
    text = (demo / "books" / "1342-pride-and-prejudice.txt").read_text(encoding="utf-8")
    tokens = AutoTokenizer.from_pretrained(demo / "model")(text).input_ids[:40]
    ids = list(range(0, 4096, 585))  # 8 of them
    model = AutoModelForCausalLM.from_pretrained(demo / "model", dtype=torch.float32, **EAGER).eval()
    # The input of the final norm. The last of transformers' own hidden_states is its output.
    before_norm = []
    model.model.norm.register_forward_pre_hook(lambda module, inputs: before_norm.append(inputs[0][0, -1]))
    model(torch.tensor([tokens]))
    h0 = before_norm[0]
    config = json.loads((demo / name / "config.json").read_text())
    weights = safetensors.torch.load_file(demo / name / "model.safetensors")

    def norm(head, which, x):
        gain = weights[f"model.medusa_layers.{head}.{which}.weight"].float()
        return x * torch.rsqrt(x.pow(2).mean() + config["rms_norm_eps"]) * gain

    h, best, rows = h0, [], []
    for head in range(config["medusa_heads"]):
        start = h if config["chained"] else h0
        h = start + weights[f"model.medusa_layers.{head}.linear.weight"].float() @ norm(head, "input_layernorm", start)
        row = model.lm_head(norm(head, "post_layernorm", h))
        best.append(row.topk(5))
        rows.append(row[ids])
    lines = [f'"tokens": {json.dumps(tokens)}', f'"position": {len(tokens) - 1}', f'"ids": {json.dumps(ids)}']
    lines.append(f'"top_ids": {json.dumps([top.indices.tolist() for top in best])}')
    for key, values in (("top_logits", [top.values for top in best]), ("logits", rows)):
        lines.append(f'"{key}": [\n    ' + ",\n    ".join(map(numbers, values)) + "\n  ]")
    path.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


def rope_case(name, change):
    config = without_none(SMALL | {"head_dim": 64} | change)
    with tempfile.TemporaryDirectory() as scratch:
        write_json(pathlib.Path(scratch) / "config.json", config)
        rope = LlamaRotaryEmbedding(AutoConfig.from_pretrained(scratch))
    cos, sin = rope(torch.zeros(1), torch.tensor([ROPE_POSITIONS]))
    half = rope.inv_freq.numel()
    lines = [f'"name": "{name}"', f'"config": {json.dumps(config)}', f'"attention_factor": {rope.attention_scaling:.9g}']
    lines.append(f'"inverse_frequencies": {numbers(rope.inv_freq)}')
    for key, values in (("cos", cos), ("sin", sin)):
        lines.append(f'"{key}": [\n      ' + ",\n      ".join(numbers(row[:half]) for row in values[0]) + "]")
    return "{" + ",\n    ".join(lines) + "}"


def make_ropes(path):
    cases = ",\n    ".join(rope_case(name, change) for name, change in ROPES)
    path.write_text(f'{{"positions": {ROPE_POSITIONS},\n  "cases": [\n    {cases}]}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="tests/data/parity")
    parser.add_argument("--demo-only", action="store_true", help="only demo.json, of jobs/demo/model")
    parser.add_argument("--heads-only", action="store_true", help="only the files of the heads in jobs/demo")
    parser.add_argument("--only", metavar="PREFIX", help="only folders whose name begins so")
    options = parser.parse_args()
    root = options.folder
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    if options.only:
        return make_models(root, options.only)
    demo = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "demo"
    for name in ("medusa", "tokenswift"):
        make_demo_heads(root / f"demo_{name}.json", demo, name)
    if options.heads_only:
        return
    make_demo(root / "demo.json", demo / "model")
    if options.demo_only:
        return
    make_models(root, "")
    make_ropes(root / "rope.json")


if __name__ == "__main__":
    main()
