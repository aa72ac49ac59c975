"""Inspect trained models: every figure that applies, as SVG, PNG and one HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import check_inside, check_writable
from lmlab.core.errors import UserError
from lmlab.core.figure_style import PLAIN_STYLE, FigureFileStyle
from lmlab.core.html import Html
from lmlab.core.notebook import NotebookRecord
from lmlab.inspection.attention_maps import attention_figures
from lmlab.inspection.capture_collection import collected_capture_figures
from lmlab.inspection.capture_figures import safe_file_name
from lmlab.inspection.feed_forward_memories import feed_forward_memory_figures
from lmlab.inspection.figure_files import (
    PAGE,
    SavedFigure,
    inspection_body,
    render_inspection_page,
    saved_figure,
    write_figure_files,
)
from lmlab.inspection.head_importance import head_importance_figures
from lmlab.inspection.inspected_models import InspectedModel, make_inspected_models
from lmlab.inspection.latent_space import interpolation_figures, latent_noise_figures
from lmlab.inspection.nearest_neighbours import check_known_words, nearest_neighbour_figures
from lmlab.inspection.parse_trees import parse_tree_figures
from lmlab.inspection.surprisal import input_dependence_figures, surprisal_figures
from lmlab.inspection.training_dynamics import gradient_figures, norm_figures, retrieval_figures
from lmlab.plotting.figure import FigureSpec, RenderedFigure, render_figure
from lmlab.training.run_folder import RunFolder, TrainedModel

SHARED_FIGURES: tuple[Callable[[Sequence[InspectedModel]], list[FigureSpec]], ...] = (
    norm_figures,
    gradient_figures,
    latent_noise_figures,
    surprisal_figures,
)
"""Figure families that compare runs."""
SINGLE_RUN_FIGURES: tuple[Callable[[InspectedModel], list[FigureSpec]], ...] = (
    collected_capture_figures,
    retrieval_figures,
    head_importance_figures,
    feed_forward_memory_figures,
    attention_figures,
    parse_tree_figures,
    input_dependence_figures,
    interpolation_figures,
)
"""Figure families of one run; each returns nothing if it does not apply."""


@dataclass(frozen=True, kw_only=True)
class Inspection(NotebookRecord):
    """Result of an inspection."""

    page: Path
    figures: tuple[SavedFigure, ...]
    """The figures, in the page's order."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    suffixes: tuple[str, ...] = PLAIN_STYLE.suffixes
    """Those of each figure's files."""

    def files(self, figure: SavedFigure) -> tuple[Path, ...]:
        """Paths of a figure's files: SVG and PNG, or the formats that were asked for."""
        return tuple(self.page.parent / f"{figure.name}{suffix}" for suffix in self.suffixes)

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each figure."""
        for figure in self.figures:
            values = {name: getattr(figure, name) for name in ("run", "name", "title", "text")}
            yield {**values, "caption": figure.caption, "svg": str(self.files(figure)[0])}

    def html_body(self) -> Html:
        """The figures, those of a sentence below it."""
        return inspection_body(self.figures)

    def html_notes(self) -> Sequence[str]:
        """What could not be shown."""
        return self.notes

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the page, and each figure with its files and caption."""
        figures = []
        for figure in self.figures:
            files = {path.suffix[1:]: str(path) for path in self.files(figure)}
            figures.append(figure.as_dict() | files)
        return {"page": str(self.page), "pictures": figures, "remarks": list(self.notes)}


