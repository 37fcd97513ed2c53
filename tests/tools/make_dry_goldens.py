#!/usr/bin/env python3
"""Writes tests/data/dry/goldens.json: logits after llama.cpp's DRY sampler, for contexts of the demo's tokenizer.

Run by hand when a case is added or the demo's tokenizer changes. The result is committed, so that no test needs
llama.cpp:

    pip install llama-cpp-python gguf
    python3 tests/tools/make_dry_goldens.py tests/data/dry

The tokenizer becomes a GGUF file without weights, so breakers are looked for in llama.cpp's own vocabulary.
"""

import argparse
import ctypes
import json
import pathlib
import random
import tempfile

import gguf
import llama_cpp

DEMO = pathlib.Path(__file__).resolve().parents[2] / "jobs" / "demo" / "model"
DEFAULT_BREAKERS = ["\n", ":", '"', "*"]

VERSE = 'The sea, the sea: "the old sea", he said.\nThe sea, the sea: "the old sea", he said.\nThe sea, the'
ROAD = "They went down the road, and down the road, and down the long road, and down the"
STARS = "one * two * one * two * one two one two one two one"

# text or tokens, breakers, multiplier, base, allowed length, window
CASES = [
    *((text, breakers, 0.8, 1.75, 2, 4096) for text in (VERSE, ROAD, STARS)
      for breakers in (DEFAULT_BREAKERS, [], ["sea"], ["the road"], ["wo one"], [", an", " old sea\""])),
    *((ROAD, [], 0.8, 1.75, allowed, 4096) for allowed in (1, 3, 5, 40)),
    *((ROAD, [], 0.8, 1.75, 2, window) for window in (1, 5, 12, 20)),
    *((ROAD, [], multiplier, base, 2, 4096) for multiplier, base in ((2.5, 1.0), (0.1, 3.0), (1.0, 1.1), (5.0, 200.0))),
    ([7] * 60, [], 0.3, 8.0, 1, 4096),
    ([7, 8] * 30, ["zz"], 0.3, 8.0, 1, 50),
    ([5], DEFAULT_BREAKERS, 0.8, 1.75, 2, 4096),
]  # fmt: skip


def random_cases(count):
    """Texts over few tokens, some of which break."""
    numbers = random.Random(1)
    for _ in range(count):
        alphabet = numbers.sample(range(300, 340), numbers.randint(2, 4))
        tokens = [numbers.choice(alphabet) for _ in range(numbers.randint(3, 60))]
        yield (tokens, numbers.choice([[], ["e"], ["an"], ["th", "on"]]), numbers.choice([0.5, 0.8, 2.0]),
               numbers.choice([1.0, 1.2, 1.75, 4.0]), numbers.randint(1, 3), numbers.choice([8, 30, 4096]))  # fmt: skip


def write_vocabulary(path):
    """The demo's tokenizer as GGUF."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    tokens = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, gguf.TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([tokens[number] for number in sorted(tokens)])
    writer.add_token_types([types[number] for number in sorted(tokens)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return len(tokens)


def encode(vocabulary, text):
    data = text.encode()
    buffer = (llama_cpp.llama_token * 512)()
    count = llama_cpp.llama_tokenize(vocabulary, data, len(data), buffer, 512, False, False)
    assert count > 0
    return list(buffer[:count])


def first_logits(size):
    """As tests/engine/dry_test.cpp has them; exact in float."""
    return [(token * 7919 % 1000) / 64 - 8 for token in range(size)]


def penalised(vocabulary, size, case):
    """A case with its tokens, and [token, logit] of each token whose logit changed."""
    text, breakers, multiplier, base, allowed, window = case
    context = encode(vocabulary, text) if isinstance(text, str) else text
    strings = (ctypes.c_char_p * len(breakers))(*(breaker.encode() for breaker in breakers))
    sampler = llama_cpp.llama_sampler_init_dry(
        vocabulary, multiplier, base, allowed, window, strings, len(breakers)
    )
    for token in context:
        llama_cpp.llama_sampler_accept(sampler, token)
    before = first_logits(size)
    candidates = (llama_cpp.llama_token_data * size)()
    for token, logit in enumerate(before):
        candidates[token].id = token
        candidates[token].logit = logit
    array = llama_cpp.llama_token_data_array(data=candidates, size=size, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    llama_cpp.llama_sampler_free(sampler)
    after = {candidates[place].id: candidates[place].logit for place in range(size)}
    changed = [[token, after[token]] for token in range(size) if after[token] != before[token]]
    return {"multiplier": multiplier, "base": base, "allowed_length": allowed, "window": window, "breakers": breakers,
            "context": context, "changed": changed}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocabulary.gguf"
        size = write_vocabulary(path)
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        model = llama_cpp.llama_load_model_from_file(str(path).encode(), parameters)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        assert llama_cpp.llama_vocab_n_tokens(vocabulary) == size
        cases = [penalised(vocabulary, size, case) for case in [*CASES, *random_cases(40)]]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    options.folder.mkdir(exist_ok=True)
    text = f'{{"llama_cpp_python": "{llama_cpp.__version__}", "cases": [\n{lines}\n]}}\n'
    (options.folder / "goldens.json").write_text(text)


if __name__ == "__main__":
    main()
