#!/usr/bin/env python3
"""Writes the weights of a Hugging Face folder that has only pytorch_model.bin as safetensors, beside them.

    pip install torch safetensors
    jobs/convert_checkpoint.py /models/opt-125m

Types and values stay as they are. A folder of several files and an index becomes one of as many, one of them in memory at a
time. Nothing that a .bin file may carry besides tensors is run or kept. A tied output head is left out, as save_pretrained does.
"""

import argparse
import json
import os
import pathlib
import pickle
import sys

import safetensors.torch
import torch

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Refusal(Exception):
    """One line: what of which file was expected, and what was found."""


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Refusal(f"{path}: expected JSON, got {str(error).splitlines()[0]}") from error
    if not isinstance(value, dict):
        raise Refusal(f"{path}: expected an object, got {type(value).__name__}")
    return value


def source_files(folder):
    """Names of the .bin files, in order."""
    if not folder.is_dir():
        raise Refusal(f"{folder}: expected a model folder, got {'a file' if folder.exists() else 'nothing of that name'}")
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if (folder / name).exists():
            raise Refusal(f"{folder}: expected no safetensors yet, got {name}; nothing is left to do")
    if (folder / SINGLE).exists():
        return [SINGLE]
    if not (folder / INDEX).exists():
        raise Refusal(f"{folder}: expected {SINGLE} or {INDEX}, got neither")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Refusal(f"{folder / INDEX}: weight_map: expected tensors and their files, got none")
    for file in weight_map.values():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file:
            raise Refusal(f"{folder / INDEX}: weight_map: expected names of files beside it, got {file!r}")
        if not (folder / file).is_file():
            raise Refusal(f"{folder / INDEX}: weight_map: expected {file} beside it, got no such file; fetch the whole folder again")
    return sorted(set(weight_map.values()))


def load(path):
    """Tensors by name; mapped, not read, where the file is of the kind that torch can map."""
    with open(path, "rb") as file:
        if file.read(30).startswith(b"version https://git-lfs"):
            raise Refusal(f"{path}: expected tensors as torch saves them, got a Git-LFS pointer; fetch the file itself: git lfs pull")
    for mapped in (True, False):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
            break
        except (pickle.UnpicklingError, EOFError, RuntimeError, ValueError, OSError) as error:
            failure = error
    else:
        # What torch says of a foreign object ends in advice to run whatever it holds.
        foreign = isinstance(failure, pickle.UnpicklingError) or not str(failure)
        found = "something else" if foreign else str(failure).splitlines()[0]
        raise Refusal(f"{path}: expected tensors as torch saves them, got {found}") from failure
    if not isinstance(state, dict) or len(state) == 0:
        raise Refusal(f"{path}: expected tensors by name, got {'none' if state == {} else type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise Refusal(f"{path}: {name}: expected a tensor, got {type(value).__name__}")
        if value.dtype not in DTYPES:
            raise Refusal(f"{path}: {name}: expected bf16, fp16 or fp32, got {str(value.dtype).removeprefix('torch.')}")
        if value.layout != torch.strided:
            raise Refusal(f"{path}: {name}: expected a dense tensor, got {value.layout}")
    return state


def ties_head(folder):
    config = read_json(folder / "config.json")
    return bool(config.get("tie_word_embeddings", config.get("model_type") == "opt"))


def without_shared(state, tied):
    """What safetensors can hold: every tensor with memory of its own, and no head where it is the embedding."""
    seen, result = set(), {}
    for name, tensor in state.items():
        if tied and name == "lm_head.weight":
            print("lm_head.weight is left out: config.json ties it to the embedding")
            continue
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if storage in seen else tensor.contiguous()
        seen.add(storage)
    return result


def write_durably(path, write):
    """The file appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # safetensors makes files for their owner alone
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def convert(folder):
    files = source_files(folder)
    tied = ties_head(folder)
    weight_map, total = {}, 0
    for number, file in enumerate(files, 1):
        tensors = without_shared(load(folder / file), tied)
        for name in weight_map.keys() & tensors.keys():
            raise Refusal(f"{folder / file}: {name}: expected every tensor in one file, got it also in {weight_map[name]}")
        target = "model.safetensors" if len(files) == 1 else f"model-{number:05}-of-{len(files):05}.safetensors"
        write_durably(folder / target, lambda path: safetensors.torch.save_file(tensors, path, metadata={"format": "pt"}))
        weight_map |= dict.fromkeys(tensors, target)
        total += sum(tensor.nbytes for tensor in tensors.values())
        print(f"{target}: {len(tensors)} tensors")
    if len(files) > 1:  # last: without it the folder has no weights yet
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_durably(folder / "model.safetensors.index.json", lambda path: path.write_text(json.dumps(index, indent=2) + "\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="with config.json and pytorch_model.bin, or its parts and index")
    try:
        convert(parser.parse_args().folder)
    except (Refusal, OSError, safetensors.SafetensorError) as error:
        sys.exit(f"convert_checkpoint: {error}")


if __name__ == "__main__":
    main()
