"""The command line: `longhaul-analysis scores|compare|table|lengths|windows|figure|export RUN…`.

Exit codes as longhaul's: 0 done, 1 data that cannot be used, 2 usage. Errors and notes go to standard error.
"""

import argparse
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from .errors import AnalysisError, UsageError
from .figures import KINDS, Panels, draw_figure
from .lengths import DEFAULT_LENGTH_MEASURES, LENGTH_MEASURES, make_length_table
from .measures import MEASURES, Measure, Scoring, choose_measures, measure_of_task, missing_reason
from .runs import Run, open_runs
from .scores import RunScores, answer_notes, score_runs
from .significance import Comparison, compare_runs, losses
from .tables import Table, as_csv, as_json, as_latex, as_markdown, make_table
from .windows import DEFAULT_WINDOW, WINDOW_MEASURES, make_window_table

_PRINTED_SAMPLES = 6  # columns; beyond, the first, the mean and its error


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit code."""
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    logging.getLogger("absl").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without ± still gets the numbers
    try:
        options = _parser().parse_args(arguments)
        options.command(options)
        sys.stdout.flush()
    except AnalysisError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader has seen enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="longhaul-analysis", description="Scores, significance, tables and figures from run folders.")
    parser.add_argument("--version", action="version", version=version("longhaul-analysis"))
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    scores = _command(commands, "scores", _scores, "every score of each run, with the signature to cite")
    _add_scoring(scores)
    scores.add_argument("--measures", metavar="NAMES", help=f"some of {', '.join(MEASURES)} (all)")
    scores.add_argument("--json", action="store_true", help="for programs, all digits")

    compare = _command(
        commands, "compare", _compare, "paired bootstrap resampling of each run against the first", least="RUN RUN"
    )
    _add_scoring(compare)
    compare.add_argument("--measures", metavar="NAMES", help="as for scores (all but speed)")
    compare.add_argument("--draws", type=_positive, default=1000, metavar="N", help="resamplings (1000)")
    compare.add_argument("--seed", type=_positive, default=12345, metavar="N", help="of the draws (12345)")
    compare.add_argument(
        "--pool", metavar="KEYS", help="runs alike in these job keys are one system; plain decoding comes first"
    )
    compare.add_argument(
        "--fail-on-loss",
        type=_level,
        metavar="P",
        help="exit code 1 if any is worse than the first with p < P / number of comparisons",
    )
    compare.add_argument("--json", action="store_true", help="for programs, all digits")

    table = _command(commands, "table", _table, "one table of all runs; seeds become mean ± standard error")
    _add_scoring(table)
    table.add_argument(
        "--columns", metavar="NAMES", help="measures, and job keys to spread them over (the usual measures)"
    )
    table.add_argument(
        "--rows", metavar="KEYS", help="job keys that tell rows apart, or run (the keys that differ, but for the seed)"
    )
    table.add_argument("--relative", action="store_true", help="all values over those of draft = ar of the same seed")
    table.add_argument(
        "--errors", choices=("seeds", "items"), default="seeds", help="what standard errors are over (seeds)"
    )
    table.add_argument("--titles", metavar="NAMES", help="of all columns, in place of the names of keys and measures")
    _add_forms(table)

    lengths = _command(commands, "lengths", _lengths, "acceptance and speed-up at parts of the length of long texts")
    lengths.add_argument(
        "--columns",
        metavar="NAMES",
        help=f"some of {', '.join(LENGTH_MEASURES)} ({','.join(DEFAULT_LENGTH_MEASURES)})",
    )
    lengths.add_argument("--rows", metavar="KEYS", help="as for table")
    lengths.add_argument("--parts", type=_positive, default=5, metavar="N", help="of the length max-tokens (5)")
    _add_forms(lengths)

    windows = _command(
        commands, "windows", _windows, "speed-up, loops, distinct-n and own perplexity in each window of long texts"
    )
    windows.add_argument("--columns", metavar="NAMES", help=f"some of {', '.join(WINDOW_MEASURES)} (all)")
    windows.add_argument("--rows", metavar="KEYS", help="as for table")
    windows.add_argument(
        "--tokens", type=_positive, default=DEFAULT_WINDOW, metavar="N", help=f"of a window ({DEFAULT_WINDOW})"
    )
    _add_forms(windows)

    figure = _command(commands, "figure", _figure, "a figure of all runs")
    figure.add_argument("--kind", required=True, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    figure.add_argument(
        "--x",
        metavar="KEY",
        help="speed, acceptance: lines over this job key, not bars; decoders: draft-depth (the default) or draft-nodes",
    )
    figure.add_argument(
        "--measures", metavar="NAMES", help="decoders: a column each (block_efficiency,mbsu,tokens_per_second,accuracy)"
    )
    figure.add_argument("--rows", metavar="KEYS", help="decoders: a row for each value (model,task)")
    figure.add_argument("--draft-ratio", type=_ratio, metavar="R", help=f"decoders: {_RATIO}")
    figure.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="FILE.svg, .pdf or .png")

    export = _command(commands, "export", _export, "one row an item, with its statistics and the keys of its job")
    export.add_argument("--references", type=Path, metavar="FILE", help=_REFERENCES)
    export.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="FILE.parquet or .csv")
    return parser


_RATIO = "MBSU with this ratio of draft parameters to target parameters (the run's own)"
_REFERENCES = 'JSONL {"id", "reference"} or a reference a line, in the order of the input (RUN/references.jsonl)'


def _command(commands: Any, name: str, function: Any, text: str, least: str = "RUN") -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.set_defaults(command=function)
    command.add_argument("runs", nargs="+", metavar="RUN", help="run folder, or a folder of runs such as a sweep")
    command.usage = f"%(prog)s {least}… [options]"
    return command


def _add_scoring(command: argparse.ArgumentParser) -> None:
    command.add_argument("--references", type=Path, metavar="FILE", help=_REFERENCES)
    command.add_argument("--tokenize", default="13a", metavar="NAME", help="of BLEU, a name of sacrebleu's (13a)")
    command.add_argument("--no-stemmer", action="store_true", help="ROUGE without Porter stemming")
    command.add_argument(
        "--answer-after",
        metavar="TEXT",
        help="of reasoning models: score what follows the last TEXT, such as '</think>'",
    )
    command.add_argument(
        "--extract",
        metavar="REGEX",
        help="exact match: compare the last match in the answer, or its first group, such as '#### (.*)'",
    )
    command.add_argument("--draft-ratio", type=_ratio, metavar="R", help=_RATIO)


def _add_forms(command: argparse.ArgumentParser) -> None:
    """Of a table."""
    command.add_argument("--format", choices=("md", "csv", "latex"), default="md", help="(md)")
    command.add_argument("--json", action="store_true", help="for programs, all digits")
    command.add_argument(
        "-o", "--output", action="append", type=_table_file, default=[], metavar="FILE",
        help="FILE.md, .csv, .tex or .json, in place of standard output; may be given several times",
    )  # fmt: skip


_TABLE_FORMS: dict[str, Callable[[Table], str]] = {
    ".md": as_markdown, ".csv": as_csv, ".tex": as_latex, ".json": lambda table: _json(as_json(table)),
}  # fmt: skip


def _table_file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() in _TABLE_FORMS:
        return path
    raise argparse.ArgumentTypeError(f"expected a name that ends in .md, .csv, .tex or .json, got {text!r}")


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 2**32:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected an integer from 1 to 4294967295, got {text!r}")


def _ratio(text: str) -> float:
    value = _number(text)
    if 0 < value < 1000:
        return value
    raise argparse.ArgumentTypeError(f"expected draft parameters / target parameters, such as 0.017, got {text!r}")


def _level(text: str) -> float:
    value = _number(text)
    if 0 < value < 1:
        return value
    raise argparse.ArgumentTypeError(f"expected a level of significance, such as 0.01, got {text!r}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _open(options: argparse.Namespace) -> list[Run]:
    references: Path | None = options.references if "references" in options else None
    if references is not None and not references.is_file():
        raise UsageError(f"--references: expected a file, got {str(references)!r}")
    return open_runs(options.runs, references)


def _scoring(options: argparse.Namespace) -> Scoring:
    return Scoring(
        tokenizer=options.tokenize,
        stemmer=not options.no_stemmer,
        draft_ratio=options.draft_ratio,
        answer_after=options.answer_after or None,
        extract=_pattern(options.extract) if options.extract else None,
    )


def _pattern(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise UsageError(f"--extract: expected a regular expression, got {expression!r}: {error}") from None


def _note(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"note: {line}", file=sys.stderr)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _print_json(value: Any) -> None:
    print(_json(value), end="")


# --- scores -----------------------------------------------------------------------------------------------------------


def _scores(options: argparse.Namespace) -> None:
    names = _names(options.measures)
    measures = choose_measures(names)
    results = list(score_runs(_open(options), measures, _scoring(options)).values())
    for result in results:
        _note(result.notes(measures))
        for measure in measures if names else []:
            if measure.name not in result.scores:
                raise AnalysisError(f"{result.run.folder}: {measure.name}: {missing_reason(measure)}")
    if options.json:
        _print_json({"runs": [_scores_as_json(result) for result in results]})
        return
    print("\n".join(_scores_as_text(result) for result in results), end="")


def _scores_as_json(result: RunScores) -> dict[str, Any]:
    return {
        "run": result.run.name,
        "folder": str(result.run.folder),
        "items": result.num_items,
        "failed": result.num_failed,
        "samples": result.num_samples,
        "without_reference": result.without_reference,
        "without_answer": result.without_answer,
        "scores": {
            name: {
                "mean": score.mean,
                "standard_error": score.standard_error,
                "values": score.values,
                **({"signature": score.signature} if score.signature else {}),
            }
            for name, score in result.scores.items()
        },
        "loss_by_position": [
            {"first": first, "tokens": tokens, "loss": loss} for first, tokens, loss in result.loss_by_position
        ],
    }


def _scores_as_text(result: RunScores) -> str:
    samples = f", {result.num_samples} samples per prompt" if result.num_samples > 1 else ""
    failed = f", {result.num_failed} failed" if result.num_failed else ""
    lines = [f"{result.run.name}: {result.num_items} items{samples}{failed}"]
    head, rows = _score_rows(result)
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    for row in [head, *rows] if result.num_samples > 1 else rows:
        cells = [row[0].ljust(widths[0]), *(value.rjust(w) for value, w in zip(row[1:-1], widths[1:], strict=False))]
        lines.append(f"  {'  '.join([*cells, row[-1]])}".rstrip())
    for first, tokens, loss in result.loss_by_position:
        lines.append(f"  loss from position {first}: {loss:.4f} nats a token over {tokens} tokens")
    return "\n".join(lines) + "\n"


def _score_rows(result: RunScores) -> tuple[list[str], list[list[str]]]:
    """Measure, values, what they are; with several samples: the values of each, their mean and its standard error."""
    shown = result.num_samples if result.num_samples <= _PRINTED_SAMPLES else 1
    several = result.num_samples > 1
    head = ["", *([*(f"sample {n}" for n in range(shown)), "mean", "± se"] if several else [""]), ""]
    rows = []
    for name, score in result.scores.items():
        measure = MEASURES[name]
        numbers: list[float | None] = [score.mean]
        if several:
            each = score.values[:shown] if len(score.values) > 1 else [None] * shown
            numbers = [*each, score.mean, score.standard_error]
        texts = ["" if number is None else f"{number:.{measure.digits}f}" for number in numbers]
        rows.append([measure.title, *texts, score.signature or measure.definition])
    return head, rows


# --- compare ----------------------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> None:
    names = _names(options.measures)
    measures = choose_measures(names)
    for measure in measures if names else []:
        if measure.family == "summary":
            raise UsageError(
                f"--measures: expected measures with items to draw from, got {measure.name}; compare seeds in a table"
            )
    runs, scoring = _open(options), _scoring(options)
    comparisons = compare_runs(runs, measures, scoring, options.draws, options.seed, _names(options.pool) or ())
    for run in runs if any(measure.uses_answer for measure in measures) else []:
        items = run.read_items()
        _note(answer_notes(run, scoring.num_without_answer(items), len(items)))
    found = {comparison.measure.name for comparison in comparisons}
    for measure in measures if names else []:
        own = measure_of_task(measure, runs[0].keys.get("task"))
        if own is None or own.name not in found:
            raise AnalysisError(f"{options.runs[0]}: {measure.name}: {missing_reason(measure)}")
    if options.json:
        _print_json({"draws": options.draws, "seed": options.seed, "measures": [_compared(c) for c in comparisons]})
    for comparison in comparisons if not options.json else []:
        print("\n".join(_comparison_as_text(comparison)))
    if options.fail_on_loss and (lines := losses(comparisons, options.fail_on_loss)):
        sys.stdout.flush()
        raise AnalysisError("; ".join(lines))


def _compared(comparison: Comparison) -> dict[str, Any]:
    systems = [vars(system) for system in comparison.systems]
    measure = comparison.measure.name
    return {
        "measure": measure, "items": comparison.num_items, "signature": comparison.signature, "systems": systems
    }  # fmt: skip


def _comparison_as_text(comparison: Comparison) -> list[str]:
    measure: Measure = comparison.measure
    digits = measure.digits + 1
    width = max(len(system.run) for system in comparison.systems)
    items = "1 item" if comparison.num_items == 1 else f"{comparison.num_items} items"
    lines = [f"{measure.title} over {items}  {comparison.signature or measure.definition}"]
    if comparison.num_items == 1:
        lines.append("  (one item: its intervals and p values say nothing of other items)")
    for system in comparison.systems:
        low, high = system.interval
        line = f"  {system.run.ljust(width)}  {system.score:.{digits}f}  95 % [{low:.{digits}f}, {high:.{digits}f}]"
        if system.difference is not None and system.difference_interval is not None:
            low, high = system.difference_interval
            line += (
                f"  difference {system.difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
                f"  p = {system.p_value:.4f}"
            )
        lines.append(line)
    return lines


# --- table, figure, export --------------------------------------------------------------------------------------------


def _table(options: argparse.Namespace) -> None:
    over_items = options.errors == "items"
    if over_items and options.relative:
        raise UsageError("--errors: expected seeds with --relative, got items; leave one of the two out")
    table = make_table(
        _open(options), _names(options.columns), _names(options.rows), _scoring(options), options.relative, over_items
    )
    table.titles = _names(options.titles) or []
    if table.titles and len(table.titles) != len(table.row_keys) + len(table.columns):
        raise UsageError(
            f"--titles: expected {len(table.row_keys) + len(table.columns)} names, as many as the table has columns, "
            f"got {len(table.titles)}"
        )
    _note(table.notes)
    _print_table(table, options)


def _print_table(table: Table, options: argparse.Namespace) -> None:
    for path in options.output:
        path.write_text(_TABLE_FORMS[path.suffix.lower()](table), encoding="utf-8")
    if options.output:
        return
    if options.json:
        _print_json(as_json(table))
        return
    print({"md": as_markdown, "csv": as_csv, "latex": as_latex}[options.format](table), end="")


def _lengths(options: argparse.Namespace) -> None:
    table = make_length_table(_open(options), _names(options.columns), _names(options.rows), options.parts)
    _print_table(table, options)


def _windows(options: argparse.Namespace) -> None:
    _print_table(
        make_window_table(_open(options), _names(options.columns), _names(options.rows), options.tokens), options
    )


def _figure(options: argparse.Namespace) -> None:
    panels = None
    if options.measures or options.rows or options.draft_ratio:
        scoring = Scoring(draft_ratio=options.draft_ratio)
        panels = Panels(_names(options.measures), _names(options.rows), scoring)
    draw_figure(_open(options), options.kind, options.output, options.x, panels)


def _export(options: argparse.Namespace) -> None:
    from .export import export_runs  # pandas takes a second that the other commands need not wait for

    export_runs(_open(options), options.output)
