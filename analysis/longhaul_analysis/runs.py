"""Run folders in memory: the job's keys, the summary, and the items with their statistics and references.

What the files hold is said by the program that writes them: `runner/run/results.cpp` (results.jsonl, stats.jsonl) and
`runner/run/summary.cpp` (summary.json) of longhaul. Fields that this package does not know are ignored.
"""

import json
import math
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

from .errors import AnalysisError, UsageError

# Keys that say where a run lies or how it is guarded, and never what its numbers mean. `seed` is what repeated
# measurements differ in.
NEUTRAL_KEYS = frozenset(
    {
        "output", "shard", "baseline", "max-failures", "retry-failed", "watchdog-seconds", "lease-seconds",
        "packed-weights",
    }
)  # fmt: skip

# What only says how a text is made, not which.
DRAFT_KEYS = frozenset(
    {
        "draft", "draft-model", "draft-tree", "draft-temperature", "draft-parallel", "draft-passes", "draft-precision",
        "draft-corpus", "resample", "resample-tree", "resample-threshold", "partial-cache", "partial-cache-mode",
        "ngram-order", "ngram-top",
        "replay-run", "replay-accept", "verify",
    }
)  # fmt: skip

# Draft methods whose every level of the tree is a pass of a draft model.
MODEL_DRAFTS = frozenset({"sd", "spectr", "specinfer", "rsd-c", "rsd-s"})

# Tokens that make a loop where the job does not say (stop-loops = 0).
LOOP_LENGTH = 64

# What follows from draft-tree: levels of the tree, and its nodes under the root (tokens the target sees at once).
TREE_KEYS = ("draft-depth", "draft-nodes")

# Fields of stats.jsonl besides id and sample, as longhaul writes them.
STATISTICS: Mapping[str, type] = {
    "replica": int, "num_tokens": int, "prompt_tokens": int, "cached_tokens": int, "seconds": float,
    "prefill_seconds": float, "steps": int, "target_calls": int, "draft_calls": int, "drafted": int, "accepted": int,
    "accepted_ngram": int, "accepted_ngram_path": int, "accepted_resampled": int, "draft_model_calls": int,
    "accepted_draft_model": int, "block_efficiency": float, "mbsu": float, "tokens_per_second": float,
    "branched_trees": int, "checkpoint_rounds": int, "checkpoint_stall_seconds": float, "resumes": int,
    "recomputed_tokens": int, "recomputed_rows": int, "scored_tokens": int, "scored_bytes": int,
    "greedy_tokens": int, "acc": int, "acc_norm": int, "mc2": float,
}  # fmt: skip


@dataclass(slots=True)
class Item:
    """One continuation of one prompt: a line of results.jsonl, its line of stats.jsonl, its reference."""

    id: str
    sample: int
    text: str
    num_tokens: int  # with the end-of-text token
    finish_reason: str  # "length", "stop", "repetition" or "error"
    error: str | None = None
    has_reasoning: bool = False  # whether the job says where reasoning ends (reasoning-end)
    answer: str | None = None  # what follows the reasoning; None where it has no end
    token_ids: list[int] | None = None
    logprobs: list[list[list[float]]] | None = None  # [token][0 = chosen, then the best][id, log p]; only on request
    own_nll: float | None = None  # sum of -log p of the chosen tokens, of `logprobs`; natural logarithm
    nll: float | None = None  # sum of -log p of a given continuation, natural logarithm
    loss_by_position: list[list[float]] | None = None  # [first position, tokens, nll] a power of two of the position
    greedy_tokens: int | None = None  # of the tokens that `nll` is the sum of, those that greedy decoding chooses
    acc: int | None = None  # 1 if a question's most probable choice is right, or all tokens are greedy; None: not known
    acc_norm: int | None = None  # the same of the most probable one per character
    mc2: float | None = None  # share of the right choices in the probability of all, if several may be right
    reference: str | None = None
    loop_length: int = LOOP_LENGTH  # tokens that repeat what stands before them make a loop; `stop-loops` of the job
    ends_loops: bool = False  # whether the job ends an item that loops
    required_words: int | None = None  # that the prompt asks for (task longwriter)
    draft_depth: int | None = None  # levels of the draft trees of a draft model; None: not fixed, or no such model
    stats: dict[str, Any] = field(default_factory=dict)  # seconds, steps, target_calls, drafted, accepted, …

    @property
    def scored_tokens(self) -> int:
        """Tokens that `nll` is the sum of: not those that had no context to be scored in."""
        if "scored_tokens" in self.stats:
            return int(self.stats["scored_tokens"])
        if self.loss_by_position:
            return int(sum(count for _, count, _ in self.loss_by_position))
        return self.num_tokens

    @property
    def scored_bytes(self) -> int:
        """UTF-8 bytes of the tokens that `nll` is the sum of."""
        return int(self.stats.get("scored_bytes", len(self.text.encode())))

    @property
    def has_target(self) -> bool:
        """Whether there is something to hold the text against."""
        return self.reference is not None or self.required_words is not None

    @property
    def shows_loops(self) -> bool:
        """Whether the item says if its text loops."""
        return not self.failed and (self.ends_loops or self.token_ids is not None)

    @property
    def failed(self) -> bool:
        """Whether the item has an error in place of a text."""
        return self.finish_reason == "error"


