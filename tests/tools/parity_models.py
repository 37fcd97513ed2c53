"""The tiny models of tests/data/parity, one configuration each, for make_parity_goldens.py. New ones come last: a
model's place in MODELS is the seed of its weights.
"""

import dataclasses

import torch
from parity_configs import *


@dataclasses.dataclass
class Model:
    """One model folder. `config` changes `SMALL`; an entry that is None is removed, one that is NULL is null."""

    name: str
    config: dict
    num_tokens: int = 80
    dtype: torch.dtype = torch.float32
    half: bool = False  # weights are rounded to bfloat16 and stored so, which takes half the space
    shard_bytes: int = 0  # if above 0: several files with an index
    modern: bool = False  # config.json as transformers 5 writes it
    weights_of: str = ""  # the same weights as that model, rounded to `dtype`
    generation: dict = dataclasses.field(default_factory=dict)
    prompt: int = 0  # if above 0: the greedy continuation of so many tokens is in the golden
    headless: bool = False  # tensor names of the model without its head, as in OPT's published folders
    with_images: str = ""  # the folder is that of this class and type, whose text model this is
    saved: bool = False  # transformers itself knows how the published tensors are named and shaped
    scaled: str = ""  # matrices of 8 or 4 bits with scales: a key of SCALED

    @property
    def stored(self) -> torch.dtype:
        return torch.bfloat16 if self.half else self.dtype


