"""One row an item and sample, with its statistics, its reference and the keys of its job: Parquet, CSV, pandas.

Columns: `run`; the fields of results.jsonl; `reference`; `required_words`; the fields of stats.jsonl that results.jsonl
does not have; and every key of the job as `job_…`, `draft-tree` as `job_draft_tree`. The columns are the same for every
run.
"""

import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from .errors import AnalysisError, UsageError
from .runs import STATISTICS, Item, Run, open_runs

# A row group of Parquet, which memory holds: so many rows, fewer where the texts are long.
ROWS_AT_A_TIME = 1000
NUMBERS_AT_A_TIME = 1_000_000  # token ids and logprobs

_ITEM_FIELDS = [
    ("id", pa.string()),
    ("sample", pa.int64()),
    ("text", pa.string()),
    ("num_tokens", pa.int64()),
    ("finish_reason", pa.string()),
    ("error", pa.string()),
    ("token_ids", pa.list_(pa.int32())),
    ("logprobs", pa.list_(pa.list_(pa.struct([("id", pa.int32()), ("logprob", pa.float64())])))),
    ("nll", pa.float64()),
    ("loss_by_position", pa.list_(pa.struct([("first", pa.int64()), ("tokens", pa.int64()), ("nll", pa.float64())]))),
    ("reference", pa.string()),
    ("required_words", pa.int64()),
]
_STATISTICS = [
    (name, pa.int64() if kind is int else pa.float64()) for name, kind in STATISTICS.items() if name != "num_tokens"
]

_INTEGERS = {pa.int64(): range(-(2**63), 2**63), pa.uint64(): range(2**64)}  # seeds have 64 bits


def export_runs(runs: Sequence[Run], path: Path) -> int:
    """Writes .parquet or .csv, whole or not at all; gives the number of rows. Lists are JSON text in CSV."""
    writers = {".parquet": _write_parquet, ".csv": _write_csv}
    write = writers.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"--output: expected a name that ends in {' or '.join(writers)}; got {str(path)!r}")
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        count = write(runs, temporary)
        temporary.replace(path)
    except OSError as error:
        raise AnalysisError(f"{path}: expected a file that can be written, got {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def frame(*paths: str | os.PathLike[str], references: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The rows of run folders, and of folders of runs, in pandas."""
    runs = open_runs(paths, Path(references) if references is not None else None)
    schema = _schema(runs)
    rows: pd.DataFrame = pa.Table.from_batches(_batches(runs, schema), schema).to_pandas()
    return rows


def _schema(runs: Sequence[Run]) -> pa.Schema:
    keys = dict.fromkeys(key for run in runs for key in run.keys)
    typed = [(_column(key), _type_of([run.keys.get(key) for run in runs])) for key in keys]
    return pa.schema([("run", pa.string()), *_ITEM_FIELDS, *_STATISTICS, *typed])


def _column(key: str) -> str:
    return "job_" + key.replace("-", "_")


def _type_of(values: Sequence[str | None]) -> pa.DataType:
    """The narrowest type that all values of a key have; a key that a run does not set is null there."""
    for kind in (pa.bool_(), *_INTEGERS, pa.float64()):
        try:
            for value in values:
                if value is not None:
                    _typed(value, kind)
        except ValueError:
            continue
        return kind
    return pa.string()


def _typed(value: str, kind: pa.DataType) -> Any:
    if kind == pa.bool_():
        if value not in ("true", "false"):
            raise ValueError(value)
        return value == "true"
    if kind in _INTEGERS:
        number = int(value)
        if number not in _INTEGERS[kind]:
            raise ValueError(value)
        return number
    return float(value) if kind == pa.float64() else value


def _rows(runs: Sequence[Run], schema: pa.Schema) -> Iterator[dict[str, Any]]:
    for run in runs:
        job = {_column(key): _typed(value, schema.field(_column(key)).type) for key, value in run.keys.items()}
        for item in run.iter_items(logprobs=True):
            yield {"run": run.name, **_fields(item), **{name: item.stats.get(name) for name, _ in _STATISTICS}, **job}


def _fields(item: Item) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(item, name) for name, _ in _ITEM_FIELDS}
    if item.logprobs is not None:
        fields["logprobs"] = [[{"id": int(i), "logprob": p} for i, p in token] for token in item.logprobs]
    if item.loss_by_position is not None:
        fields["loss_by_position"] = [
            {"first": int(first), "tokens": int(tokens), "nll": nll} for first, tokens, nll in item.loss_by_position
        ]
    return fields


def _batches(runs: Sequence[Run], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    some: list[dict[str, Any]] = []
    numbers = 0
    for row in _rows(runs, schema):
        some.append(row)
        numbers += row["num_tokens"] * (1 + len((row["logprobs"] or [[]])[0]))
        if len(some) >= ROWS_AT_A_TIME or numbers >= NUMBERS_AT_A_TIME:
            yield pa.RecordBatch.from_pylist(some, schema)
            some, numbers = [], 0
    if some:
        yield pa.RecordBatch.from_pylist(some, schema)


def _write_parquet(runs: Sequence[Run], path: Path) -> int:
    schema = _schema(runs)
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(runs, schema):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(runs: Sequence[Run], path: Path) -> int:
    schema = _schema(runs)
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, schema.names, lineterminator="\n")
        writer.writeheader()
        for batch in _batches(runs, schema):  # through Arrow, so that both formats refuse the same
            for row in batch.to_pylist():
                for name in nested:
                    if row[name] is not None:
                        row[name] = json.dumps(row[name])
                writer.writerow(row)
                count += 1
    return count
