#!/usr/bin/env python3
"""Writes the weights of a Hugging Face folder that has only pytorch_model.bin as safetensors, beside them.

    pip install 'torch>=2.6' safetensors numpy
    jobs/convert_checkpoint.py /models/opt-125m

Types and values stay as they are. A folder of several files and an index becomes one of as many, one of them in memory at a
time. Nothing that a .bin file may carry besides tensors is run or kept. A tied output head is left out, as save_pretrained does.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import re
import sys
import warnings

NEEDED = "pip install 'torch>=2.6' safetensors numpy"
try:
    import numpy  # noqa: F401 (safetensors writes by way of it)
    import torch

    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 6):
        # weights_only=True of older ones runs code out of files in the tar format (CVE-2025-32434).
        sys.exit(f"convert_checkpoint: expected torch>=2.6, older ones may run code of a file; got {torch.__version__}; {NEEDED}")
    import safetensors.torch
except ImportError as error:
    sys.exit(f"convert_checkpoint: expected torch, safetensors and numpy, got {error}; {NEEDED}")

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Integers and booleans: lists of tokens in draft layers (EAGLE-3's d2t and t2d), and masks of attention in GPT-2.
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)
# Tensors that share memory are written out each for itself, so a file may grow, as by a head that is the embedding. One that would
# grow further does not hold weights, and may ask for more memory than there is.
MOST_GROWTH, ALWAYS_FINE = 4, 1 << 20
FETCH_AGAIN = "fetch the whole folder again"
SAVE_AGAIN = "fix the state_dict in Python and torch.save it again"


class Refusal(Exception):
    """One line: what of which file was expected, what was found, and what to do."""


def shown(text):
    """Words out of a file, for a line on a terminal."""
    text = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(text))
    return text if len(text) <= 120 else text[:119] + "…"


def complaint(error):
    """What torch or safetensors found, in one line. Of foreign objects torch says how to run them: not from us."""
    lines = str(error).strip().splitlines()
    telling = isinstance(error, (RuntimeError, OSError, ValueError, safetensors.SafetensorError))
    return shown(lines[0]) if telling and lines and "weights_only" not in str(error) else "something else"


def read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found = error.strerror if isinstance(error, OSError) else shown(error)
        raise Refusal(f"{path}: expected JSON, got {found}; {FETCH_AGAIN}") from error
    if not isinstance(value, dict):
        raise Refusal(f"{path}: expected an object, got {type(value).__name__}; {FETCH_AGAIN}")
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
        raise Refusal(f"{folder}: expected {SINGLE} or {INDEX}, got neither; {FETCH_AGAIN}")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Refusal(f"{folder / INDEX}: weight_map: expected tensors and their files, got none; {FETCH_AGAIN}")
    for file in weight_map.values():
        if not isinstance(file, str) or pathlib.PurePath(file).name != file:
            raise Refusal(f"{folder / INDEX}: weight_map: expected names of files beside it, got {shown(file)!r}; {FETCH_AGAIN}")
        if not (folder / file).is_file():
            raise Refusal(f"{folder / INDEX}: weight_map: expected {shown(file)} beside it, got none; {FETCH_AGAIN}")
    return sorted(set(weight_map.values()))


def load(path):
    """Tensors by name; mapped, not read, where the file is of the kind that torch can map."""
    with open(path, "rb") as file:
        if file.read(30).startswith(b"version https://git-lfs"):
            raise Refusal(
                f"{path}: expected tensors as torch.save writes them, got a Git-LFS pointer; fetch the file itself: git lfs pull"
            )
    for mapped in (True, False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
            break
        except Exception as error:  # noqa: BLE001 (a damaged file may end in any)
            failure = error
    else:
        raise Refusal(f"{path}: expected tensors as torch.save writes them, got {complaint(failure)}; {FETCH_AGAIN}") from failure
    if not isinstance(state, dict) or len(state) == 0:
        raise Refusal(f"{path}: expected tensors by name, got {'none' if state == {} else type(state).__name__}; {FETCH_AGAIN}")
    for name, value in state.items():
        refuse_unfit(f"{path}: {shown(name)}", name, value)
    return state


def refuse_unfit(where, name, value):
    """What safetensors or longhaul cannot hold."""
    if not isinstance(name, str) or not isinstance(value, torch.Tensor):
        raise Refusal(f"{where}: expected a tensor, got {type(value).__name__}; {SAVE_AGAIN}")
    if value.dtype not in DTYPES:
        found = str(value.dtype).removeprefix("torch.")
        raise Refusal(f"{where}: expected bf16, fp16, fp32, int64, int32, uint8 or bool, got {found}; {SAVE_AGAIN}")
    if value.layout != torch.strided:
        raise Refusal(f"{where}: expected a dense tensor, got {value.layout}; {SAVE_AGAIN}")
    if value.device.type != "cpu":
        raise Refusal(f"{where}: expected a tensor with values, got one on the device {value.device}; {SAVE_AGAIN}")


def ties_head(folder):
    config = read_json(folder / "config.json")
    return bool(config.get("tie_word_embeddings", config.get("model_type") in ("opt", "gpt2")))


def without_shared(path, state, tied):
    """What safetensors can hold: every tensor with memory of its own, and no head where it is the embedding."""
    seen, result, total = set(), {}, 0
    most = max(MOST_GROWTH * path.stat().st_size, ALWAYS_FINE)
    for name, tensor in state.items():
        if tied and name == "lm_head.weight":
            print("lm_head.weight is left out: config.json ties it to the embedding")
            continue
        total += math.prod(tensor.shape) * tensor.element_size()
        if total > most:
            raise Refusal(
                f"{path}: {shown(name)}: expected tensors of {most} bytes at most in a file of this size, got {total} with this one, "
                f"as they share memory; {SAVE_AGAIN}"
            )
        try:
            storage = tensor.untyped_storage().data_ptr()
            # A clone would keep the strides of a transposed one.
            result[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in seen else tensor.contiguous()
        except (RuntimeError, MemoryError) as error:
            raise Refusal(f"{path}: {shown(name)}: expected to copy it, got {complaint(error)}; {SAVE_AGAIN}") from error
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
    except Exception as error:  # safetensors has several
        raise Refusal(f"{path}: expected to write it, got {complaint(error)}; make space and convert again") from error
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
    written = []
    try:
        convert_files(folder, files, tied, written)
    except BaseException:
        for path in written:  # parts without an index are no weights, only space
            path.unlink(missing_ok=True)
        raise


def convert_files(folder, files, tied, written):
    targets = {file: f"model-{number:05}-of-{len(files):05}.safetensors" for number, file in enumerate(files, 1)}
    if len(files) == 1:
        targets = {files[0]: "model.safetensors"}
    file_of, total = {}, 0
    for file, target in targets.items():
        tensors = without_shared(folder / file, load(folder / file), tied)
        for name in file_of.keys() & tensors.keys():
            raise Refusal(f"{folder / file}: {shown(name)}: expected in one file, got it also in {file_of[name]}; {FETCH_AGAIN}")
        write_durably(folder / target, functools.partial(safetensors.torch.save_file, tensors, metadata={"format": "pt"}))
        written.append(folder / target)
        file_of |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
        print(f"{target}: {len(tensors)} tensors")
    if len(files) > 1:  # last: without it the folder has no weights yet
        weight_map = {name: targets[file] for name, file in file_of.items()}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_durably(folder / "model.safetensors.index.json", lambda path: path.write_text(json.dumps(index, indent=2) + "\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="with config.json and pytorch_model.bin, or its parts and index")
    try:
        convert(parser.parse_args().folder)
    except (Refusal, OSError) as error:
        sys.exit(f"convert_checkpoint: {error}")


if __name__ == "__main__":
    main()
