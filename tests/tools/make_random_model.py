#!/usr/bin/env python3
"""Writes a Hugging Face folder of random bf16 weights, for benchmarks of loading.

Shapes as in `longhaul bench`: 1.1b (default) is 2.2 GB in half a minute, qwen3-30b-a3b 61 GB, with 6 layers 9 GB;
gpt-oss-20b, whose experts are in MXFP4, is 14 GB, qwen3.5-0.8b, with linear attention in three of four layers, 1.1 GB. The
tokenizer is the demo model's. The weights repeat a pseudorandom block from varying offsets: their values do not matter,
but none is NaN.
"""
import argparse
import array
import json
import math
import random
import shutil
import struct
from pathlib import Path

SHAPES = {  # vocabulary, hidden, intermediate, layers, heads, KV heads, head dim, tied embeddings
    "135m": (49152, 576, 1536, 30, 9, 3, 64, True),
    "1.1b": (32000, 2048, 5632, 22, 32, 4, 64, False),
    "3b": (128256, 3072, 8192, 28, 24, 8, 128, True),
    "8b": (128256, 4096, 14336, 32, 32, 8, 128, False),
    "qwen3.5-0.8b": (49152, 1024, 3584, 24, 8, 2, 256, True),
    "qwen3-30b-a3b": (151936, 2048, 768, 48, 32, 4, 128, False),
    "gpt-oss-20b": (201088, 2880, 2880, 24, 64, 8, 64, False),
}
EXPERTS = {"qwen3-30b-a3b": (128, 8), "gpt-oss-20b": (32, 4)}  # of a layer, of a token
SHARD_BYTES = 2 << 30


def tensors(shape, layers):
    vocab, hidden, intermediate, _, heads, kv_heads, dim, tied = SHAPES[shape]
    num_experts, _ = EXPERTS.get(shape, (0, 0))
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        if shape == "qwen3.5-0.8b" and layer % 4 != 3:
            yield from tensors_of_linear_attention(prefix + "linear_attn.", hidden)
        else:
            gates = 2 if shape == "qwen3.5-0.8b" else 1  # beside each query
            yield prefix + "self_attn.q_proj.weight", (gates * heads * dim, hidden)
            yield prefix + "self_attn.k_proj.weight", (kv_heads * dim, hidden)
            yield prefix + "self_attn.v_proj.weight", (kv_heads * dim, hidden)
            yield prefix + "self_attn.o_proj.weight", (hidden, heads * dim)
            if gates == 2:
                yield prefix + "self_attn.q_norm.weight", (dim,)
                yield prefix + "self_attn.k_norm.weight", (dim,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        if shape == "gpt-oss-20b":
            yield from tensors_of_gpt_oss_layer(prefix)
            continue
        if num_experts:
            yield prefix + "self_attn.q_norm.weight", (dim,)
            yield prefix + "self_attn.k_norm.weight", (dim,)
            yield prefix + "mlp.gate.weight", (num_experts, hidden)
        for mlp in [f"mlp.experts.{number}." for number in range(num_experts)] or ["mlp."]:
            yield prefix + mlp + "gate_proj.weight", (intermediate, hidden)
            yield prefix + mlp + "up_proj.weight", (intermediate, hidden)
            yield prefix + mlp + "down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    if not tied:
        yield "lm_head.weight", (vocab, hidden)


LINEAR = {"linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}


def tensors_of_linear_attention(prefix, hidden):
    heads, dim = LINEAR["linear_num_value_heads"], LINEAR["linear_value_head_dim"]
    yield prefix + "in_proj_qkv.weight", (3 * heads * dim, hidden)
    yield prefix + "in_proj_z.weight", (heads * dim, hidden)
    yield prefix + "conv1d.weight", (3 * heads * dim, 1, LINEAR["linear_conv_kernel_dim"])
    for name in ("in_proj_a.weight", "in_proj_b.weight"):
        yield prefix + name, (heads, hidden)
    for name in ("A_log", "dt_bias"):
        yield prefix + name, (heads,)
    yield prefix + "norm.weight", (dim,)
    yield prefix + "out_proj.weight", (hidden, heads * dim)


def tensors_of_gpt_oss_layer(prefix):
    _, hidden, intermediate, _, heads, kv_heads, dim, _ = SHAPES["gpt-oss-20b"]
    num_experts, _ = EXPERTS["gpt-oss-20b"]
    for name, rows in {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim, "o": hidden}.items():
        yield prefix + f"self_attn.{name}_proj.bias", (rows,)
    yield prefix + "self_attn.sinks", (heads,)
    yield prefix + "mlp.router.weight", (num_experts, hidden)
    yield prefix + "mlp.router.bias", (num_experts,)
    for name, rows, columns in (("gate_up", 2 * intermediate, hidden), ("down", hidden, intermediate)):
        yield prefix + f"mlp.experts.{name}_proj_blocks", (num_experts, rows, columns // 32, 16)
        yield prefix + f"mlp.experts.{name}_proj_scales", (num_experts, rows, columns // 32)
        yield prefix + f"mlp.experts.{name}_proj_bias", (num_experts, rows)


def dtype_of(name):
    return "U8" if name.endswith(("_blocks", "_scales")) else "BF16"


def bytes_of(name, shape):
    return math.prod(shape) * (1 if dtype_of(name) == "U8" else 2)


def config(shape, layers):
    vocab, hidden, intermediate, _, heads, kv_heads, dim, tied = SHAPES[shape]
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False}
    if shape == "gpt-oss-20b":
        num_experts, per_token = EXPERTS[shape]
        rope = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": False}
        family = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": num_experts,
                  "num_experts_per_tok": per_token, "sliding_window": 128, "rope_scaling": rope, "attention_bias": True,
                  "quantization_config": {"quant_method": "mxfp4"}}
    elif shape == "qwen3.5-0.8b":
        family = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "partial_rotary_factor": 0.25,
                  "full_attention_interval": 4} | LINEAR
    elif shape in EXPERTS:
        num_experts, per_token = EXPERTS[shape]
        family = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": intermediate,
                  "num_experts": num_experts, "num_experts_per_tok": per_token, "norm_topk_prob": True}
    return family | {
        "torch_dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 131072, "tie_word_embeddings": tied,
        "bos_token_id": 1, "eos_token_id": 2, "mlp_bias": False,
    }


