"""Scores, significance, tables and figures from longhaul run folders.

    import longhaul_analysis as la
    rows = la.frame("runs/mine")                                 # pandas, a row an item
    runs = la.open_runs(["runs/mine", "runs/sweep"])
    scores = la.score_runs(runs, la.choose_measures(["bleu"]))   # by run

Definitions: `measures`, `scores`, `significance`. The command line: `longhaul-analysis --help`.
"""

from typing import TYPE_CHECKING, Any

from .errors import AnalysisError, UsageError
from .figures import draw_figure
from .lengths import LENGTH_MEASURES, make_length_table
from .measures import MEASURES, Measure, Scoring, choose_measures
from .runs import STATISTICS, Item, Run, open_runs
from .scores import RunScores, Score, score_run, score_runs
from .significance import Comparison, compare_runs, item_error, losses
from .tables import Table, make_table
from .windows import WINDOW_MEASURES, make_window_table

if TYPE_CHECKING:
    from .export import export_runs, frame

__all__ = [
    "LENGTH_MEASURES",
    "MEASURES",
    "STATISTICS",
    "WINDOW_MEASURES",
    "AnalysisError",
    "Comparison",
    "Item",
    "Measure",
    "Run",
    "RunScores",
    "Score",
    "Scoring",
    "Table",
    "UsageError",
    "choose_measures",
    "compare_runs",
    "draw_figure",
    "export_runs",
    "frame",
    "item_error",
    "losses",
    "make_length_table",
    "make_table",
    "make_window_table",
    "open_runs",
    "score_run",
    "score_runs",
]


def __getattr__(name: str) -> Any:
    """What needs pandas is loaded when it is asked for."""
    if name in ("export_runs", "frame"):
        from . import export

        return getattr(export, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
