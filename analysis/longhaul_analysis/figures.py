"""Figures from runs, as SVG, PDF or PNG; the same runs give the same bytes of SVG.

Runs that differ in seed alone are one line or bar: the mean, with the standard error over them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .decoders import Series, decoder_measures, decoder_series, groups_of_decoders
from .errors import AnalysisError, UsageError
from .lengths import LENGTH_MEASURES, Mark, length_values, marks_of
from .measures import MEASURES, Measure, Scoring, measure_of_task, missing_reason
from .runs import TREE_KEYS, Run, differing_keys, is_baseline_of
from .scores import score_runs, standard_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("loss-by-position", "speed", "speed-by-length", "acceptance", "lengths", "decoders")
FORMATS = (".svg", ".pdf", ".png")
_MEASURE_OF_KIND = {"speed": "tokens_per_second", "acceptance": "acceptance"}
_AXIS_OF_KIND = {"speed": "tokens/s of a replica, decoding", "acceptance": "accepted / drafted tokens"}

# Colours that people with any kind of colour vision tell apart: Okabe and Ito, "Color universal design" (2008).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Panels:
    """What a figure of decoders shows: a column a measure, a row a value of the keys."""

    measures: Sequence[str] | None = None  # None: block efficiency, MBSU, token rate, accuracy
    rows: Sequence[str] | None = None  # job keys; None: model and task, where they differ
    scoring: Scoring | None = None


def draw_figure(runs: Sequence[Run], kind: str, path: Path, x: str | None = None, panels: Panels | None = None) -> None:
    """Writes a figure of `kind` (KINDS); with `x` lines over that job key, else a bar a job.

    UsageError for a kind, key or file name that is none; AnalysisError where the runs lack what it shows.
    """
    if kind not in KINDS:
        raise UsageError(f"--kind: expected one of {', '.join(KINDS)}; got {kind!r}")
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--output: expected a name that ends in {', '.join(FORMATS)}; got {str(path)!r}")
    if panels is not None and kind != "decoders":
        raise UsageError(f"--measures, --rows, --draft-ratio: expected none with {kind}; they are of decoders")
    if kind == "decoders":
        _save(_decoders(runs, x or TREE_KEYS[0], panels or Panels()), path)
        return
    if kind == "lengths":
        _save(_lengths(runs, x), path)
        return
    figure = _new_figure(6.4, 4)
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=_COLOURS)
    if kind == "loss-by-position":
        if x is not None:
            raise UsageError("--x: expected none with loss-by-position, whose x axis is the position; leave it out")
        _draw_lines(axes, _losses(runs))
        axes.set(xlabel="position in tokens", ylabel="loss in nats a token")
        axes.set_xscale("log", base=2)
    elif kind == "speed-by-length":
        if x is not None:
            raise UsageError("--x: expected none with speed-by-length, whose x axis is the length; leave it out")
        plain, series = _speeds_by_length(runs)
        _draw_lines(axes, series)
        if plain:
            axes.axhline(1, color="0.6", linewidth=1)
        axes.set(xlabel="output tokens", ylabel="tokens/s, relative to ar" if plain else "tokens/s of an item")
    else:
        _draw_measure(axes, runs, MEASURES[_MEASURE_OF_KIND[kind]], _AXIS_OF_KIND[kind], x)
    _open_frame(axes)
    _save(figure, path)


def _compact(svg: str) -> str:
    """The same picture in a quarter of the bytes: coordinates to a tenth of a point, each style once."""
    font = "'DejaVu Sans', sans-serif"

    def shorter(tag: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag[0])
        text = text.replace("font-size: 10px; ", "").replace(f"font-family: {font}; ", "")
        if text.startswith("<use"):  # of a tick, which has this style itself
            text = text.replace(' style="stroke: #000000; stroke-width: 0.8"', "")
        text = re.sub(r' transform="rotate\(-?0(\.0)? [^"]*\)"', "", text)
        return re.sub(r' id="[A-Za-z.0-9]+_\d+"', "", text)  # of groups; what is referred to has other names

    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", shorter, svg)
    svg = svg.replace("</style>", f"text{{font: 10px {font}}}</style>", 1)
    # The style of a line's markers, once for all of them.
    svg = re.sub(
        r'<g ([^>]*)>((?:\s*<use [^>]*?)(?P<style> style="[^"]*")/>(?:\s*<use [^>]*(?P=style)/>)*\s*</g>)',
        lambda group: f"<g {group[1]}{group['style']}>{group[2].replace(group['style'], '')}",
        svg,
    )
    lines: list[str] = []
    kept: list[bool] = []  # of each open group; those without attributes are left out
    for line in re.sub(r"\s*\n\s*", "\n", svg).splitlines():
        if line.startswith("<g") and not line.endswith("/>"):
            kept.append(line != "<g>")
        if (line != "</g>" and line != "<g>") or (line == "</g>" and kept.pop()):
            lines.append(line)
    return "\n".join(lines) + "\n"


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # takes half a second, which tables need not wait for

    return Figure(figsize=(width, height), layout="constrained")


def _open_frame(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _decoders(runs: Sequence[Run], x: str, panels: Panels) -> Figure:
    """A column a measure, a row a model and task, a line a draft method, relative to plain decoding."""
    names = decoder_measures(runs, panels.measures)
    groups = groups_of_decoders(runs, panels.rows)
    figure = _new_figure(3.2 * len(names), 3.2 if len(groups) == 1 else 2.6 * len(groups))
    all_axes = figure.subplots(len(groups), len(names), squeeze=False)
    for row, (label, together) in enumerate(groups.items()):
        for column, name in enumerate(names):
            axes = all_axes[row, column]
            measure = measure_of_task(MEASURES[name], together[0].keys.get("task"))
            series = decoder_series(together, name, x, panels.scoring) if measure else []
            if measure is None or not series:  # Dolly has no accuracy
                axes.set_axis_off()
                continue
            axes.set_prop_cycle(color=_COLOURS)
            axes.axhline(1, color="0.6", linewidth=1)
            _draw_lines(axes, series, legend=row == column == 0, caps=0)
            axes.set(title=f"{measure.title} / ar", ylabel=label if column == 0 else "")
            if row == len(groups) - 1:
                axes.set_xlabel(x)
            _open_frame(axes)
    return figure


def _lengths(runs: Sequence[Run], x: str | None) -> Figure:
    """Acceptance rates above, speed-up below: over the length of the texts, or over `x` at their full length.

    As figures 3 and 4 of TokenSwift's paper.
    """
    marks = {run: marks_of(run, parts=5) for run in runs}
    drafting = [run for run in runs if run.keys.get("draft") != "ar"]
    panels = [("acceptance rate", ("alpha", "beta")), ("speed-up over ar", ("speedup",))]
    figure = _new_figure(6.4, 6)
    for place, (label, names) in enumerate(panels):
        axes = figure.add_subplot(2, 1, place + 1)
        axes.set_prop_cycle(color=_COLOURS)
        series = [
            Series(f"{LENGTH_MEASURES[name].title} {job}".strip(), points)
            for job, together in _jobs(drafting, x)
            for name in names
            if (points := _length_points(marks, together, name, x))
        ]
        if not series:
            raise AnalysisError(
                f"{runs[0].folder}: expected drafts of one tree shape, and the same job with draft = ar beside it, "
                f"got none; {label} cannot be drawn"
            )
        _draw_lines(axes, series)
        axes.set(xlabel=x or "output tokens", ylabel=label)
        _open_frame(axes)
    return figure


def _length_points(
    marks: Mapping[Run, Mapping[int, Mark]], runs: Sequence[Run], name: str, x: str | None
) -> dict[float, list[float]]:
    points: dict[float, list[float]] = {}
    for run in runs:
        for tokens in marks[run] if x is None else [max(marks[run])]:
            at = float(tokens) if x is None else _number(run, x)
            points.setdefault(at, []).extend(length_values(marks, [run], tokens, name))
    return {at: values for at, values in points.items() if values}


def _losses(runs: Sequence[Run]) -> list[Series]:
    scores = score_runs(runs, [])
    series = []
    for label, together in _jobs(runs, None):
        line = Series(label)
        for run in together:
            for first, _, loss in scores[run].loss_by_position:
                line.points.setdefault(max(first, 1), []).append(loss)
        if line.points:
            series.append(line)
    if not series:
        raise AnalysisError(f"{runs[0].folder}: loss_by_position: {missing_reason(MEASURES['loss'])}")
    return series


def _speeds_by_length(runs: Sequence[Run]) -> tuple[bool, list[Series]]:
    """Whether plain decoding is among the runs, and a line a job: tokens/s over each 1,024 tokens of its items.

    Relative to plain decoding of the same job where that is given.
    """
    rates = {run.folder: _rates(run) for run in runs}
    relative = 0 < sum(run.keys.get("draft") == "ar" for run in runs) < len(runs)
    series = []
    for label, together in _jobs(runs, None):
        line = Series(label)
        for run in together:
            if relative and run.keys.get("draft") == "ar":
                continue
            base = next((rates[other.folder] for other in runs if is_baseline_of(other, run)), {}) if relative else None
            for place, rate in rates[run.folder].items():
                if base is None or place in base:
                    value = rate if base is None else rate / base[place]
                    line.points.setdefault(1024.0 * place[1], []).append(value)
        if line.points:
            series.append(line)
    if not series:
        raise AnalysisError(
            f"{runs[0].folder}: by_length: expected items of 1,024 tokens or more in stats.jsonl, got none"
        )
    return relative, series


def _rates(run: Run) -> dict[tuple[str, int, int], float]:
    """Tokens/s by item, number of the 1,024 tokens, and sample."""
    rates: dict[tuple[str, int, int], float] = {}
    for item in run.read_items():
        tokens, seconds = 0, 0.0
        for row in item.stats.get("by_length", []):
            if row["seconds"] > seconds:
                rates[item.id, row["tokens"] // 1024, item.sample] = (row["tokens"] - tokens) / (
                    row["seconds"] - seconds
                )
            tokens, seconds = row["tokens"], row["seconds"]
    return rates


def _draw_measure(axes: Axes, runs: Sequence[Run], measure: Measure, title: str, x: str | None) -> None:
    scores = score_runs(runs, [measure])
    series = []
    for label, together in _jobs(runs, x):
        line = Series(label)
        for run in together:
            value = scores[run].value(measure.name)
            if value is not None:
                line.points.setdefault(_number(run, x) if x else 0.0, []).append(value)
        if line.points:
            series.append(line)
    if not series:
        raise AnalysisError(f"{runs[0].folder}: {measure.name}: {missing_reason(measure)}")
    if x:
        _draw_lines(axes, series)
        axes.set(xlabel=x, ylabel=title)
        return
    for place, line in enumerate(series):
        values = line.points[0.0]
        axes.barh(place, _mean(values), xerr=standard_error(values), color=_COLOURS[0], capsize=3)
    axes.set_yticks(range(len(series)), [line.label for line in series])
    axes.invert_yaxis()
    axes.set_xlabel(title)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_lines(axes: Axes, series: Sequence[Series], legend: bool = True, caps: float = 3) -> None:
    for line in series:
        points = sorted(line.points.items())
        errors = [standard_error(values) or 0.0 for _, values in points]
        axes.errorbar(
            [x for x, _ in points],
            [_mean(values) for _, values in points],
            yerr=errors if any(errors) else None,
            marker="o",
            markersize=4,
            capsize=caps,
            label=line.label,
        )
    axes.grid(axis="y", alpha=0.3)
    if legend and len(series) > 1:
        axes.legend(frameon=False)


def _jobs(runs: Sequence[Run], x: str | None) -> list[tuple[str, list[Run]]]:
    """Runs that differ in seed and `x` alone, with what tells them from the others; one job: its name."""
    keys = [key for key in differing_keys(runs) if key not in ("seed", x)]
    jobs: dict[str, list[Run]] = {}
    for run in runs:
        label = ", ".join(f"{key} {run.shown(key)}" for key in keys if run.shown(key))
        jobs.setdefault(label or run.name, []).append(run)
    if not keys:  # one job, whatever its runs are called
        return [(runs[0].name, list(runs))]
    return list(jobs.items())


def _number(run: Run, key: str) -> float:
    text = run.value(key)
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    raise UsageError(f"--x: expected a job key with numbers, got {key!r}, which is {text!r} in {run.folder}/job.cfg")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _save(figure: Figure, path: Path) -> None:
    from matplotlib import rc_context

    settings = {"svg.hashsalt": "longhaul", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())
    try:
        with rc_context(settings):
            figure.savefig(path, metadata=metadata)
        if path.suffix.lower() == ".svg":
            path.write_text(_compact(path.read_text(encoding="utf-8")), encoding="utf-8")
    except OSError as error:
        raise AnalysisError(f"{path}: expected a file that can be written, got {error.strerror}") from None
