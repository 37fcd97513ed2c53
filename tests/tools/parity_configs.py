"""What the config.json of each family in tests/data/parity has beside SMALL, for parity_models.py. An entry that is None
is removed, one that is NULL is null.
"""

NULL = "null"
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Small, but head_dim is not hidden_size / heads, and no width is a multiple of a vector register.
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

EIGHT_HEADS = {
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": None,
    "tie_word_embeddings": False,
}
YARN = {
    "max_position_embeddings": 128,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}

# 8 heads, so that every tensor-parallel degree runs; few positions, because their table is part of the file.
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "num_attention_heads": 8,
    "ffn_dim": 40,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 32,
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "dropout": 0.1,
    "layerdrop": 0.0,
    "init_std": 0.02,
    "bos_token_id": 2,
    "pad_token_id": 1,
    "prefix": "</s>",
} | dict.fromkeys(["num_key_value_heads", "head_dim", "hidden_act", "intermediate_size", "rms_norm_eps", "rope_theta",
                   "rope_scaling", "tie_word_embeddings"])  # fmt: skip

# Windows that begin in a chunk of attention, at its end and before it; texts beyond 4,096 tokens.
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
         "attention_bias": False, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}  # fmt: skip
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 8192,
           "tie_word_embeddings": False}  # fmt: skip
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
          "hidden_act": None, "intermediate_size": 24, "num_hidden_layers": 4, "max_position_embeddings": 8192,
          "rms_norm_eps": 1e-06, "query_pre_attn_scalar": 24, "sliding_window": 48, "sliding_window_pattern": 3,
          "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 0.75, "pad_token_id": 0,
        "hidden_size": 64, "head_dim": None, "intermediate_size": 40,
        "sliding_window": None, "max_position_embeddings": 256, "original_max_position_embeddings": 64, "rope_scaling":
        {"type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.0, 1.5, 2.0, 3.0, 4.5, 6.0]}}  # fmt: skip

# Mixture of experts: 8 heads, so that every tensor-parallel degree runs, and a layer without experts.
QWEN3_MOE = QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_attention_heads": 8,
                     "num_key_value_heads": 4, "head_dim": 8, "num_hidden_layers": 3, "num_experts": 5,
                     "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": True,
                     "decoder_sparse_step": 1, "mlp_only_layers": [1], "tie_word_embeddings": False}  # fmt: skip
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": None, "intermediate_size": 24, "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False}  # fmt: skip
# Gates far beyond the activation's limit of 7; rows of three blocks of MXFP4.
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 96, "intermediate_size": 32,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": 40, "tie_word_embeddings": False, "attention_bias": True,
           "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0, "rope_theta": 150000,
           "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 32,
                            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}  # fmt: skip
# A shared expert, as wide as two others, and a layer without experts. Half of each head is rotated.
GLM4_MOE = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 8, "num_hidden_layers": 3, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_shared_experts": 2, "first_k_dense_replace": 1,
            "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "use_qk_norm": True,
            "attention_bias": True, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1,
            "tie_word_embeddings": False}  # fmt: skip

# Layers 2 and 4 without rotation.
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 4, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": None, "no_rope_layer_interval": 2, "no_rope_layers": [1, 0, 1, 0],
           "rope_theta": 5000000.0, "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
           "pad_token_id": 0}  # fmt: skip
