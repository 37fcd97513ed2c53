#!/usr/bin/env python3
"""Writes a model folder for longhaul from a GGUF file, as llama.cpp, Ollama and LM Studio have them.

    pip install 'torch>=2.6' 'transformers>=5.24' accelerate gguf
    jobs/convert_gguf.py Qwen3-8B-Q4_K_M.gguf /models/Qwen3-8B

Weights become the values that the file's blocks stand for, rounded to bf16: two bytes each, whatever the file has. transformers reads
the file, and knows which architectures it can; a weight that it did not find, or did not use, is an error. The folder is written
under another name and gets its own at the end.
"""

import argparse
import json
import math
import pathlib
import re
import shutil
import sys

NEEDED = "pip install 'torch>=2.6' 'transformers>=5.24' accelerate gguf"
try:
    import accelerate  # noqa: F401 (transformers reads GGUF by way of it)
    import gguf
    import torch
    import transformers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS  # not in older ones
except ImportError as error:
    sys.exit(f"convert_gguf: expected torch, transformers, accelerate and gguf, got {error}; {NEEDED}")

MAGIC = b"GGUF"
FETCH = "fetch the Hugging Face folder of the model instead"
# Tensors of a file that are no weights: what positions are divided by, per pair of a head's elements.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class Refusal(Exception):
    """One line: what of which file was expected, what was found, and what to do."""


def one_line(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def check_source(source, folder):
    if not source.is_file():
        raise Refusal(f"{source}: expected a GGUF file, got {'a folder' if source.is_dir() else 'nothing of that name'}")
    with source.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Refusal(f"{source}: expected a GGUF file, got another; it begins with other bytes")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", source.name):
        raise Refusal(f"{source}: expected a whole file, got one of several; llama-gguf-split --merge joins them")
    if folder.exists():
        raise Refusal(f"{folder}: expected the name of a new folder, got one that exists; remove it, or give another name")


def read(source):
    try:
        return gguf.GGUFReader(source)
    except Exception as error:  # of a damaged file: anything
        raise Refusal(f"{source}: expected a readable GGUF file, got {one_line(error)}") from error


def value_of(reader, key):
    field = reader.get_field(key)
    return field.contents() if field is not None else None


def check_tokenizer(reader, source):
    """transformers splits texts before byte-level BPE as GPT-2 did, where it does not know how the file wants it."""
    pre = value_of(reader, "tokenizer.ggml.pre")
    if value_of(reader, "tokenizer.ggml.model") == "gpt2" and pre != "gpt-2" and pre not in GGUF_PRE_TOKENIZER_SPLITS:
        raise Refusal(f"{source}: tokenizer.ggml.pre: expected a way to split texts that transformers knows, got {pre}; {FETCH}")


def drop_foreign_tokens(path, count):
    """Of a tokenizer.json the added tokens beyond the file's `count`: GPT-2's, which transformers gives to all."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < count]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), encoding="utf-8")


def llama3_scaling(factors, config, source):
    """The parameters of Llama 3.1's scaling, of which the file has only what it comes to, and transformers reads nothing."""
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}
    theta = config.rope_parameters["rope_theta"]
    size = 2 * len(factors)
    for place, factor in enumerate(factors):
        waves = scaling["original_max_position_embeddings"] * theta ** (-2 * place / size) / (2 * math.pi)
        part = min(max((waves - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"]), 0), 1)
        expected = 1 / ((1 - part) / scaling["factor"] + part)
        if abs(factor - expected) > 1e-3 * expected:
            raise Refusal(f"{source}: rope_freqs.weight: expected the scaling of Llama 3.1 to 3.3, got another; {FETCH}")
    return {**config.rope_parameters, **scaling}


def restore_rope(config, reader, source):
    factors = {tensor.name: tensor.data.astype("float64") for tensor in reader.tensors if tensor.name in ROPE_FACTORS}
    known = factors.pop("rope_freqs.weight", None)
    if factors:
        raise Refusal(f"{source}: expected no {next(iter(factors))} (longrope), got one, which transformers does not read; {FETCH}")
    if known is not None:
        config.rope_parameters = llama3_scaling(known, config, source)


def load(source, reader):
    """The tokenizer, and the model with all its weights."""
    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name, "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(**place)
        restore_rope(config, reader, source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            **place, config=config, dtype=torch.bfloat16, output_loading_info=True)
    except Refusal:
        raise
    except Exception as error:  # transformers raises what its readers come upon
        raise Refusal(f"{source}: expected a model that transformers {transformers.__version__} reads, got {one_line(error)}; {FETCH}") from error
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(str(name) for name in set(report.get(problem, ())) - tied)
        if names:
            raise Refusal(f"{source}: {problem.replace('_keys', '')} weights: expected none, got {len(names)}, among them {names[0]}; {FETCH}")
    make_plain(model, source)
    return tokenizer, model


def make_plain(model, source):
    """Takes away that the model came from GGUF, which transformers would not write: its weights are already plain ones."""
    others = sorted(name for name, weight in model.named_parameters() if weight.dtype != torch.bfloat16)
    if others:
        raise Refusal(f"{source}: {others[0]}: expected bf16 from transformers, got {model.get_parameter(others[0]).dtype}; {FETCH}")
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def convert(source, folder):
    check_source(source, folder)
    reader = read(source)
    check_tokenizer(reader, source)
    tokenizer, model = load(source, reader)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if not (partial / "tokenizer.json").exists():
            raise Refusal(f"{source}: expected a tokenizer that transformers writes as tokenizer.json, got another; {FETCH}")
        drop_foreign_tokens(partial / "tokenizer.json", len(value_of(reader, "tokenizer.ggml.tokens")))
        partial.rename(folder)
    except OSError as error:
        raise Refusal(f"{folder}: {error.strerror or one_line(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(f"{folder}: {model.config.architectures[0] if model.config.architectures else type(model).__name__}, {weights / 1e9:.1f} GB of weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, metavar="FILE.gguf")
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="the new model folder")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        convert(arguments.source, arguments.folder)
    except Refusal as refusal:
        sys.exit(f"convert_gguf: {refusal}")


if __name__ == "__main__":
    main()
