"""`lmlab translate RUN [FILE | -]`."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import Errors, JsonLines, Run
from lmlab.cli.output import print_json_lines
from lmlab.cli.translation_options import (
    BeamWidth,
    LengthPenalty,
    MaxLength,
    Method,
    Samples,
    Seed,
    Temperature,
    TopK,
    TopP,
    Utility,
    Within,
)
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.sampling.translating import Translation

AT_ONCE = 256
"""Lines that are read ahead, to be gathered by length."""
BLOCK = 65536


def translate(
    run: Run,
    file: Annotated[
        str, typer.Argument(metavar="[FILE | -]", help="A text a line; - is standard input.")
    ] = "-",
    text: Annotated[
        list[str] | None, typer.Option(metavar="T", help="A text; may be given several times.")
    ] = None,
    method: Method = "beam",
    beam: BeamWidth = None,
    n_best: Annotated[int, typer.Option(help="Translations of each text, best first.")] = 1,
    length_penalty: LengthPenalty = None,
    within: Within = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="W", help="Words that must stand there; for beam.")
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(metavar="W", help="Words that must not; for beam.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="T", help="How each translation begins; for beam.")
    ] = None,
    samples: Samples = None,
    utility: Utility = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    max_length: MaxLength = None,
    seed: Seed = 0,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it looked in each text, as SVG, into this folder."),
    ] = None,
    as_json: JsonLines = False,
    errors: Errors = "strict",
) -> None:
    """Translate texts, a line each, in their order; an empty line stays one.

    A text that is longer than the model takes is cut, and a warning names its line.
    """
    if text and file != "-":
        raise UserError("give what to translate, and only one of: a FILE, - or --text.")
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give one to write pictures into.")

    from lmlab.data.lines import check_errors

    check_errors(errors)
    chunks = iter([list(text)]) if text else lines_of(file, errors)

    from lmlab.api import load

    model = load(run)
    found = model.translate_stream(
        chunks,
        method=method,
        best=n_best,
        beam=beam,
        length_penalty=length_penalty,
        within=within,
        required=tuple(require or ()),
        banned=tuple(ban or ()),
        prefix=prefix,
        samples=samples,
        utility=utility,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_length=max_length,
        seed=seed,
    )
    if draw is not None:
        from lmlab.diagnostics.source_picture import draw_all

        found = draw_all(model.model, found, draw)
    found = with_warnings(found, "text" if text else "line")
    if as_json:
        print_json_lines(each.as_dict() for each in found)
    else:
        print_translations(found, several=n_best > 1)


def with_warnings(found: Iterator[Translation], unit: str) -> Iterator[Translation]:
    """Translations as they come; what is not as was asked for is told on standard error."""
    for number, each in enumerate(found, 1):
        for note in each.notes:
            print(f"warning: {unit} {number}: {note}", file=sys.stderr)
        yield each


def print_translations(found: Iterator[Translation], *, several: bool) -> None:
    """A line for each, or of several with their log-probability before them and a line between."""
    for number, each in enumerate(found):
        if several and number:
            print()
        for one in each.written:
            shown = one.text.replace("\n", "\\n")
            print(f"{one.log_prob:.4f}\t{shown}" if several else shown)
        if not each.written:
            print()
        sys.stdout.flush()  # whoever waits at the other end of a pipe has waited long enough


def lines_of(file: str, errors: str) -> Iterator[list[str]]:
    """The lines of a file or of standard input, some at a time, empty ones kept.

    From a pipe no more is waited for than is there: a line that came is translated before the next.
    """
    if file == "-":
        return _lines(sys.stdin.fileno(), "standard input", errors, waits=True)
    _check_file(Path(file))
    return _lines(os.open(file, os.O_RDONLY), file, errors, waits=False)


def _check_file(path: Path) -> None:
    from lmlab.data.lines import is_gzip

    if not path.exists():
        raise UserError(f"there is no file {path}; check the path, or give a text by --text.")
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file with a text a line.")
    if path.is_file() and is_gzip(path):
        raise UserError(
            f"{path} is compressed; unpack it first, as in gunzip -c {path} | lmlab translate RUN."
        )


def _lines(descriptor: int, name: str, errors: str, *, waits: bool) -> Iterator[list[str]]:
    number = 0
    for raw in _raw_lines(descriptor, waits=waits):
        lines = []
        for line in raw:
            number += 1
            lines.append(_decoded(line, name, number, errors))
        yield lines
    if not number:
        raise UserError(f"{name} holds no text; give at least one line.")


def _raw_lines(descriptor: int, *, waits: bool) -> Iterator[list[bytes]]:
    """Lines as they come: all that are there, and no more than are gathered at once."""
    rest, lines = b"", []
    while block := os.read(descriptor, BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        lines += whole
        more = not waits or bool(select.select([descriptor], [], [], 0)[0])
        while len(lines) >= AT_ONCE or (lines and not more):
            yield lines[:AT_ONCE]
            lines = lines[AT_ONCE:]
    lines += [rest] if rest else []
    for first in range(0, len(lines), AT_ONCE):
        yield lines[first : first + AT_ONCE]


def _decoded(line: bytes, name: str, number: int, errors: str) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8", errors).strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: byte 0x{line[error.start]:02x} at place {error.start + 1} is "
            "not UTF-8; convert it, or replace bad bytes with --errors replace."
        ) from None