MODELS = [
    # 8 query and 4 KV heads, so that every tensor-parallel degree runs; more tokens than one chunk of attention.
    Model("llama-default", EIGHT_HEADS, num_tokens=700),
    Model("llama-default-bf16", EIGHT_HEADS | {"torch_dtype": "bfloat16"}, 700, torch.bfloat16, weights_of="llama-default"),
    Model("llama-linear", {"num_key_value_heads": 1, "rope_scaling": {"type": "linear", "factor": 2.5}}),
    Model(
        "llama-llama3",
        {
            "rope_theta": 500000.0,
            "max_position_embeddings": 128,
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32},
        },
        generation={"eos_token_id": [2, 5]},
    ),
    Model(
        "llama-llama3-fp16",
        {
            "rope_theta": 500000.0,
            "max_position_embeddings": 128,
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32},
            "torch_dtype": "float16",
        },
        dtype=torch.float16,
        weights_of="llama-llama3",
    ),
    Model("llama-yarn", YARN),
    Model("llama-yarn-bf16", YARN | {"torch_dtype": "bfloat16"}, dtype=torch.bfloat16, weights_of="llama-yarn"),
    Model(
        "llama-modern",
        YARN | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        modern=True,
    ),
    Model("llama-shards", {"tie_word_embeddings": False}, shard_bytes=40000),
    Model(
        "llama-odd",
        {
            "vocab_size": 97,
            "hidden_size": 40,
            "intermediate_size": 58,
            "num_hidden_layers": 3,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "head_dim": 6,
        },
    ),
    Model("qwen2", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": None, "use_sliding_window": False,
                    "sliding_window": 1024, "max_window_layers": 2, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06}),
    Model("opt", OPT),
    Model("opt-fp16", OPT | {"torch_dtype": "float16"}, dtype=torch.float16, weights_of="opt", headless=True),
    Model("opt-bf16", OPT | {"torch_dtype": "bfloat16"}, dtype=torch.bfloat16, weights_of="opt"),
    Model("opt-post-norm-bf16", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 20, "torch_dtype": "bfloat16"},
          dtype=torch.bfloat16),
    # The target of the EAGLE-3 head of make_eagle_goldens.py: enough layers for three different taps.
    Model("llama-8-layers", {"intermediate_size": 16, "num_hidden_layers": 8, "num_attention_heads": 8,
                             "num_key_value_heads": 4, "head_dim": 8, "tie_word_embeddings": False,
                             "rope_theta": 500000.0, "max_position_embeddings": 128, "torch_dtype": "bfloat16",
                             "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}}, dtype=torch.bfloat16),
    Model("qwen3", QWEN3 | {"tie_word_embeddings": False}, prompt=40),
    Model("qwen3-bf16", QWEN3 | {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}, dtype=torch.bfloat16, weights_of="qwen3"),
    # 8 heads, so that every tensor-parallel degree runs.
    Model("qwen3-window", QWEN3 | EIGHT_HEADS | {"head_dim": 6, "use_sliding_window": True, "sliding_window": 70,
                                                 "max_window_layers": 1}, 600, prompt=100, half=True),
    Model("mistral", MISTRAL | {"sliding_window": 4096}, 4200),
    Model("mistral-window", MISTRAL | {"sliding_window": 33}, 600, prompt=50, half=True),
    Model("mistral-full-modern", MISTRAL | {"sliding_window": None, "head_dim": 24}, 80, modern=True, half=True),
    Model("gemma3", GEMMA3, 4200, half=True),
    Model("gemma3-bf16", GEMMA3 | {"torch_dtype": "bfloat16"}, 600, torch.bfloat16, weights_of="gemma3"),
    Model("gemma3-modern", GEMMA3 | {"tie_word_embeddings": False, "num_key_value_heads": 4, "num_attention_heads": 8,
                                     "head_dim": 4, "query_pre_attn_scalar": 4}, 80, modern=True, prompt=60, half=True),
    Model("phi3-short", PHI3, 60, prompt=40),
    Model("phi3-long", PHI3, 80, weights_of="phi3-short"),
    Model("phi3-bf16", PHI3 | {"torch_dtype": "bfloat16", "num_key_value_heads": 4, "num_attention_heads": 8,
                               "rope_scaling": None, "sliding_window": 50}, 80, torch.bfloat16),
    Model("qwen3-moe", QWEN3_MOE, prompt=40, half=True),
    Model("qwen3-moe-modern", QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [], "norm_topk_prob": False,
                                           "num_experts": 6, "num_experts_per_tok": 2}, modern=True, half=True),
    Model("mixtral", MIXTRAL, prompt=50, half=True),
    # 136 rows and columns: two blocks of scales.
    Model("qwen3-fp8", QWEN3 | {"hidden_size": 136, "intermediate_size": 40, "num_hidden_layers": 1}, scaled="block"),
    Model("qwen3-moe-fp8", QWEN3_MOE, weights_of="qwen3-moe", scaled="channel"),
    Model("qwen2-int8", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": None,
                         "rms_norm_eps": 1e-06}, weights_of="qwen2", scaled="int8"),
    Model("gpt-oss", GPT_OSS, 600, prompt=60, half=True),
    Model("gpt-oss-mxfp4", GPT_OSS, 80, weights_of="gpt-oss", scaled="mxfp4", prompt=60),
    Model("gpt-oss-bf16-modern", GPT_OSS | {"torch_dtype": "bfloat16", "num_hidden_layers": 1,
                                            "intermediate_size": 17, "layer_types": ["sliding_attention"]}, 80, torch.bfloat16, modern=True),
    Model("mistral3", MISTRAL | {"sliding_window": None}, prompt=50, with_images="Mistral3ForConditionalGeneration mistral3", half=True),
    Model("glm4-moe", GLM4_MOE, prompt=40),
    Model("glm4-moe-modern", GLM4_MOE | {"use_qk_norm": False, "norm_topk_prob": False, "n_shared_experts": 1,
                                         "first_k_dense_replace": 0, "num_hidden_layers": 1}, modern=True, half=True),
    Model("qwen2-gptq", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "head_dim": None,
                         "rms_norm_eps": 1e-06}, weights_of="qwen2", scaled="gptq"),
    Model("mixtral-awq", MIXTRAL, weights_of="mixtral", scaled="awq"),
    Model("qwen3-moe-packed", QWEN3_MOE, weights_of="qwen3-moe", scaled="packed"),
    Model("qwen3-nvfp4", QWEN3 | {"intermediate_size": 48, "num_hidden_layers": 1}, scaled="nvfp4"),
    Model("smollm3", SMOLLM3, prompt=40, half=True),
    Model("smollm3-modern", SMOLLM3 | {"no_rope_layers": [0, 1, 1, 1], "use_sliding_window": True, "sliding_window": 40}, 80, modern=True, half=True),
    Model("ministral3", MINISTRAL3, 600, prompt=60, half=True),
    Model("mistral3-ministral3", MINISTRAL3, 80, with_images="Mistral3ForConditionalGeneration mistral3", half=True),
    Model("seed-oss", SEED_OSS, prompt=40, half=True),
    Model("deepseek-v3", DEEPSEEK_V3, 300, prompt=40, half=True),
    Model("deepseek-v3-bf16", DEEPSEEK_V3 | {"torch_dtype": "bfloat16"}, 80, torch.bfloat16, weights_of="deepseek-v3"),
    Model("deepseek-v3-fp8", DEEPSEEK_V3 | {"num_hidden_layers": 1, "first_k_dense_replace": 0}, scaled="block"),
    Model("deepseek-v2", DEEPSEEK_V2 | FOUR_HEADS, 80, prompt=40, half=True),
    Model("deepseek-v2-lite", DEEPSEEK_V2 | {"q_lora_rank": NULL, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                                             "first_k_dense_replace": 0, "num_hidden_layers": 1, "routed_scaling_factor": 1.0}, half=True),
    Model("glm4-moe-lite", GLM4_MOE_LITE | FOUR_HEADS, prompt=40, modern=True, half=True),
    Model("deepseek-v3-halves", DEEPSEEK_V3 | {"num_hidden_layers": 1, "rope_interleave": False}, half=True),
    Model("granite", GRANITE, prompt=40, half=True),
    Model("glm4", GLM4, prompt=40, half=True),
    Model("glm4-whole-modern", GLM4 | {"num_hidden_layers": 1, "partial_rotary_factor": 1.0, "attention_bias": False}, modern=True, half=True),
    Model("olmo2", OLMO2, prompt=40, half=True),
    Model("olmo3", OLMO3, prompt=60, half=True),
    Model("olmo3-modern", OLMO3 | {"layer_types": ["full_attention"], "num_hidden_layers": 1}, modern=True, half=True),
    Model("minimax-m2", MINIMAX_M2, prompt=40, half=True),
    Model("gemma4", GEMMA4, 600, prompt=60, half=True),
    Model("gemma4-bf16", GEMMA4 | {"torch_dtype": "bfloat16"}, 80, torch.bfloat16, weights_of="gemma4"),
    Model("gemma4-modern", GEMMA4 | {"attention_k_eq_v": False, "tie_word_embeddings": False, "final_logit_softcapping": None,
                                     "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}, 80, modern=True, half=True),
    Model("gemma4-moe", GEMMA4_MOE, 80, prompt=60, with_images="Gemma4ForConditionalGeneration gemma4", half=True),
    Model("gemma4-moe-modern", GEMMA4_MOE | {"num_key_value_heads": 2}, 80, modern=True, half=True),
    Model("qwen3.5", QWEN3_5, 300, prompt=40, half=True),
    Model("qwen3.5-images", QWEN3_5 | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
                                       "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 32,
                                       "num_attention_heads": 2, "num_key_value_heads": 1},
          with_images="Qwen3_5ForConditionalGeneration qwen3_5", half=True),
    Model("qwen3-next", QWEN3_NEXT, 300, prompt=40, half=True),
    Model("qwen3-next-bf16-modern", QWEN3_NEXT | {"torch_dtype": "bfloat16", "num_hidden_layers": 2, "mlp_only_layers": [],
                                                  "norm_topk_prob": False}, 80, torch.bfloat16, modern=True),
    Model("qwen3.5-moe", QWEN3_5_MOE, prompt=40, with_images="Qwen3_5MoeForConditionalGeneration qwen3_5_moe", half=True),
    Model("qwen3.5-moe-fp8", QWEN3_5_MOE, weights_of="qwen3.5-moe", scaled="channel"),
    Model("qwen2-moe", QWEN2_MOE, half=True),
    Model("gemma4-e2b", GEMMA4_E2B, 300, prompt=60, with_images="Gemma4ForConditionalGeneration gemma4", half=True),
    Model("gemma4-e2b-bf16", GEMMA4_E2B | {"torch_dtype": "bfloat16"}, 80, torch.bfloat16, weights_of="gemma4-e2b"),
    Model("glm", GLM, prompt=40, half=True),
    Model("exaone4", EXAONE4, 300, prompt=60, half=True),
    Model("exaone-moe", EXAONE_MOE, prompt=60, saved=True, half=True),
    Model("ernie4.5", ERNIE, prompt=40, half=True),
    Model("ernie4.5-moe", ERNIE_MOE, prompt=40, saved=True, half=True),
    Model("granite4", GRANITE4, prompt=40, half=True),
    Model("granite4-moe-modern", GRANITE4 | {"num_local_experts": 5, "num_experts_per_tok": 2, "position_embedding_type": NULL,
                                             "layer_types": ["full_attention", "full_attention"], "intermediate_size": 12},
          modern=True, half=True),
    Model("granite4-h", GRANITE4_H, 300, prompt=40, saved=True, half=True),
    Model("granite4-h-modern", GRANITE4_H | {"num_local_experts": 0, "num_hidden_layers": 2, "mamba_n_heads": 4,
                                             "layer_types": ["linear_attention", "full_attention"], "mamba_d_head": 32,
                                             "mamba_conv_bias": False, "torch_dtype": "bfloat16"}, 80, torch.bfloat16,
          modern=True),
    Model("granite-moe", GRANITE_MOE, prompt=40, saved=True, half=True),
    Model("olmoe", OLMOE, prompt=40, saved=True, half=True),
    Model("dots1", DOTS1, prompt=40, saved=True, half=True),
    Model("solar-open", SOLAR_OPEN, prompt=40, saved=True, half=True),
    Model("hy-v3", HY_V3, prompt=40, saved=True, half=True),
    Model("qwen2.5-vl", QWEN2_VL, prompt=40, saved=True, half=True),
    Model("qwen3-vl-modern", QWEN3_VL, modern=True, half=True),
    Model("qwen3-vl-moe", QWEN3_VL_MOE, prompt=40, saved=True, half=True),
    Model("qwen3-vl-moe-modern", QWEN3_VL_MOE | {"text_config": QWEN3_VL_MOE["text_config"] | {"num_hidden_layers": 1}}, modern=True, half=True),
    Model("nemotron-h", NEMOTRON_H, 300, prompt=40, saved=True, half=True),
    Model("nemotron3", NEMOTRON3, prompt=40, saved=True, half=True),
    Model("nemotron3-latent-modern", NEMOTRON3 | {"hybrid_override_pattern": None, "moe_latent_size": 24, "n_groups": 1, "num_experts_per_tok": 4,
                                                  "layers_block_type": ["attention", "moe", "mamba"], "num_hidden_layers": 3,
                                                  "use_conv_bias": False, "torch_dtype": "bfloat16"}, 80, torch.bfloat16, modern=True,
          prompt=40),
    Model("arcee", ARCEE, prompt=40, half=True),
    Model("afmoe", AFMOE, prompt=40, saved=True, half=True),
    Model("youtu", YOUTU, prompt=40, half=True),
    Model("cohere", COHERE, prompt=40, half=True),
    Model("cohere2", COHERE2, prompt=40, half=True),
    Model("gpt-neox", GPT_NEOX, 300, prompt=40, saved=True, half=True),
    Model("gpt-neox-sequential-modern", GPT_NEOX | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_fast",
                                                    "num_hidden_layers": 1}, modern=True, half=True),
    Model("phi", PHI, prompt=40, half=True),
    Model("starcoder2", STARCODER2, prompt=40, half=True),
    Model("stablelm", STABLELM, prompt=40, half=True),
    Model("nemotron", NEMOTRON, prompt=40, half=True),
    Model("gemma", GEMMA, prompt=40, half=True),
    Model("gemma2", GEMMA2, 600, prompt=60, half=True),
    Model("gpt2", GPT2, 120, prompt=20, half=True),
    Model("gpt2-headless-modern", GPT2 | {"n_layer": 1, "n_inner": 48, "activation_function": "gelu", "tie_word_embeddings": False},
          modern=True, headless=True, half=True),
    Model("exaone", EXAONE, prompt=40, saved=True, half=True),
    Model("cwm", CWM, prompt=40, half=True),
    Model("kimi-k25", DEEPSEEK_V3 | FOUR_HEADS | {"num_hidden_layers": 1, "first_k_dense_replace": 0}, prompt=40,
          with_images="KimiK25ForConditionalGeneration kimi_k25", half=True),
]  # fmt: skip

