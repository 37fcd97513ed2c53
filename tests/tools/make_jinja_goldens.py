#!/usr/bin/env python3
"""Renders templates with jinja2, as transformers sets it up, and writes the goldens in tests/data/jinja.

    make_jinja_goldens.py

cases.json: {"variables": …, "cases": [[template, text], …]}, from jinja_cases.py. renderings.json: {"variables": [… of
each conversation], "texts": {NAME of a file in templates: [text of each conversation]}}. A text is null if jinja2
raises an error. The date is 26 Jul 2024, 00:00:00.
"""

import json
import sys
from datetime import datetime
from pathlib import Path

import jinja2
import transformers
from compare_chat_templates import TOKENS, TOOLS
from jinja_cases import ALL, VARIABLES
from transformers.utils.chat_template_utils import _compile_jinja_template

FOLDER = Path(__file__).resolve().parent.parent / "data/jinja"
MADE_WITH = f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}"

USER = {"role": "user", "content": "Hi"}
CONVERSATIONS = [
    [[USER], {}],
    [[{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "\u00e9\u4e2d\U0001f600 <b>\n"}],
     {"enable_thinking": False, "thinking": False}],
    [[USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."},
      {"role": "user", "content": "And\n\nyou? "}],
     {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}],
    [[{"role": "system", "content": "S"}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], {"tools": TOOLS}],
]


def rendered(template, variables):
    try:
        compiled = _compile_jinja_template(template)
        return compiled.render(**variables, strftime_now=lambda form: datetime(2024, 7, 26).strftime(form))
    except Exception as error:  # any exception of Python is an error of the template
        print(f"{template!r}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def text_of(template, variables):
    text = rendered(template, variables)
    if text is not None and " at 0x" in text:
        sys.exit(f"{template!r} prints an address")
    return text


def write(name, fields):
    """A JSON file with one line per entry of the lists and objects in `fields`."""
    def text(value):
        return json.dumps(value, ensure_ascii=False)

    lines = []
    for field, value in fields.items():
        if isinstance(value, dict):
            body = "{\n" + ",\n".join(f"{text(key)}: {text(entry)}" for key, entry in value.items()) + "\n}"
        else:
            body = "[\n" + ",\n".join(map(text, value)) + "\n]"
        lines.append(f'"{field}": {body}')
    path = FOLDER / name
    path.write_text(f'{{"made_with": "{MADE_WITH}",\n' + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


def main():
    cases = [[template, text_of(template, VARIABLES)] for template in ALL]
    write("cases.json", {"variables": VARIABLES, "cases": cases})
    common = {"tools": None, "documents": None, "add_generation_prompt": True, **TOKENS}
    variables = [{"messages": messages, **common, **extra} for messages, extra in CONVERSATIONS]
    paths = sorted((FOLDER / "templates").glob("*.jinja"))
    texts = {path.stem: [text_of(path.read_text(encoding="utf-8"), chat) for chat in variables] for path in paths}
    write("renderings.json", {"variables": variables, "texts": texts})


if __name__ == "__main__":
    main()
