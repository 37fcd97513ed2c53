"""Writes a training state as a Hugging Face folder in bf16.

python export.py --state STATE/long.pt --out MODEL
The tokenizer files are already in MODEL (tokenizer.py), or in another folder, --tokenizer. --config-only writes the configuration without weights.
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import Config


def hf_config(c, bos, eos):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": c.rope_factor,
            "original_max_position_embeddings": c.original_max_position_embeddings,
        },
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": c.vocab_size,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state")
    parser.add_argument("--out", required=True)
    parser.add_argument("--tokenizer", help="folder with tokenizer.json, where out has none")
    parser.add_argument("--config-only", action="store_true")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.tokenizer or out) / "tokenizer.json"))
    bos, eos = tokenizer.token_to_id("<|begin_of_text|>"), tokenizer.token_to_id("<|end_of_text|>")
    saved = None if args.config_only else torch.load(args.state, weights_only=False)
    config = Config(**saved["config"]) if saved else Config(vocab_size=tokenizer.get_vocab_size())
    generation = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": True, "temperature": 1.0}
    (out / "config.json").write_text(json.dumps(hf_config(config, bos, eos), indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    if saved:
        # Tied embeddings: the head is not stored a second time.
        weights = {f"model.{name}": p.to(torch.bfloat16).contiguous() for name, p in saved["model"].items()}
        save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
        print(f"{sum(p.numel() for p in weights.values())} parameters in {out / 'model.safetensors'}")


if __name__ == "__main__":
    main()
