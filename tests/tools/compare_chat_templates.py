#!/usr/bin/env python3
"""Compares longhaul's chat templates with transformers over many conversations. Run by hand.

    compare_chat_templates.py --tokenize BUILD/tests/tokenize PLACE ...

`cmake --build BUILD --target tokenize` builds the program. A PLACE is a .jinja file, a folder of them (searched
recursively), whose texts are compared, or a model folder with tokenizer.json and a chat template, where the token ids
are compared too. The date is 26 Jul 2024, longhaul's default. If both sides refuse a conversation, that counts as the
same. If there are differences, prints the first ones and exits with code 1.

--hashes prints the XXH3-64 of the templates that render chats as a built-in one does (table published_templates in
engine/tokenizer/chat_template.cpp); needs the package xxhash.

Many published templates are in the source packages of llama-cpp-python (vendor/llama.cpp/models/templates), trl
(trl/chat_templates) and vllm (examples): pip download --no-deps --no-binary :all: NAME
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Current <weather> & \"more\".",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "A city"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days"}}}}}]
VARIABLES = [{}, {}, {"tools": TOOLS}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True},
             {"date_string": "x"}, {"reasoning_effort": "low"}, {"add_vision_id": True},
             {"custom_instructions": "Be kind."}]
BUILT_IN = Path(__file__).resolve().parents[2] / "engine/tokenizer/chat_templates"


def conversations(count, seed, parts):
    """(messages, variables): roles in many orders, texts that templates treat specially."""
    rng = random.Random(seed)
    words = ["Hi", " there ", "\n", "\t", "caf\u00e9", "\u00a0", "\u2003", "\u001c", "<<SYS>>", "[INST]", "it's", "7",
             "\n\n", "<|eot_id|>", "<|im_end|>", "</s>", "<s>", "{{ x }}", "\u65e5\u672c", "\u200b", "end.",
             "<think>\nhm\n</think>\n\n", "</think>", "<think>",
             "/no_think", "/think", "<tool_response>", "\\n", "\"q\"", "\U0001f600"]

    def text():
        return "".join(rng.choice(words) for _ in range(rng.randrange(0, 7)))

    result = []
    for i in range(count):
        turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text()} for i in range(rng.randrange(1, 6))]
        if rng.random() < 0.5:
            turns.insert(0, {"role": "system", "content": text()})
        if parts and rng.random() < 0.1:
            turns[rng.randrange(len(turns))]["role"] = rng.choice(["tool", "developer", "system", "robot"])
        if parts and rng.random() < 0.1:
            turn = rng.choice(turns)
            turn["content"] = [{"type": "text", "text": text()} for _ in range(rng.randrange(1, 3))]
        result.append((turns, VARIABLES[i % len(VARIABLES)] if parts else {}))
    return result


def rendered(template, chat, tokens=TOKENS):
    """The text of transformers, or None for an error."""
    messages, variables = chat
    try:
        return _compile_jinja_template(template).render({
            "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, **tokens,
            **variables, "strftime_now": lambda form: datetime(2024, 7, 26).strftime(form)})
    except Exception:  # a template may fail with any exception of Python
        return None


def ours(program, mode, folder, lines):
    parts = subprocess.run([program, mode, folder], input="".join(line + "\n" for line in lines).encode(),
                           stdout=subprocess.PIPE, check=True).stdout
    return parts.decode().split("\0")[:-1]


def compare_template(program, path, count):
    """Pairs of conversation, their text and ours; for an error their text is None and ours begins with \\x01."""
    template = path.read_text(encoding="utf-8")
    chats = conversations(count, 1, True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "chat_template.jinja").write_text(template, encoding="utf-8")
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(TOKENS))
        lines = [json.dumps({"messages": messages,
                             "variables": [f"{name}={json.dumps(value)}" for name, value in variables.items()]})
                 for messages, variables in chats]
        texts = ours(program, "render", folder, lines)
    return list(zip(chats, [rendered(template, chat) for chat in chats], texts, strict=True))


def differ(expected, found):
    return found != expected if expected is not None else not found.startswith("\x01")


def compare_model(program, folder, count):
    chats = conversations(count, 1, False)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    parts = ours(program, "chat", folder, [json.dumps(messages) for messages, _ in chats])
    result = []
    for i, (messages, _) in enumerate(chats):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True,
                                             date_string="26 Jul 2024")
        ids = " ".join(map(str, tokenizer(text, add_special_tokens=False)["input_ids"]))
        result.append((messages, text + "\n" + ids, parts[2 * i] + "\n" + parts[2 * i + 1]))
    return result


def print_hashes(paths):
    import xxhash
    chats = [(messages, {}) for messages, _ in conversations(300, 2, False)]
    for name in ["llama2", "llama3", "llama3.1", "qwen2.5"]:
        built_in = (BUILT_IN / f"{name}.jinja").read_text()
        tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        expected = [rendered(built_in, chat, tokens) for chat in chats]
        for path in paths:
            template = path.read_text(encoding="utf-8")
            if [rendered(template, chat, tokens) for chat in chats] == expected:
                print(f'{{0x{xxhash.xxh3_64_hexdigest(template.rstrip().encode())}, "{name}"}},  // {path}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", help="the program built from tests/tools/tokenize_main.cpp")
    parser.add_argument("--count", type=int, default=200, help="conversations (200)")
    parser.add_argument("--hashes", action="store_true")
    parser.add_argument("places", nargs="+", type=Path)
    options = parser.parse_args()
    models = [place for place in options.places if (place / "tokenizer.json").exists()]
    paths = [path for place in options.places if place not in models
             for path in (sorted(place.rglob("*.jinja")) if place.is_dir() else [place])]
    if options.hashes:
        return print_hashes(paths)
    wrong = 0
    for place in models + paths:
        compare = compare_model if place in models else compare_template
        pairs = compare(options.tokenize, place, options.count)
        bad = [pair for pair in pairs if differ(*pair[1:])]
        refused = sum(pair[1] is None for pair in pairs)
        print(f"{place}: {len(pairs)} conversations, {refused} refused by both or one, {len(bad)} differences")
        for chat, expected, found in bad[:2]:
            print("   ", repr(chat), repr(expected), repr(found), sep="\n    ")
        wrong += len(bad)
    print(f"{len(models)} models, {len(paths)} templates, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