# The queries of every 48 positions have a factor of their own.
MINISTRAL3 = {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 8, "sliding_window": None, "tie_word_embeddings": False, "rope_theta": None,
              "rope_parameters": {"rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                                  "original_max_position_embeddings": 48, "beta_fast": 32.0, "beta_slow": 1.0,
                                  "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}}  # fmt: skip
SEED_OSS = {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_bias": True, "attention_out_bias": False,
            "mlp_bias": False, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
            "tie_word_embeddings": False}  # fmt: skip
# Half of each head is rotated, in pairs that stand side by side.
GLM4 = {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "num_attention_heads": 8, "head_dim": 8,
        "rms_norm_eps": 1.5625e-07, "attention_bias": True, "partial_rotary_factor": 0.5, "pad_token_id": 0,
        "tie_word_embeddings": False}  # fmt: skip
# Norms over all heads of q, and over all of k. Layers with a window are rotated without yarn.
OLMO2 = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": None, "pad_token_id": 0, "attention_bias": False, "tie_word_embeddings": False}  # fmt: skip
OLMO3 = OLMO2 | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 3, "rope_theta": 500000,
                 "sliding_window": 40, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                 "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128,
                                  "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0}}  # fmt: skip
MINIMAX_M2 = {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_attention_heads": 8, "head_dim": 8,
              "intermediate_size": 20, "num_local_experts": 6, "num_experts_per_tok": 3, "rotary_dim": 4, "rope_theta": 5000000,
              "use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid", "use_routing_bias": True,
              "shared_intermediate_size": 0, "tie_word_embeddings": False}  # fmt: skip
# Factors that are no powers of two.
GRANITE = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "num_attention_heads": 8, "num_key_value_heads": 4,
           "head_dim": 8, "attention_bias": False, "mlp_bias": False, "embedding_multiplier": 12.0, "logits_scaling": 3.0,
           "residual_multiplier": 0.22, "attention_multiplier": 0.2}  # fmt: skip
# Latent attention. A row has three experts of the two best groups of three. Values are wider than keys.
DEEPSEEK_V3 = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_attention_heads": 8,
               "num_key_value_heads": 8, "head_dim": None, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
               "qk_rope_head_dim": 16, "v_head_dim": 32, "num_hidden_layers": 2, "first_k_dense_replace": 1,
               "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "n_shared_experts": 1,
               "n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
               "topk_method": "noaux_tc", "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "attention_bias": False,
               "tie_word_embeddings": False, "rope_theta": 10000.0, "max_position_embeddings": 2048,
               "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 32,
                                "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}  # fmt: skip
FOUR_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
DEEPSEEK_V2 = DEEPSEEK_V3 | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_shared_experts": 2,
                             "routed_scaling_factor": 16.0, "norm_topk_prob": False, "scoring_func": "softmax",
                             "topk_method": "group_limited_greedy", "num_hidden_layers": 2}  # fmt: skip
# Linear attention in two of three layers, with two value heads for each key head; states that last for many positions.
QWEN3_5 = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 3,
           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-06,
           "partial_rotary_factor": 0.25, "full_attention_interval": 2,
           "layer_types": ["linear_attention", "full_attention", "linear_attention"],
           "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 16,
           "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "max_position_embeddings": 8192, "tie_word_embeddings": False}  # fmt: skip
# The same with experts, and a shared one with a gate; in Qwen3-Next, projections that stand side by side.
QWEN3_5_MOE = QWEN3_5 | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
                         "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
                         "intermediate_size": None, "num_attention_heads": 4, "num_key_value_heads": 2,
                         "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 5, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}  # fmt: skip
QWEN3_NEXT = QWEN3_5_MOE | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "layer_types": None,
                            "num_hidden_layers": 3, "intermediate_size": 24, "linear_num_value_heads": 12,
                            "mlp_only_layers": [2], "decoder_sparse_step": 1, "norm_topk_prob": True,
                            "num_experts_per_tok": 3}  # fmt: skip
QWEN2_MOE = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "head_dim": None, "num_attention_heads": 8,
             "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "use_sliding_window": False, "sliding_window": 1024,
             "max_window_layers": 2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
             "shared_expert_intermediate_size": 40, "norm_topk_prob": False, "decoder_sparse_step": 1}  # fmt: skip
GLM4_MOE_LITE = DEEPSEEK_V3 | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "scoring_func": None,
                               "num_hidden_layers": 2, "n_group": 1, "topk_group": 1, "rope_scaling": None,
                               "qk_nope_head_dim": 32, "v_head_dim": 16}  # fmt: skip
# Two kinds of layers with heads of their own; in the full ones, keys are values, and an eighth of a head is rotated.
GEMMA4 = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
          "hidden_act": None, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 2,
          "attention_k_eq_v": True, "rms_norm_eps": 1e-06, "sliding_window": 40, "rope_theta": None,
          "max_position_embeddings": 8192,
          "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 6.0,
          "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False,
          "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                              "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0,
                                                 "partial_rotary_factor": 0.25}}}  # fmt: skip
GEMMA4_MOE = GEMMA4 | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12,
                       "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
# As E2B: embeddings per layer, of a width whose root is rounded, and two layers that attend to the keys of the others.
GEMMA4_E2B = GEMMA4 | {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 2,
                       "use_double_wide_mlp": True, "final_logit_softcapping": 10.0, "attention_k_eq_v": False,
                       "num_global_key_value_heads": None, "num_key_value_heads": 2, "tie_word_embeddings": False}  # fmt: skip