# RoPE frequencies of published models (no weights needed): name, changes to a Llama of head_dim 64.
ROPES = [
    ("llama-2", {"head_dim": 128, "max_position_embeddings": 4096}),
    ("theta-1e6", {"rope_theta": 1000000.0, "max_position_embeddings": 32768}),
    ("linear-older", {"rope_scaling": {"type": "linear", "factor": 8.0}, "max_position_embeddings": 16384}),
    ("llama-3.1-8b", {"head_dim": 128, "rope_theta": 500000.0, "max_position_embeddings": 131072,
                      "rope_scaling": LLAMA3 | {"factor": 8.0, "original_max_position_embeddings": 8192}}),
    ("llama-3.2-1b-modern", {"max_position_embeddings": 131072, "rope_theta": None, "rope_scaling": None, "rope_parameters":
                             LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}}),
    ("qwen2.5-yarn", {"head_dim": 128, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
                      "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
    ("demo-yarn", {"head_dim": 32, "max_position_embeddings": 131072,
                   "rope_scaling": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192}}),
    ("yarn-attention-factor-modern", {"max_position_embeddings": 65536, "rope_theta": None, "rope_scaling": None, "rope_parameters":
                                      {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                                       "attention_factor": 1.25, "beta_fast": 24, "beta_slow": 2, "rope_theta": 150000.0}}),
    ("yarn-mscale-exact-range", {"max_position_embeddings": 163840, "rope_scaling":
                                 {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "truncate": False,
                                  "mscale": 0.707, "mscale_all_dim": 1.0}}),
]  # fmt: skip
ROPE_POSITIONS = [1, 8191, 131071]
