"""The draft heads that make_eagle_goldens.py writes."""

import dataclasses

import torch


@dataclasses.dataclass
class Head:
    """One folder. `config` is config.json; a `draft_vocab_size` makes it an EAGLE-3 head."""

    name: str
    target: str
    config: dict
    seed: int
    dtype: torch.dtype
    gain: float  # of the matrices that write to the residual stream: small, so that probabilities are not all 0 or 1
    norms: dict | None = None  # in the form of the library speculators, with these norms


PUBLISHED = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 2048,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 96,
}
LLAMA = PUBLISHED | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
SPECULATOR = PUBLISHED | {
    "architectures": ["LlamaForCausalLM"],  # of the target
    "hidden_size": 32,
    "intermediate_size": 56,
    "rms_norm_eps": 1e-05,
    "draft_vocab_size": 40,
}

HEADS = [
    # As EAGLE-llama2-chat: neither `bias` (true) nor `rope_theta` (10000).
    Head(
        "eagle1-llama",
        "llama-default-bf16",
        LLAMA
        | {
            "hidden_size": 64,
            "intermediate_size": 56,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
        },
        seed=100,
        dtype=torch.bfloat16,
        gain=0.18,
    ),
    # Biases as in Qwen2's attention; a RoPE base that is neither the target's nor the default.
    Head(
        "eagle2-qwen2",
        "qwen2",
        PUBLISHED
        | {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 20000.0,
            "torch_dtype": "float32",
            "bias": False,
            "qkv_bias": True,
        },
        seed=98,
        dtype=torch.float32,
        gain=0.4,
    ),
    # As EAGLE3-LLaMA3.1: no rope_theta, whatever the target's; no embeddings. head_dim as in heads for Qwen3.
    Head(
        "eagle3-llama",
        "llama-8-layers",
        LLAMA
        | {
            "hidden_size": 32,
            "intermediate_size": 56,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "draft_vocab_size": 40,
        },
        seed=65,
        dtype=torch.float16,
        gain=0.5,
    ),
    # As RedHatAI's speculators: the layer's fields in an object of their own, without what LlamaConfig fills in.
    Head(
        "speculators-llama",
        "llama-8-layers",
        SPECULATOR | {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
                      "layer_types": ["sliding_attention"], "sliding_window": 20, "torch_dtype": "float32"},
        seed=5,
        dtype=torch.float32,
        gain=0.5,
        norms={"norm_before_residual": True, "norm_before_fc": True, "norm_output": True,
               "eagle_aux_hidden_state_layer_ids": [1, 4, 5]},
    ),
    Head(
        "speculators-qwen3",
        "llama-8-layers",
        SPECULATOR | {"model_type": "qwen3", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
                      "rope_theta": 1000000.0, "torch_dtype": "bfloat16"},
        seed=73,
        dtype=torch.bfloat16,
        gain=0.5,
        norms={"norm_before_residual": False, "fc_norm": True, "norm_output": True},
    ),
]  # fmt: skip