# GLM-4 without norms on the outputs of blocks.
GLM = GLM4 | {"architectures": ["GlmForCausalLM"], "model_type": "glm", "intermediate_size": 24}
# Norms on the heads of q and k and on the outputs of blocks; only layers with a window are rotated.
EXAONE4 = {"architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "num_hidden_layers": 3, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": 4, "intermediate_size": 24, "sliding_window": 40, "sliding_window_pattern": "LLG",
           "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_theta": 1000000,
           "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 128}}  # fmt: skip
EXAONE_MOE = EXAONE4 | {"architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "head_dim": 4, "num_experts": 5,
                        "num_experts_per_tok": 3, "num_shared_experts": 1, "moe_intermediate_size": 8, "n_group": 1,
                        "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
                        "first_k_dense_replace": 1, "is_moe_layer": [False, True, True], "mlp_layer_types": ["dense", "sparse", "sparse"],
                        "rope_scaling": None, "tie_word_embeddings": False, "num_nextn_predict_layers": 1}  # fmt: skip
ERNIE = {"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 4, "intermediate_size": 24, "rope_theta": 500000, "use_bias": True}  # fmt: skip
# Experts are chosen by their share of a softmax plus a correction.
ERNIE_MOE = ERNIE | {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "head_dim": None,
                     "moe_num_experts": 6, "moe_k": 3, "moe_num_shared_experts": 2, "moe_intermediate_size": 8,
                     "moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 2, "num_hidden_layers": 3,
                     "use_bias": False}  # fmt: skip
# Attention alone; factors that are no powers of two.
GRANITE4 = GRANITE | {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "num_local_experts": 0,
                      "num_experts_per_tok": 0, "shared_intermediate_size": 24, "intermediate_size": 24, "head_dim": None,
                      "position_embedding_type": "rope", "layer_types": ["attention", "attention"], "mamba_n_heads": 8}  # fmt: skip
# Mamba-2 in two of three layers: a group whose keys and queries are those of all heads.
GRANITE4_H = GRANITE4 | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 8, "num_hidden_layers": 3,
                         "position_embedding_type": "nope", "layer_types": ["mamba", "attention", "mamba"],
                         "mamba_n_groups": 1, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 4,
                         "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_chunk_size": 256,
                         "max_position_embeddings": 8192, "normalization_function": "rmsnorm"}  # fmt: skip
GRANITE_MOE = GRANITE | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "num_local_experts": 6,
                         "num_experts_per_tok": 3, "intermediate_size": 12, "head_dim": None}  # fmt: skip
OLMOE = OLMO2 | {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 5, "num_experts_per_tok": 3,
                 "intermediate_size": 12, "norm_topk_prob": False, "clip_qkv": NULL, "num_hidden_layers": 2}  # fmt: skip
DOTS1 = {"architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "num_attention_heads": 8, "num_key_value_heads": 8,
         "head_dim": 4, "n_routed_experts": 5, "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 8,
         "intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
         "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": NULL, "max_window_layers": 2,
         "tie_word_embeddings": False}  # fmt: skip
SOLAR_OPEN = {"architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open", "num_attention_heads": 8,
              "num_key_value_heads": 4, "head_dim": 4, "n_routed_experts": 5, "num_experts_per_tok": 3, "n_shared_experts": 1,
              "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
              "partial_rotary_factor": 1.0, "use_qk_norm": False, "first_k_dense_replace": 0, "attention_bias": False,
              "rope_theta": 1000000, "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512},
              "tie_word_embeddings": False}  # fmt: skip
HY_V3 = {"architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 4, "intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 3, "num_shared_experts": 1,
         "moe_intermediate_size": 8, "router_scaling_factor": 2.8, "tie_word_embeddings": False}  # fmt: skip
# With a tower for images. Their positions have three parts, which are equal in a text.
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "in_channels": 1, "patch_size": 2,
          "spatial_merge_size": 1, "temporal_patch_size": 1, "out_hidden_size": 32}  # fmt: skip
QWEN2_VL = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "head_dim": None,
            "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 24, "use_sliding_window": False,
            "sliding_window": 32768, "max_window_layers": 2, "rope_theta": 1000000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}, "vision_config": VISION}  # fmt: skip
