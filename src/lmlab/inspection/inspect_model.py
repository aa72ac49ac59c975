"""Look inside runs: every picture that what they are allows, as SVG, PNG and one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lmlab.core.atomic_files import (
    check_inside,
    check_writable,
)
from lmlab.core.errors import UserError
from lmlab.inspection.attention_maps import attention_pictures
from lmlab.inspection.capture_collection import capture_family
from lmlab.inspection.capture_figures import file_name
from lmlab.inspection.feed_forward_memories import memory_pictures
from lmlab.inspection.figure_files import (
    PAGE,
    Shot,
    shot_of,
    write_shots,
)
from lmlab.inspection.head_importance import importance_pictures
from lmlab.inspection.inspected_models import (
    Subject,
    make_subjects,
)
from lmlab.inspection.inspection_page import inspection_page
from lmlab.inspection.latent_space import (
    interpolation_pictures,
    noise_pictures,
)
from lmlab.inspection.nearest_neighbours import (
    check_words,
    neighbour_pictures,
)
from lmlab.inspection.parse_trees import tree_pictures
from lmlab.inspection.retrieval_curves import lookup_pictures
from lmlab.inspection.surprisal import (
    sight_pictures,
    surprisal_pictures,
)
from lmlab.inspection.training_dynamics import (
    gradient_pictures,
    norm_pictures,
)
from lmlab.plotting.figure import (
    Picture,
    render,
)
from lmlab.training.run_folder import (
    Model,
    RunFolder,
)

TOGETHER: tuple[Callable[[Sequence[Subject]], list[Picture]], ...] = (
    norm_pictures,
    gradient_pictures,
    noise_pictures,
    surprisal_pictures,
)
"""Families that set runs beside each other."""
ALONE: tuple[Callable[[Subject], list[Picture]], ...] = (
    capture_family,
    lookup_pictures,
    importance_pictures,
    memory_pictures,
    attention_pictures,
    tree_pictures,
    sight_pictures,
    interpolation_pictures,
)
"""Families that look at one run. A family gives nothing where the run has not what it needs."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was written."""

    page: Path
    shots: tuple[Shot, ...]
    """The pictures, in the page's order."""
    remarks: tuple[str, ...] = ()
    """What the person should know besides."""

    def files(self, shot: Shot) -> tuple[Path, Path]:
        """The SVG and the PNG of a picture."""
        folder = self.page.parent
        return folder / f"{shot.name}.svg", folder / f"{shot.name}.png"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the page, and each picture with its files and how to read it."""
        pictures = []
        for shot in self.shots:
            svg, png = self.files(shot)
            pictures.append(shot.as_dict() | {"svg": str(svg), "png": str(png)})
        return {"page": str(self.page), "pictures": pictures, "remarks": list(self.remarks)}


def inspect_models(
    models: Sequence[Model],
    *,
    out: Path | None = None,
    texts: Sequence[str] = (),
    words: Sequence[str] = (),
    progress: Callable[[str], None] = lambda title: None,
) -> Inspection:
    """Draw all that the runs have, write it to `out` and, where reports find it, to each run.

    Without `out` it goes to the one run's own figures. `texts` are the sentences that are shown and
    `words` those whose neighbours are; some of the run's own without. Cost: some passes over a
    hundred texts, and a moment for each picture.
    """
    folder = _folder(models, out)
    subjects = make_subjects(models, texts)
    check_words(subjects, words)
    shots: list[Shot] = []
    pngs: list[bytes] = []
    for run, picture in _unique(_pictures(subjects, words)):
        progress(picture.title)
        drawn = render(picture)
        shots.append(shot_of(picture, drawn, run=run))
        pngs.append(drawn.png)
    remarks = list(dict.fromkeys(each.remark for each in subjects if each.remark))
    page = inspection_page(shots, runs=[each.name for each in subjects], remarks=remarks)
    write_shots(folder, shots, pngs, page=page)
    remarks += _keep_for_reports(subjects, shots, pngs, folder)
    return Inspection(page=folder / PAGE, shots=tuple(shots), remarks=tuple(remarks))


def _folder(models: Sequence[Model], out: Path | None) -> Path:
    if not models:
        raise UserError("there is nothing to inspect; give at least one run.")
    if len({model.path.resolve() for model in models}) < len(models):
        raise UserError("a run is given twice; name each run once (lmlab.wrap takes a name=).")
    if out is None and len(models) > 1:
        raise UserError("pictures of several runs need a folder of their own; give --out DIR.")
    if out is None and not models[0].stored:
        raise UserError(f"{models[0].name} is no run with a folder for pictures; give --out DIR.")
    folder = RunFolder(models[0].path).figures if out is None else out
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the name of a folder to write pictures to.")
    if out is not None:
        check_writable(folder)
        return folder
    try:
        check_inside(folder, models[0].path)
        check_writable(folder)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}, or give another one by --out DIR.") from error
    return folder


def _pictures(subjects: Sequence[Subject], words: Sequence[str]) -> Iterator[tuple[str, Picture]]:
    """Every picture with the run that it shows; none named where it shows several."""
    several = len(subjects) > 1
    for family in TOGETHER:
        for picture in family(subjects):
            yield ("" if several else subjects[0].name), picture
    families: list[Callable[[Subject], list[Picture]]] = [*ALONE]
    families.append(partial(neighbour_pictures, words=words))
    for subject in subjects:
        prefix = f"{file_name(subject.name)}-" if several else ""
        for alone in families:
            for picture in alone(subject):
                yield subject.name, replace(picture, name=f"{prefix}{picture.name}")


def _unique(pictures: Iterator[tuple[str, Picture]]) -> Iterator[tuple[str, Picture]]:
    """The pictures, a number added to a name that came before."""
    seen: Counter[str] = Counter()
    for run, picture in pictures:
        seen[picture.name] += 1
        again = seen[picture.name]
        yield run, picture if again == 1 else replace(picture, name=f"{picture.name}-again-{again}")


def _keep_for_reports(
    subjects: Sequence[Subject], shots: Sequence[Shot], pngs: Sequence[bytes], folder: Path
) -> list[str]:
    """In each run's figures its own pictures and those it shares, unless that was done just now."""
    remarks = []
    for subject in subjects:
        if not subject.model.stored:
            continue
        figures = RunFolder(subject.model.path).figures
        if figures.resolve() == folder.resolve():
            continue
        pairs = zip(shots, pngs, strict=True)
        own = [(shot, png) for shot, png in pairs if shot.run in (subject.name, "")]
        try:
            check_inside(figures, subject.model.path)
            write_shots(figures, [shot for shot, _ in own], [png for _, png in own])
        except UserError as error:
            remarks.append(f"Reports will not show the pictures of {subject.name}: {error}")
    return remarks
