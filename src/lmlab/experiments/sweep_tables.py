"""Results of a sweep as files: a table (Markdown, LaTeX, CSV) and figures (SVG, PNG)."""

from __future__ import annotations

from lmlab.core.atomic_files import write_text
from lmlab.core.figure_style import PLAIN_STYLE, FigureFileStyle
from lmlab.experiments.result_tables import ResultTable
from lmlab.experiments.search_space import short_value
from lmlab.experiments.sweep_figures import importance_figure, parallel_coordinates_figure
from lmlab.experiments.sweep_results import Sweep, Trial
from lmlab.experiments.validation_metric import LOSS
from lmlab.plotting.figure import FigureSpec, write_figures
from lmlab.training.training_logs import format_exact_duration

MISSING = "–"


def sweep_table(sweep: Sweep) -> ResultTable:
    """The trials, best first."""
    value = "loss" if sweep.select == LOSS else sweep.select
    several = len(sweep.seeds) > 1
    return ResultTable(
        caption=sweep_caption(sweep),
        headings=["trial", *sweep.varied, value, "state", "parameters", "time"],
        numbers=[True, *(True for _ in sweep.varied), True, False, True, True],
        rows=[_row(sweep, trial, several) for trial in sweep.trials],
        bold=[trial is sweep.best for trial in sweep.trials],
        notes=[*_importance_notes(sweep), *sweep.notes],
    )


def _row(sweep: Sweep, trial: Trial, several: bool) -> list[str]:
    value = MISSING if trial.value is None else f"{trial.value:.4f}"
    if trial.value is None and trial.losses and trial.state == "pruned":
        value = f"({trial.losses[-1]:.4f})" if sweep.select == LOSS else MISSING
    if several and trial.spread is not None:
        value += f" ± {trial.spread:.4f}"
    return [
        str(trial.number),
        *(short_value(trial.point[name]) for name in sweep.varied),
        value,
        trial.state,
        MISSING if trial.parameters is None else f"{trial.parameters:,}",
        format_exact_duration(trial.seconds) if trial.seconds else MISSING,
    ]


def sweep_caption(sweep: Sweep) -> str:
    """What the table shows."""
    what = (
        f"best validation loss in {sweep.unit or 'nats per token'}"
        if sweep.select == LOSS
        else f"{sweep.select} on the validation split"
    )
    seeds = "one seed" if len(sweep.seeds) == 1 else f"mean of {len(sweep.seeds)} seeds"
    spread = "" if len(sweep.seeds) == 1 else ", ± the standard deviation over them"
    pruned = any(trial.state == "pruned" for trial in sweep.trials)
    brackets = "; in brackets the last loss of a pruned trial" if pruned else ""
    text = f"{', '.join(sweep.systems)} on {sweep.corpus}: {what}, {seeds}{spread}{brackets}."
    return text if sweep.finished else f"{text} Not finished yet."


def _importance_notes(sweep: Sweep) -> list[str]:
    if sweep.importances is None:
        return []
    shares = [f"{name} {share:.0%}" for name, share in sweep.importances.shares.items()]
    if sweep.importances.interactions is not None:
        shares.append(f"interactions {sweep.importances.interactions:.0%}")
    method = f"{sweep.importances.method}: {sweep.importances.explanation}"
    return [f"Importance ({method}): {', '.join(shares)}."]


def sweep_figures(sweep: Sweep) -> list[FigureSpec]:
    """The figures of a sweep; none before a trial has finished."""
    if sweep.best is None:
        return []
    importance = [importance_figure(sweep)] if sweep.importances is not None else []
    return [parallel_coordinates_figure(sweep), *importance]


def write_sweep_tables(sweep: Sweep, style: FigureFileStyle = PLAIN_STYLE) -> None:
    """Write the table and figures beside sweep.json."""
    if sweep.best is None:
        return  # nothing has finished yet
    table = sweep_table(sweep)
    texts = {"sweep.md": table.markdown(), "sweep.tex": table.latex(), "sweep.csv": table.csv()}
    write_figures(sweep.path, sweep_figures(sweep), style)
    for name, text in texts.items():
        write_text(sweep.path / name, text)