QWEN3_VL_TEXT = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 24, "rope_theta": 5000000,
                 "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}}  # fmt: skip
QWEN3_VL_TOWER = VISION | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]}
QWEN3_VL = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
            "text_config": QWEN3_VL_TEXT, "vision_config": QWEN3_VL_TOWER}  # fmt: skip
QWEN3_VL_MOE = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
                "text_config": QWEN3_VL_TEXT | {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 8,
                                                "mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True},
                "vision_config": QWEN3_VL_TOWER, "tie_word_embeddings": False}  # fmt: skip

ARCEE = {"architectures": ["ArceeForCausalLM"], "model_type": "arcee", "hidden_act": "relu2", "num_attention_heads": 8,
         "rope_scaling": YARN["rope_scaling"], "max_position_embeddings": 128, "head_dim": 8}  # fmt: skip
AFMOE = {
    "architectures": ["AfmoeForCausalLM"],
    "model_type": "afmoe",
    "num_attention_heads": 8,
    "head_dim": 8,
    "global_attn_every_n_layers": 2,
    "sliding_window": 20,
    "num_dense_layers": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 20,
    "route_scale": 2.826,
    "mup_enabled": True,
    "tie_word_embeddings": False,
}
YOUTU = {
    "architectures": ["YoutuForCausalLM"],
    "model_type": "youtu",
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": None,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
COHERE = {
    "architectures": ["CohereForCausalLM"],
    "model_type": "cohere",
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "head_dim": None,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.5,
    "attention_bias": True,
}
COHERE2 = COHERE | {
    "attention_bias": False,
    "architectures": ["Cohere2ForCausalLM"],
    "model_type": "cohere2",
    "num_hidden_layers": 2,
    "sliding_window": 20,
    "sliding_window_pattern": 2,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 400,
    "layer_norm_epsilon": 1e-4,
} | dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                   "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta"))  # fmt: skip
EXAONE = {
    "architectures": ["ExaoneForCausalLM"],
    "model_type": "exaone",
    "num_hidden_layers": None,
    "num_layers": 1,
    "rms_norm_eps": None,
    "layer_norm_epsilon": 1e-4,
    "hidden_act": None,
    "activation_function": "silu",
    "head_dim": None,
    "tie_word_embeddings": False,
}
CWM = {
    "architectures": ["CwmForCausalLM"],
    "model_type": "cwm",
    "sliding_window": 20,
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64},
    "tie_word_embeddings": False,
}
GPT_NEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "gelu",
    "rotary_pct": 0.5,
    "rotary_emb_base": 5000,
    "rope_theta": None,
    "layer_norm_eps": 1e-4,
    "tie_word_embeddings": False,
}
PHI = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "head_dim": None,
    "hidden_act": "gelu_new",
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
    "vocab_size": 97,
}
STARCODER2 = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "num_attention_heads": 8,
    "head_dim": None,
    "hidden_act": "gelu_pytorch_tanh",
    "norm_epsilon": 1e-4,
    "sliding_window": 20,
}
STABLELM = {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "head_dim": None,
    "num_hidden_layers": 1,
    "use_qkv_bias": True,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
}
NEMOTRON = {
    "architectures": ["NemotronForCausalLM"],
    "model_type": "nemotron",
    "hidden_act": "relu2",
    "norm_eps": 1e-4,
    "partial_rotary_factor": 0.5,
    "num_hidden_layers": 1,
    "tie_word_embeddings": False,
}
GEMMA = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu", "num_hidden_layers": 1}
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_act": None,
    "num_attention_heads": 8,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "sliding_window": 20,
    "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 20.0,
}
# time_step_min: transformers limits the steps of whole texts by it, but not those of single tokens.
NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MM-*-",
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "intermediate_size": 40,
    "tie_word_embeddings": False,
    "mlp_hidden_act": "relu2",
    "hidden_act": None,
    "layer_norm_epsilon": 1e-5,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 4,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "time_step_min": 1e-30,
    "time_step_limit": [0.0, float("inf")],
}
NEMOTRON3 = NEMOTRON_H | {
    "hybrid_override_pattern": "MEM*E",
    "num_attention_heads": 4,
    "mamba_num_heads": 4,
    "n_groups": 2,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