@dataclass(eq=False)
class Run:
    """A run folder. Items are read anew at each call of `read_items`, so that many runs need the memory of one."""

    folder: Path
    name: str
    references_file: Path | None = None  # in place of the folder's own references.jsonl

    @cached_property
    def keys(self) -> dict[str, str]:
        """The resolved job: every key with its value as the file has it; those of a repeated key joined by ", "."""
        path = self.folder / "job.cfg"
        keys: dict[str, str] = {}
        for number, line in _lines(path):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key, separator, value = (part.strip() for part in line.partition("="))
            if not separator:
                raise AnalysisError(f"{path}:{number}: expected 'key = value', got {_short(line)}")
            keys[key] = f"{keys[key]}, {value}" if key in keys else value
        return keys

    def shown(self, key: str) -> str:
        """A key's value as tables have it: of a path its last part; nothing for what plain decoding does not heed."""
        if key in {*DRAFT_KEYS, *TREE_KEYS} - {"draft"} and self.keys.get("draft") == "ar":
            return ""
        value = self.value(key) or ""
        return Path(value).name if value.startswith("/") else value

    def value(self, key: str) -> str | None:
        """A key's value, or what TREE_KEYS say of its tree; None where the job does not say."""
        if key not in TREE_KEYS:
            return self.keys.get(key)
        size = tree_size(self.keys.get("draft-tree", ""))
        return None if size is None else str(size[TREE_KEYS.index(key)])

    @property
    def has_given_texts(self) -> bool:
        """Whether its texts are the data's own (or none): nothing to compare with references."""
        return self.keys.get("mode") in ("perplexity", "multiple-choice") or self.keys.get("teacher-forced") == "true"

    @property
    def stop_loops(self) -> int:
        """Tokens after which the job ends an item that repeats itself; 0: it does not."""
        value = self.keys.get("stop-loops", "0")
        return int(value) if value.isdigit() else 0

    def summary_number(self, name: str) -> float | None:
        """A positive number of summary.json; None where there is none."""
        value = self.summary.get(name)
        return float(value) if _is_number(value) and value > 0 else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json; empty where there is none."""
        return _object_if_there(self.folder / "summary.json")

    def read_items(self) -> list[Item]:
        """All items in the order of the input. Raises AnalysisError for an unfinished or damaged run."""
        return list(self.iter_items())

    def iter_items(self, logprobs: bool = False) -> Iterator[Item]:
        """The same, one at a time. `logprobs` are kept on request: they may be a thousand times the rest."""
        path = self.folder / "results.jsonl"
        expected = self.summary.get("items")
        if not path.is_file():
            raise AnalysisError(self._unfinished(expected))
        statistics = _read_statistics(self.folder / "stats.jsonl")
        references = self._references()
        stop_loops = self.stop_loops
        depth = self.value(TREE_KEYS[0]) if self.keys.get("draft") in MODEL_DRAFTS else None
        seen: dict[str, int] = {}  # id -> place in the input
        count = 0
        for number, line in _lines(path):
            item = _item(json_line(path, number, line), f"{path}:{number}")
            place = seen.setdefault(item.id, len(seen))
            if not logprobs:
                item.logprobs = None
            item.stats = statistics.get((item.id, item.sample), {})
            item.reference = references.find(item.id, place)
            item.ends_loops = stop_loops > 0
            item.draft_depth = None if depth is None else int(depth)
            item.loop_length = stop_loops or LOOP_LENGTH
            item.required_words = references.lengths.get(item.id)
            count += 1
            yield item
        if count == 0:
            raise AnalysisError(f"{path}: expected at least one item, got none; give the job data")
        if isinstance(expected, int) and count < expected:
            raise AnalysisError(self._unfinished(expected))
        references.check_count(len(seen), path)

    def _references(self) -> "References":
        if self.references_file is not None:
            return References.read(self.references_file)
        own = self.folder / "references.jsonl"
        return References.read(own) if own.is_file() else References(own)

    def _unfinished(self, expected: int | None) -> str:
        done = _count_journal(self.folder / "results")
        if expected is None:
            expected = _object_if_there(self.folder / "status" / "run.json").get("items")
        if not isinstance(expected, int) or expected < done:
            counted = f"only {done} items are done"
        elif expected == done:
            counted = "all items are done, but results.jsonl is not there"
        else:
            counted = f"{expected - done} of {expected} items are missing"
        return f"{self.folder}: the run is unfinished, {counted}; start its job again, it resumes where it was"


@dataclass
class References:
    """Reference texts and required lengths: by id (JSONL lines {"id", "reference"?, "length"?}).

    Plain lines are texts by their place in the input.
    """

    path: Path
    lengths: dict[str, int] = field(default_factory=dict)  # in words, by id
    by_id: dict[str, str] = field(default_factory=dict)
    by_place: list[str] | None = None

    @classmethod
    def read(cls, path: Path) -> "References":
        """Reads JSONL where the first line is a JSON object, else one reference a line."""
        references = cls(path)
        lines = list(_lines(path))
        if not lines:
            raise AnalysisError(f"{path}: expected a reference a line, got an empty file")
        if not lines[0][1].lstrip().startswith("{"):
            references.by_place = [line for _, line in lines]
            return references
        for number, line in lines:
            value = json_line(path, number, line)
            reference = value.get("reference")
            length = value.get("length")
            good_length = length is None or (_is_number(length, int) and length > 0)
            if "id" not in value or not isinstance(reference, str | None) or not good_length:
                raise AnalysisError(
                    f'{path}:{number}: expected {{"id": …, "reference": "…", "length": words}}, got {_short(line)}; '
                    "correct the line"
                )
            if length is not None:
                references.lengths[str(value["id"])] = length
            if reference is not None:
                references.by_id[str(value["id"])] = _text(reference, f"{path}:{number}: reference")
        return references

    def find(self, item_id: str, place: int) -> str | None:
        """The reference of an item, None where it has none."""
        if self.by_place is None:
            return self.by_id.get(item_id)
        return self.by_place[place] if place < len(self.by_place) else None

    def check_count(self, num_inputs: int, results: Path) -> None:
        """Raises AnalysisError where plain lines are not as many as the inputs: line i would belong to another item."""
        if self.by_place is not None and len(self.by_place) != num_inputs:
            raise AnalysisError(
                f"{self.path}: expected {num_inputs} lines, as many as {results} has inputs, "
                f"got {len(self.by_place)}; give a line for each input"
            )


def open_runs(paths: Sequence[str | os.PathLike[str]], references: Path | None = None) -> list[Run]:
    """The runs of run folders and of folders that hold run folders (a sweep), in the order given, then by name."""
    runs: list[Run] = []
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            found = "a file" if path.exists() else "nothing there"
            raise UsageError(f"{path}: expected a run folder or a folder of runs, got {found}")
        folders = list(_run_folders(path))
        if not folders:
            raise UsageError(
                f"{path}: expected a run folder or a folder of runs, got a folder without job.cfg and results; "
                "give the `output` of a job"
            )
        for folder in folders:
            name = path.resolve().name if folder == path else str(folder.relative_to(path))
            runs.append(Run(folder, name, references))
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = str(run.folder)
    return runs


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """Keys of the job that are not the same in all runs, those of NEUTRAL_KEYS left out."""
    names = dict.fromkeys(key for run in runs for key in run.keys if key not in NEUTRAL_KEYS)
    return [key for key in names if len({run.keys.get(key) for run in runs}) > 1]


def is_baseline_of(other: Run, run: Run) -> bool:
    """Whether `other` is the job of `run` by autoregressive decoding: the same but for draft keys."""
    if other.keys.get("draft") != "ar":
        return False
    names = (other.keys.keys() | run.keys.keys()) - DRAFT_KEYS - NEUTRAL_KEYS
    return all(other.keys.get(key) == run.keys.get(key) for key in names)


def tree_size(shape: str) -> tuple[int, int] | None:
    """Depth and nodes of a draft tree: a chain "5", width x depth "4x3", nodes at most "4x3:12", branching "2,2,1"."""
    if re.fullmatch(r"\d+(,\d+)+", shape):
        levels = list(accumulate((int(part) for part in shape.split(",")), operator.mul))
        return len(levels), sum(levels)
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)(?::(\d+))?", shape)
    if match is None:
        return None
    width, depth, nodes = (int(part) if part else None for part in match.groups())
    assert depth is not None
    return depth, nodes or (width or 1) * depth


def json_line(path: Path, number: int, line: str) -> dict[str, Any]:
    """A JSON object out of a line of a file; AnalysisError names file and line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise AnalysisError(f"{path}:{number}: expected a JSON object, got {_short(line)}; the file is damaged")
    return value


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / "job.cfg").is_file() and any(
        (folder / name).exists() for name in ("results.jsonl", "results", "identity.json")
    ):
        yield folder
        return
    for entry in sorted(folder.iterdir(), key=lambda path: _natural(path.name)):
        if entry.is_dir() and not entry.is_symlink():
            yield from _run_folders(entry)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """run-2 before run-10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part) for part in parts]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends. Only \\n ends a line: texts may hold other separators."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise AnalysisError(f"{path}: expected a file that can be read, got {error.strerror}") from None
    except UnicodeDecodeError:
        raise AnalysisError(f"{path}: expected UTF-8 text, got other bytes; convert the file to UTF-8") from None


def _object_if_there(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return json_line(path, 1, "\n".join(line for _, line in _lines(path)))


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise AnalysisError(f"{where}: expected text, got half a surrogate pair; escape the whole pair") from None
    return value


def _item(value: dict[str, Any], where: str) -> Item:
    def get(name: str, kind: type, wanted: str, required: bool = False) -> Any:
        got = value.get(name)
        if got is None and not required:
            return None
        if not (_is_number(got, kind) if kind in (int, float) else isinstance(got, kind)):
            shown = "nothing" if got is None else _short(json.dumps(got))
            raise AnalysisError(f"{where}: {name}: expected {wanted}, got {shown}; the file is damaged")
        return got

    item = Item(
        id=_text(get("id", str, "a text", required=True), f"{where}: id"),
        sample=get("sample", int, "an integer") or 0,
        text=_text(get("text", str, "a text", required=True), f"{where}: text"),
        num_tokens=get("num_tokens", int, "an integer", required=True),
        finish_reason=get("finish_reason", str, "a text", required=True),
        error=get("error", str, "a text"),
        has_reasoning="answer" in value,
        answer=get("answer", str, "a text"),
        token_ids=get("token_ids", list, "a list"),
        logprobs=get("logprobs", list, "a list"),
        nll=get("nll", float, "a number"),
        loss_by_position=get("loss_by_position", list, "a list"),
        greedy_tokens=get("greedy_tokens", int, "an integer"),
        acc=get("acc", int, "an integer"),
        acc_norm=get("acc_norm", int, "an integer"),
        mc2=get("mc2", float, "a number"),
    )
    _check_lists(item, where)
    if item.logprobs:
        item.own_nll = -math.fsum(token[0][1] for token in item.logprobs)
    return item


def _check_lists(item: Item, where: str) -> None:
    def is_row(row: Any, length: int) -> bool:
        return isinstance(row, list) and len(row) == length and all(map(_is_number, row))

    if not all(_is_number(token, int) for token in item.token_ids or []):
        raise AnalysisError(f"{where}: token_ids: expected integers, got something else; the file is damaged")
    if not all(is_row(row, 3) for row in item.loss_by_position or []):
        raise AnalysisError(
            f"{where}: loss_by_position: expected [first position, tokens, nll] each, got something else; "
            "the file is damaged"
        )
    for token in item.logprobs or []:
        if not isinstance(token, list) or not token or not all(is_row(pair, 2) for pair in token):
            raise AnalysisError(
                f"{where}: logprobs: expected [[id, log p], …] a token, got something else; the file is damaged"
            )


def _read_statistics(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    if not path.is_file():
        return {}
    statistics: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in _lines(path):
        value = json_line(path, number, line)
        for name, kind in {"sample": int, **STATISTICS}.items():
            if name in value and not _is_number(value[name], kind):
                wanted = "an integer" if kind is int else "a number"
                raise AnalysisError(
                    f"{path}:{number}: {name}: expected {wanted}, got {_short(json.dumps(value[name]))}; "
                    "the file is damaged"
                )
        rows = value.get("by_length", [])
        if not isinstance(rows, list) or not all(_is_length_row(row) for row in rows):
            raise AnalysisError(
                f"{path}:{number}: by_length: expected rows of tokens and seconds, got {_short(json.dumps(rows))}; "
                "the file is damaged"
            )
        statistics[str(value.get("id")), value.get("sample", 0)] = value
    return statistics


def _is_length_row(row: Any) -> bool:
    return isinstance(row, dict) and _is_number(row.get("tokens"), int) and _is_number(row.get("seconds"))


def _is_number(value: Any, kind: type = float) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return kind is float or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _count_journal(folder: Path) -> int:
    """Items that have a whole line in the files of the launches."""
    done: set[tuple[Any, Any]] = set()
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else []:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                try:
                    value = json.loads(line) if line.endswith("\n") else None
                    if isinstance(value, dict):
                        done.add((value.get("index"), value.get("sample")))
                except ValueError:
                    continue
    return len(done)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
