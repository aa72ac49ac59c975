"""The notes' pictures of DLM5, 9, 13 and 30 (003), drawn from the finished runs of run.py.

    python benchmarks/notes/pictures.py --runs runs/notes [--only TEXT]
    python benchmarks/notes/pictures.py --write docs/notes.md

Each is a figure of `lmlab inspect RUN`, kept in benchmarks/results/notes/pictures/.
DLM13 is drawn after epochs 10 and 20 of its training, from the snapshots in RUN/epochs/.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from row_tables import replace_between
from rows import RECORDS

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiment import RESULTS, Experiment

FOLDER = f"{RECORDS}/pictures"
TEXT = "a man in a blue shirt is standing on a ladder cleaning a window"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of the notes and where ours comes from."""

    label: str
    training: str
    """Name of the training."""
    figure: str
    """Name of its figure in `lmlab inspect`."""
    about: str
    snapshot: int = 0
    """The epoch, if it is not the last."""

    @property
    def name(self) -> str:
        return self.label.lower().replace(", ", "-").replace(" ", "-")

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.name}.svg"

    def run(self, runs: Path) -> Path:
        folder = runs / self.training
        return folder / "epochs" / str(self.snapshot) if self.snapshot else folder


def aligned(epoch: int) -> Picture:
    return Picture(
        label=f"DLM13, E{epoch}",
        training="multi30k-l20.remix-aligned.epochs-30.seed0",
        figure="parent-prior",
        about="prior over the parent of each position",
        snapshot=epoch,
    )


PICTURES = (
    Picture(
        label="DLM5, E130",
        training="multi30k-l20.parent-prior.epochs-130.seed0",
        figure="parent-prior",
        about="prior over the parent of each position",
    ),
    Picture(
        label="DLM9, E30",
        training="multi30k-l20.independent.states-400_epochs-30.seed0",
        figure="words-of-the-states",
        about="the most probable tokens of the states",
    ),
    aligned(10),
    aligned(20),
    Picture(
        label="DLM30, E30",
        training="multi30k-l20.slots.epochs-30.seed0",
        figure="slot-prior",
        about="prior over the position that each slot attends to",
    ),
)


def draw(picture: Picture, runs: Path, records: Path) -> None:
    """Inspect the run and keep the picture's figure."""
    import lmlab

    run = picture.run(runs)
    with tempfile.TemporaryDirectory() as folder:
        inspection = lmlab.inspect([run], texts=[TEXT], out=folder)
        by_name = {figure.name: figure for figure in inspection.figures}
        if picture.figure not in by_name:
            raise SystemExit(f"{run} has no figure {picture.figure}, only {', '.join(by_name)}.")
        svg, _ = inspection.files(by_name[picture.figure])
        path = records / picture.file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(svg, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def experiments() -> list[Experiment]:
    """The pictures, each after its training."""
    return [
        Experiment(
            name=f"picture.{picture.name}",
            group="pictures",
            command=(
                "benchmarks/notes/pictures.py",
                *("--runs", f"{{runs}}/{RECORDS}", "--records", "{records}"),
                *("--only", picture.name),
            ),
            minutes=1,
            record=picture.file,
            needs=(picture.training,),
        )
        for picture in PICTURES
    ]


def markdown() -> str:
    """A line for each picture."""
    lines = ["| the notes' picture | what it shows | ours |", "|---|---|---|"]
    for picture in PICTURES:
        drawn = (RESULTS / picture.file).exists()
        ours = f"[picture](../benchmarks/results/{picture.file})" if drawn else "not run"
        lines.append(f"| {picture.label} | {picture.about} | {ours} |")
    return "\n".join(lines)


def write_into(page: Path) -> None:
    """Replace the table of the pictures in a page."""
    replace_between(page, "<!-- pictures -->", "<!-- end of pictures -->", markdown())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/notes"), help="the runs of run.py")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--only", default="", help="only pictures whose name contains this text")
    parser.add_argument("--write", type=Path, help="update the table in this page, draw nothing")
    options = parser.parse_args()
    if options.write:
        write_into(options.write)
        return
    for picture in PICTURES:
        if options.only in picture.name:
            draw(picture, options.runs, options.records)


if __name__ == "__main__":
    main()
