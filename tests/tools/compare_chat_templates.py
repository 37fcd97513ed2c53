#!/usr/bin/env python3
"""Compares longhaul's chat templates with transformers: the texts and token ids of many conversations. Run by hand.

    compare_chat_templates.py --tokenize BUILD/tests/tokenize MODEL_FOLDER ...

`cmake --build BUILD --target tokenize` builds the program.
Each folder has a tokenizer.json and one of the known chat templates. If a template asks for the date, it gets 26 Jul
2024, the fixed date that longhaul uses. If there are differences, prints the first ones and exits with code 1.
"""

import argparse
import json
import random
import subprocess
import sys

from transformers import PreTrainedTokenizerFast


def conversations(count, seed):
    rng = random.Random(seed)
    words = ["Hi", " there ", "\n", "\t", "caf\u00e9", "\u00a0", "\u2003", "\u001c", "<<SYS>>", "[INST]", "it's", "7",
             "<|eot_id|>", "<|im_end|>", "</s>", "<s>", "{{ x }}", "\u65e5\u672c", "\u200b", "end."]
    text = lambda: "".join(rng.choice(words) for _ in range(rng.randrange(0, 7)))
    result = []
    for _ in range(count):
        turns = [{"role": "user" if i % 2 == 0 else "assistant", "content": text()} for i in range(rng.randrange(1, 6))]
        if rng.random() < 0.5:
            turns.insert(0, {"role": "system", "content": text()})
        result.append(turns)
    return result


def ours(program, folder, chats):
    lines = "".join(json.dumps(chat) + "\n" for chat in chats).encode()
    parts = subprocess.run([program, "chat", folder], input=lines, stdout=subprocess.PIPE, check=True).stdout
    texts = parts.decode().split("\0")[:-1]
    return [(texts[i], [int(word) for word in texts[i + 1].split()]) for i in range(0, len(texts), 2)]


def theirs(folder, chats):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    result = []
    for chat in chats:
        options = {"add_generation_prompt": True, "date_string": "26 Jul 2024"}
        text = tokenizer.apply_chat_template(chat, tokenize=False, **options)
        result.append((text, tokenizer(text, add_special_tokens=False)["input_ids"]))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", required=True, help="the program built from tests/tools/tokenize_main.cpp")
    parser.add_argument("--count", type=int, default=500, help="conversations (500)")
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    wrong = 0
    for folder in options.models:
        chats = conversations(options.count, 1)
        pairs = list(zip(chats, theirs(folder, chats), ours(options.tokenize, folder, chats), strict=True))
        bad = [pair for pair in pairs if pair[1] != pair[2]]
        print(f"{folder}: {len(pairs)} conversations, {len(bad)} differences")
        for chat, expected, found in bad[:3]:
            print("   ", repr(chat), repr(expected), repr(found), sep="\n    ")
        wrong += len(bad)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
