"""Ablation study results as tables (terminal, Markdown, LaTeX) and as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure as Canvas

from lmlab.core.atomic_files import write_text
from lmlab.core.figure_style import PLAIN_STYLE, FigureFileStyle
from lmlab.experiments.ablation import Ablation, AblationRow, SeedMean
from lmlab.experiments.result_tables import ResultTable
from lmlab.plotting.figure import FOREGROUND_COLOUR, FigureSpec, add_legend, colour, write_figures
from lmlab.training.training_logs import format_exact_duration

MISSING = "–"


@dataclass(frozen=True)
class AblationColumn:
    """A table column: heading, cell text of a row, and whether it is numeric."""

    heading: str
    show: Callable[[AblationRow], str]
    number: bool = True


def ablation_columns(ablation: Ablation) -> tuple[AblationColumn, ...]:
    """Columns: disabled terms, losses and differences at the reported epochs, size, time."""
    columns = [
        AblationColumn(
            "off", lambda row: ",".join(map(str, row.disabled)) or "intact", number=False
        ),
        AblationColumn("terms", lambda row: _terms(row, ablation.switches), number=False),
    ]
    for epoch in ablation.report_epochs:
        columns += [
            AblationColumn(f"loss E{epoch}", partial(_loss, epoch=epoch)),
            AblationColumn(f"difference E{epoch}", partial(_difference, epoch=epoch)),
        ]
    columns += [
        AblationColumn("parameters", lambda row: f"{row.parameters:,}"),
        AblationColumn("time", lambda row: format_exact_duration(row.seconds)),
    ]
    return tuple(columns)


def _terms(row: AblationRow, switches: Sequence[str]) -> str:
    return ", ".join(switches[number] for number in row.disabled)


def _loss(row: AblationRow, epoch: int) -> str:
    if row.failed and epoch not in row.losses:
        return "not finite"
    return _number(row.losses.get(epoch), "{:.4f}")


def _difference(row: AblationRow, epoch: int) -> str:
    return _number(row.differences.get(epoch), "{:+.4f}")


def _number(result: SeedMean | None, template: str) -> str:
    if result is None:
        return MISSING
    spread = "" if result.standard_deviation is None else f" ± {result.standard_deviation:.4f}"
    return template.format(result.mean) + spread


def ablation_caption(ablation: Ablation) -> str:
    """Table caption."""
    seeds = "one seed" if ablation.seeds == 1 else f"{ablation.seeds} seeds"
    spread = "" if ablation.seeds == 1 else ", ± the standard deviation over them"
    intact = next((row for row in ablation.rows if row.intact), None)
    against = (
        "the intact system" if intact is None or not intact.disabled else f"{intact.terms} off"
    )
    text = (
        f"{ablation.system} on {ablation.corpus}, {ablation.split} split: nats per token "
        f"after the epochs E, {seeds}{spread}; differences to {against} with the same seed."
    )
    return text if ablation.finished else f"{text} Not finished yet."


def ablation_table(ablation: Ablation) -> ResultTable:
    """The table of an ablation."""
    columns = ablation_columns(ablation)
    return ResultTable(
        caption=ablation_caption(ablation),
        headings=[column.heading for column in columns],
        numbers=[column.number for column in columns],
        rows=[[column.show(row) for column in columns] for row in ablation.rows],
        bold=[row.intact for row in ablation.rows],
        notes=ablation.notes,
    )


def ablation_figure(ablation: Ablation) -> FigureSpec:
    """Plot each set's difference to the intact system: left of the line is better."""
    rows = [row for row in ablation.rows if row.differences]
    return FigureSpec(
        name="ablation",
        title=f"Terms of {ablation.system} switched off",
        caption="Each point is the loss without those terms minus the intact system's; left "
        "of the line the system is better without them. Bars are the standard "
        "deviation over seeds, small points the seeds.",
        draw=partial(_draw, ablation=ablation, rows=rows),
        height=1.0 + 0.32 * max(len(rows), 1),
    )


def _draw(canvas: Canvas, ablation: Ablation, rows: Sequence[AblationRow]) -> None:
    axes = canvas.subplots()
    axes.axvline(0, color=FOREGROUND_COLOUR, linewidth=1)
    for index, epoch in enumerate(ablation.report_epochs):
        shift = 0.25 * (index - (len(ablation.report_epochs) - 1) / 2)
        for row_index, row in enumerate(rows):
            difference = row.differences.get(epoch)
            if difference is None:
                continue
            y = row_index + shift
            seeds = _seed_differences(ablation, row, epoch)
            axes.plot(seeds, [y] * len(seeds), ".", color=colour(index), alpha=0.5, markersize=4)
            axes.errorbar(
                difference.mean,
                y,
                xerr=difference.standard_deviation,
                fmt="o",
                color=colour(index),
                markersize=5,
                capsize=2,
                label=f"epoch {epoch}" if row_index == 0 else None,
            )
    axes.set_yticks(range(len(rows)), [f"{row.terms} off" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("loss minus the intact system's, nats per token")
    if len(ablation.report_epochs) > 1:
        add_legend(axes)


def _seed_differences(ablation: Ablation, row: AblationRow, epoch: int) -> list[float]:
    """The row's differences by seed."""
    intact = next(other.disabled for other in ablation.rows if other.intact)
    loss = {(trial.disabled, trial.seed): trial.loss_at(epoch) for trial in ablation.trials}
    pairs = [(loss.get((row.disabled, s)), loss.get((intact, s))) for s in range(ablation.seeds)]
    return [a - b for a, b in pairs if a is not None and b is not None]


def write_ablation_tables(ablation: Ablation, style: FigureFileStyle = PLAIN_STYLE) -> None:
    """Write ablation.md, ablation.tex and the figure next to ablation.json."""
    if not ablation.rows:
        return  # stopped before the first training was done
    table = ablation_table(ablation)
    write_text(ablation.path / "ablation.md", table.markdown())
    write_text(ablation.path / "ablation.tex", table.latex())
    if any(row.differences for row in ablation.rows):
        write_figures(ablation.path, [ablation_figure(ablation)], style)