def random_block(rng):
    """bf16 of uniform numbers in -0.04..0.04, slightly more than 2 MiB."""
    return array.array("H", (struct.unpack("<I", struct.pack("<f", rng.uniform(-0.04, 0.04)))[0] >> 16
                             for _ in range((1 << 20) + 65536))).tobytes()


def write_shard(path, entries, block, rng):
    header, offset = {}, 0
    for name, shape in entries:
        size = bytes_of(name, shape)
        header[name] = {"dtype": dtype_of(name), "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in entries:
            left = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if len(shape) == 1:
                out.write(b"\x80\x3f" * (left // 2))  # norms, biases and sinks are ones
                continue
            if name.endswith("_scales"):
                out.write(b"\x78" * left)  # 1 / 128
                continue
            while left > 0:
                start = 2 * rng.randrange(65536)
                part = block[start:start + min(left, 2 << 20)]
                out.write(part)
                left -= len(part)


def shards(shape, layers):
    """Tensors divided into files of at most 2 GiB, as Hugging Face does."""
    groups, size = [[]], 0
    for name, dims in tensors(shape, layers):
        bytes_ = bytes_of(name, dims)
        if groups[-1] and size + bytes_ > SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((name, dims))
        size += bytes_
    return groups


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("shape", nargs="?", choices=SHAPES, default="1.1b")
    arguments.add_argument("layers", nargs="?", type=int)
    options = arguments.parse_args()
    folder, shape = options.folder, options.shape
    layers = options.layers or SHAPES[shape][3]
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    block = random_block(rng)
    groups = shards(shape, layers)
    names, total = {}, 0
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05}-of-{len(groups):05}.safetensors" if len(groups) > 1 else "model.safetensors"
        write_shard(folder / name, group, block, rng)
        names.update({tensor: name for tensor, _ in group})
        total += (folder / name).stat().st_size
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config(shape, layers), indent=1))
    demo = Path(__file__).resolve().parents[2] / "jobs/demo/model"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (demo / name).exists():
            shutil.copy(demo / name, folder / name)
    print(f"{folder}: {total / 1e9:.2f} GB in {len(groups)} file(s)")


if __name__ == "__main__":
    main()
