"""`lmlab translate RUN [FILE | - | TEXT...]`: machine translation."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.options import (
    BeamThresholdOption,
    BeamWidthOption,
    ErrorsOption,
    JsonLinesOption,
    LengthPenaltyOption,
    MaxLengthOption,
    MethodOption,
    NoVerify,
    RawOption,
    RunArgument,
    SamplesOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    UtilityOption,
)
from lmlab.cli.output import one_line, print, print_json_lines, text_progress_bar, warn
from lmlab.cli.text_inputs import FileOption, TextInput, TextOption, file_or_texts, read_texts
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.data.readers import Example
    from lmlab.sampling.translation import Translation


def translate(
    run: RunArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="A file with one source per line (of two columns the first), - or nothing "
            "for standard input, or texts themselves.",
        ),
    ] = None,
    text: TextOption = None,
    named_file: FileOption = None,
    method: MethodOption = "beam",
    beam: BeamWidthOption = None,
    n_best: Annotated[int, typer.Option(help="Number of translations per text, best first.")] = 1,
    length_penalty: LengthPenaltyOption = None,
    within: BeamThresholdOption = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="W", help="Words that must occur; for beam.")
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(metavar="W", help="Words that must not occur; for beam.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="T", help="Prefix of every translation; for beam.")
    ] = None,
    samples: SamplesOption = None,
    utility: UtilityOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = 0,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the attention over each source as SVG to this folder."
        ),
    ] = None,
    as_json: JsonLinesOption = False,
    raw: RawOption = False,
    errors: ErrorsOption = "strict",
    no_verify: NoVerify = False,
) -> None:
    """Translate texts, one per line, in order; empty lines stay empty.

    Of a line with two columns (source, tab, reference) the source is translated. A text longer than
    the model's window is truncated, and a warning names its line.
    """
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give a folder to write figures to.")

    file, given = file_or_texts(arguments, text, named_file)
    file = "-" if file is None and not given else file
    texts = read_texts(file, given, errors, instead="--text", sources=True)

    from lmlab.api import load

    model = load(run)
    texts.count_unknown_words(model.model.effective_source_tokenizer)
    lines: deque[Example] = deque()
    found = model.translate_stream(
        _sources(texts, lines),
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
        from lmlab.inspection.source_attention import with_source_attention_figures

        found = with_source_attention_figures(model.model, found, draw)
    with text_progress_bar(
        f"translating {texts.name}", texts.report, texts.size, unit="texts"
    ) as done:
        numbered = _with_lines(found, lines, texts.unit, done)
        if as_json:
            print_json_lines({"line": line, **each.as_dict()} for line, each in numbered)
        else:
            print_translations((each for _, each in numbered), several=n_best > 1)
    texts.warn_references()
    texts.warn_unknown_words()


def _sources(texts: TextInput, lines: deque[Example]) -> Iterator[list[str]]:
    """The sources in chunks; their lines wait in `lines`."""
    for chunk in texts.chunks():
        lines.extend(chunk)
        yield [line.text for line in chunk]


def _with_lines(
    found: Iterator[Translation], lines: deque[Example], unit: str, done: Callable[[int], None]
) -> Iterator[tuple[int | None, Translation]]:
    """Translations with their line numbers, which warnings name."""
    for each in found:
        number = lines.popleft().line
        for note in each.notes:
            warn(f"{unit} {number}: {note}")
        done(1)
        yield number, each


def print_translations(found: Iterator[Translation], *, several: bool) -> None:
    """Print a line per translation; n-best lists with log-probabilities, an empty line between."""
    for number, each in enumerate(found):
        if several and number:
            print()
        for one in each.candidates:
            text = one_line(one.text)
            print(f"{one.log_prob:.4f}\t{text}" if several else text)
        if not each.candidates:
            print()
        sys.stdout.flush()  # do not keep the reader of a pipe waiting