def inspect_models(
    models: Sequence[TrainedModel],
    *,
    out: Path | None = None,
    texts: Sequence[str] = (),
    words: Sequence[str] = (),
    progress: Callable[[str], None] = lambda title: None,
    style: FigureFileStyle = PLAIN_STYLE,
) -> Inspection:
    """Plot all figures of the runs; write them to `out` and to each run, where reports find them.

    `out` defaults to the figures folder of a single run. `texts` are the sentences shown and
    `words` those whose neighbours are shown; both default to the run's own. Figures in a `style` of
    their own go to `out` alone. Cost: a few passes over a hundred texts, plus plotting.
    """
    folder = _folder(models, out)
    subjects = make_inspected_models(models, texts)
    check_known_words(subjects, words)
    saved: list[SavedFigure] = []
    files: list[RenderedFigure] = []
    for run, spec in _with_unique_names(_figure_specs(subjects, words)):
        progress(spec.title)
        rendered = render_figure(spec, style, pdf=".pdf" in style.suffixes)
        saved.append(saved_figure(spec, rendered, run=run))
        files.append(rendered)
    notes = list(dict.fromkeys(subject.note for subject in subjects if subject.note))
    page = render_inspection_page(saved, runs=[subject.name for subject in subjects], notes=notes)
    write_figure_files(folder, saved, files, page=page, suffixes=style.suffixes)
    if style == PLAIN_STYLE:
        notes += _copy_to_runs(subjects, saved, files, folder)
    return Inspection(
        page=folder / PAGE, figures=tuple(saved), notes=tuple(notes), suffixes=style.suffixes
    )


def _folder(models: Sequence[TrainedModel], out: Path | None) -> Path:
    if not models:
        raise UserError("there is nothing to inspect; give at least one run.")
    if len({model.path.resolve() for model in models}) < len(models):
        raise UserError("a run is given twice; name each run once (lmlab.wrap takes a name=).")
    if out is None and len(models) > 1:
        raise UserError("figures of several runs need a folder of their own; give --out DIR.")
    if out is None and not models[0].stored:
        raise UserError(f"{models[0].name} is no run with a folder for figures; give --out DIR.")
    folder = RunFolder(models[0].path).figures if out is None else out
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the name of a folder to write figures to.")
    if out is not None:
        check_writable(folder)
        return folder
    try:
        check_inside(folder, models[0].path)
        check_writable(folder)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}, or give another one by --out DIR.") from error
    return folder


def _figure_specs(
    subjects: Sequence[InspectedModel], words: Sequence[str]
) -> Iterator[tuple[str, FigureSpec]]:
    """Every figure with its run; no run if it compares several."""
    several = len(subjects) > 1
    for family in SHARED_FIGURES:
        for spec in family(subjects):
            yield ("" if several else subjects[0].name), spec
    families: list[Callable[[InspectedModel], list[FigureSpec]]] = [*SINGLE_RUN_FIGURES]
    families.append(partial(nearest_neighbour_figures, words=words))
    for subject in subjects:
        prefix = f"{safe_file_name(subject.name)}-" if several else ""
        for single_family in families:
            for spec in single_family(subject):
                yield subject.name, replace(spec, name=f"{prefix}{spec.name}")


def _with_unique_names(specs: Iterator[tuple[str, FigureSpec]]) -> Iterator[tuple[str, FigureSpec]]:
    """The figures, with a number appended to repeated names."""
    counts: Counter[str] = Counter()
    for run, spec in specs:
        counts[spec.name] += 1
        number = counts[spec.name]
        yield run, spec if number == 1 else replace(spec, name=f"{spec.name}-again-{number}")


def _copy_to_runs(
    subjects: Sequence[InspectedModel],
    saved: Sequence[SavedFigure],
    files: Sequence[RenderedFigure],
    folder: Path,
) -> list[str]:
    """Write each run's own and shared figures to its folder, unless `folder` is that one."""
    notes = []
    for subject in subjects:
        if not subject.model.stored:
            continue
        figures = RunFolder(subject.model.path).figures
        if figures.resolve() == folder.resolve():
            continue
        pairs = zip(saved, files, strict=True)
        selected = [(figure, file) for figure, file in pairs if figure.run in (subject.name, "")]
        try:
            check_inside(figures, subject.model.path)
            write_figure_files(
                figures, [figure for figure, _ in selected], [file for _, file in selected]
            )
        except UserError as error:
            notes.append(f"Reports will not show the figures of {subject.name}: {error}")
    return notes
