"""`lmlab translate RUN [FILE | - | TEXT...]`: machine translation, n-best, word constraints."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.large_files import OutOption, file_of, take_file_options, write_file
from lmlab.cli.options import JsonLinesOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_json_lines, warn
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import FileOption, TextInput, TextOption, file_or_texts, read_texts
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import generation as verbs
from lmlab.verbs import large_files

if TYPE_CHECKING:
    from lmlab.data.readers import Example
    from lmlab.sampling.translation import Translation


@terminal(verbs.translate, large_files.translate_file)
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
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the attention over each source as SVG to this folder."
        ),
    ] = None,
    out: OutOption = None,
    as_json: JsonLinesOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    best: int,
    **options: Any,
) -> None:
    """Of a line with two columns (source, tab, reference) the source is translated.

    A text longer than the model's window is truncated, and a warning names its line.
    """
    if draw is not None and draw.exists() and not draw.is_dir():
        raise UserError(f"{draw} is not a folder; give a folder to write figures to.")

    of_file = take_file_options(options, out, errors)
    if out is not None:
        path = file_of(arguments, text, named_file, {"--draw": draw})
        of_file |= {"best": best, **options}
        write_file(large_files.translate_file, run, path, out, as_json=as_json, **of_file)
        return
    file, given = file_or_texts(arguments, text, named_file)
    file = "-" if file is None and not given else file
    texts = read_texts(file, given, errors, instead="--text", sources=True)

    from lmlab.verbs.loading import load

    model = load(run)
    texts.count_unknown_words(model.model.effective_source_tokenizer)
    lines: deque[Example] = deque()
    translations = model.translate_stream(_sources(texts, lines), best=best, **options)
    if draw is not None:
        from lmlab.inspection.source_attention import with_source_attention_figures

        translations = with_source_attention_figures(model.model, translations, draw)
    with texts.progress_bar("translating") as done:
        numbered = _with_lines(translations, lines, texts.unit, done)
        if as_json:
            print_json_lines({"line": line, **item.as_dict()} for line, item in numbered)
        else:
            print_translations((item for _, item in numbered), several=best > 1)
    texts.warn_references()
    texts.warn_unknown_words()


def _sources(texts: TextInput, lines: deque[Example]) -> Iterator[list[str]]:
    """The sources in chunks; their lines wait in `lines`."""
    for chunk in texts.chunks():
        lines.extend(chunk)
        yield [line.text for line in chunk]


def _with_lines(
    translations: Iterator[Translation],
    lines: deque[Example],
    unit: str,
    done: Callable[[int], None],
) -> Iterator[tuple[int | None, Translation]]:
    """Translations with their line numbers, which warnings name."""
    for translation in translations:
        number = lines.popleft().line
        for note in translation.notes:
            warn(f"{unit} {number}: {note}")
        done(1)
        yield number, translation


def print_translations(translations: Iterator[Translation], *, several: bool) -> None:
    """Print a line per translation; n-best lists with log-probabilities, an empty line between."""
    for number, translation in enumerate(translations):
        if several and number:
            print()
        for candidate in translation.candidates:
            text = one_line(candidate.text)
            print(f"{candidate.log_prob:.4f}\t{text}" if several else text)
        if not translation.candidates:
            print()
        sys.stdout.flush()  # do not keep the reader of a pipe waiting
