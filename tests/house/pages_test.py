#!/usr/bin/env python3
"""Checks the Markdown pages: files that they name exist, and commands that they show are valid.

usage: pages_test.py ROOT PROGRAM

For every Markdown page: relative links and paths in backquotes exist, and `longhaul` commands use commands and keys of
the program. Sections of pages that comments of sources name exist. The README's first job and the sweep of
jobs/README.md are run as written, with the demo model and its books as a user's.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:kernels|engine|runner|jobs|slurm|tests|analysis|\.ci)/[\w./*-]+)`")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^(?:mpirun [^#]*? )?longhaul (\S+)([^#\n]*)", re.M)
SECTION = re.compile(r"(\w+\.md) section (\w+)")
ROOMS = ["kernels", "engine", "runner", "tests"]
SOURCES = {".cpp", ".hpp", ".cu", ".cuh"}
README_LINES = 180
OWN_OPTIONS = {"form", "help", "partial", "progress", "shape", "rounds", "rows", "explain", "json", "model", "prompt"}


def pages(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            capture_output=True, text=True)
    if listed.returncode:  # a copy without its history
        return [page for page in root.rglob("*.md") if not page.relative_to(root).parts[0].startswith("build")]
    return [root / name for name in listed.stdout.split()]


def missing_files(root, page):
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        if "://" not in link and not (page.parent / link).exists():
            yield f"{page.relative_to(root)}: link to {link}, which does not exist"
    for name in PATH.findall(text):
        if not any(root.glob(name.rstrip("/"))) and not any(page.parent.glob(name.rstrip("/"))):
            yield f"{page.relative_to(root)}: `{name}` does not exist"


def missing_sections(root, texts):
    """Sections of pages that sources name, as in `ALGORITHMS.md section 3`."""
    for source in sorted(path for room in ROOMS for path in (root / room).rglob("*") if path.suffix in SOURCES):
        for name, section in SECTION.findall(source.read_text(encoding="utf-8")):
            if not any(page.name == name and f"\n## {section}. " in text for page, text in texts.items()):
                yield f"{source.relative_to(root)}: {name} section {section} does not exist"


def unknown_commands(root, page, program):
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for name, rest in COMMAND.findall(block):
            topics = [name] if not name.startswith("-") else []
            topics += [key for key in re.findall(r"--([a-z-]+)", rest) if key not in OWN_OPTIONS]
            for topic in topics:
                if topic != "help" and subprocess.run([program, "help", topic], capture_output=True).returncode:
                    yield f"{page.relative_to(root)}: `longhaul {name}{rest}`: {topic} is not known"


def run_blocks(root, program, blocks, result):
    """Runs (page, text that the block holds) one after another in a new folder: the demo model and its books in the place of
    a user's, few tokens. `result` is a file that must exist then."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "longhaul").symlink_to(program)
        Path(folder, "books").symlink_to(root / "jobs/demo/books")
        Path(folder, "jobs").symlink_to(root / "jobs")
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        for page, text in blocks:
            found = [block for block in BLOCK.findall((root / page).read_text(encoding="utf-8")) if text in block]
            if len(found) != 1:
                yield f"{page}: expected one block with {text}, got {len(found)}"
                return
            script = found[0].replace("/models/Llama-3.2-1B", str(root / "jobs/demo/model")).replace("= 2000", "= 20")
            script = script.replace("data   = books", "data   = books\nlimit  = 2\nmax-tokens = 8")
            script = re.sub(r"mpirun (?:-q )?-n (\d)", r"mpirun -q --oversubscribe -n \1", script)
            ended = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment,
                                   capture_output=True, text=True)
            if ended.returncode:
                yield f"{page}: the block with {text} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
                return
        if not Path(folder, result).exists():
            yield f"{blocks[-1][0]}: expected {result} after the block with {blocks[-1][1]}"


def blocks_run(root, program):
    yield from run_blocks(root, program, [("README.md", "mine.cfg <<")], "runs/mine/results.jsonl")
    yield from run_blocks(root, program, [("jobs/README.md", "grid.cfg <<")], "runs/grid/sweep.md")


def main():
    root, program = Path(sys.argv[1]).resolve(), str(Path(sys.argv[2]).resolve())
    faults = []
    for page in pages(root):
        faults += missing_files(root, page)
        faults += unknown_commands(root, page, program)
    faults += missing_sections(root, {page: page.read_text(encoding="utf-8") for page in pages(root)})
    lines = (root / "README.md").read_text(encoding="utf-8").count("\n")
    if lines > README_LINES:
        faults.append(f"README.md: {lines} lines, at most {README_LINES}")
    faults += blocks_run(root, program)
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(pages(root))} pages, no fault")


if __name__ == "__main__":
    main()
