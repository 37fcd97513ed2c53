#!/usr/bin/env python3
"""Writes the tables of tests/data/tables: a dataset as the Hugging Face Hub has it (Parquet files of two splits), and one
as `datasets` saves it (an Arrow IPC stream, state.json, a cache file beside it). Needs pyarrow.

usage: make_tables.py FOLDER
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CHAT = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
SCHEMA = pa.schema([
    ("id", pa.string()), ("question", pa.string()), ("messages", CHAT), ("document", pa.large_string()),
    ("summary", pa.string()), ("translation", pa.struct([("de", pa.string()), ("en", pa.string())])),
    ("length", pa.int32()), ("kind", pa.dictionary(pa.int8(), pa.string())),
    ("options", pa.struct([("temperature", pa.float64()), ("max-tokens", pa.int64())])), ("when", pa.timestamp("s")),
])  # fmt: skip


def row(number):
    return {
        "id": f"row-{number}", "question": f"Question {number}?",
        "messages": [{"role": "user", "content": f"Hello {number}"}], "document": f"Document {number}.",
        "summary": f"Summary {number}.", "translation": {"de": f"Satz {number}.", "en": f"Sentence {number}."},
        "length": 1000 * number, "kind": ["tale", "report"][number % 2],
        "options": {"temperature": 0.5, "max-tokens": None} if number == 1 else None, "when": number,
    }  # fmt: skip


def write(path, numbers, changes=None):
    rows = [row(number) | (changes or {}).get(number, {}) for number in numbers]
    table = pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table, path, row_group_size=2, compression="snappy", write_statistics=False)


def main():
    folder = Path(sys.argv[1])
    hub, saved = folder / "hub" / "data", folder / "saved"
    for each in (hub, saved):
        each.mkdir(parents=True, exist_ok=True)
    # The second file repeats an id and lacks a question.
    changes = {4: {"id": "row-1"}, 5: {"question": None, "id": None}}
    write(hub / "train-00000-of-00002.parquet", range(1, 4))
    write(hub / "train-00001-of-00002.parquet", range(4, 6), changes)
    write(hub / "test-00000-of-00001.parquet", [9])
    columns = SCHEMA.remove(SCHEMA.get_field_index("kind"))  # datasets writes no dictionaries
    with pa.OSFile(str(saved / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, columns) as writer:
        for numbers in ((1, 2), (3,)):
            writer.write_batch(pa.RecordBatch.from_pylist([row(number) for number in numbers], columns))
    (saved / "cache-0123456789abcdef.arrow").write_bytes(b"not of the dataset")
    (saved / "dataset_info.json").write_text('{"description": ""}\n')
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}) + "\n")


if __name__ == "__main__":
    main()
