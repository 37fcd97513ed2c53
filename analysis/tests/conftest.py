"""Recorded runs, and runs made on the spot."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from longhaul_analysis import Run, open_runs

DATA = Path(__file__).parent / "data"
SWEEP = DATA / "sweep"
NGRAM = SWEEP / "draft=ngram,seed=1"
PLAIN = SWEEP / "draft=ar,seed=1"
SAMPLES = DATA / "samples"

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, [item, …], keys={…}, summary={…}, references={id: text}, stats=[…]) -> its folder."""

    def make(
        name: str,
        items: Sequence[dict[str, Any]],
        keys: dict[str, Any] | None = None,
        summary: dict[str, Any] | None = None,
        references: dict[str, str] | None = None,
        stats: Sequence[dict[str, Any]] = (),
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        job = {
            "task": "prompts",
            "model": "/models/small",
            "seed": 1,
            "draft": "ngram",
            "output": folder,
            **(keys or {}),
        }
        (folder / "job.cfg").write_text("# Job\n" + "".join(f"{key} = {value}\n" for key, value in job.items()))
        whole = [
            {"id": f"item-{n}", "text": "", "num_tokens": 4, "finish_reason": "length", **item}
            for n, item in enumerate(items)
        ]
        write_lines(folder / "results.jsonl", whole)
        write_lines(folder / "stats.jsonl", stats)
        (folder / "summary.json").write_text(json.dumps({"items": len(items), **(summary or {})}))
        if references is not None:
            lines = [{"id": name, "reference": text} for name, text in references.items()]
            write_lines(folder / "references.jsonl", lines)
        return folder

    return make


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """A recorded run that a test may damage."""

    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(folder, tmp_path / folder.name))

    return copy


def write_lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def one_run(folder: Path) -> Run:
    (run,) = open_runs([folder])
    return run


def program(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """The installed command."""
    command = [Path(sys.executable).parent / "longhaul-analysis", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def decoder_runs(make_run: MakeRun, task: str = "prompts") -> list[Run]:
    """Two seeds of plain decoding and of three decoders; two trees of RSD-S have 4 levels, of 8 and 12 nodes."""
    folders = []
    for seed in (1, 2):
        # tokens, target calls, MBSU of the item, tokens/s
        jobs = {
            ("ar", None): (100, 100, None, 10.0 * seed),
            ("sd", "4"): (100, 50, 1.6, 15.0 * seed),
            ("rsd-c", "2,2,1,1"): (100, 40, 2.0, 12.0 * seed),
            ("rsd-s", "2x4"): (100, 40, 1.9, 30.0 * seed),
            ("rsd-s", "3x4"): (100, 25, 3.0 + 0.2 * seed, 20.0 * seed),
        }
        for (draft, tree), (tokens, calls, mbsu, rate) in jobs.items():
            keys = {"task": task, "seed": seed, "draft": draft, **({"draft-tree": tree} if tree else {})}
            keys["verify"] = {"ar": "coupled", "sd": "rejection"}.get(draft, "recursive")
            stats = {"id": "item-0", "sample": 0, "num_tokens": tokens, "target_calls": calls,
                     "draft_calls": 0 if tree is None else 4 * calls, "block_efficiency": tokens / calls,
                     **({} if mbsu is None else {"mbsu": mbsu})}  # fmt: skip
            items = [{"text": "the cat sat on the mat", "num_tokens": tokens}]
            summary = {"decode_tokens_per_second": rate}
            references = {"item-0": "the cat sat on a mat"}
            folders.append(make_run(f"{task}/{draft},{tree},{seed}", items, keys, summary, references, [stats]))
    return open_runs(folders)
