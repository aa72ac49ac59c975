"""`lmlab encode RUN [FILE | - | TEXT...] --out FILE.npz`: vectors of texts and tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, LanguageOption, NoVerify, RunArgument
from lmlab.cli.output import print, print_json
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextOption,
    TextsOrFileArgument,
    file_or_texts,
    process_lines,
    read_texts,
    require_single_text,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import scoring as verbs

if TYPE_CHECKING:
    from lmlab.data.readers import Example


@terminal(verbs.encode)
def encode(
    run: RunArgument,
    arguments: TextsOrFileArgument = None,
    text: TextOption = None,
    named_file: FileOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Output file of the vectors; required.")
    ] = None,
    language: LanguageOption = None,
    as_json: JsonOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    per_token: bool,
    layer: int | None,
    pooling: str | None,
) -> None:
    """The vectors are written to an .npz file."""
    from lmlab.interop.vector_files import VectorWriter, check_vector_path
    from lmlab.verbs.loading import load

    if out is None:
        raise UserError("--out is missing; give a file for the vectors: --out vectors.npz.")
    check_vector_path(out)
    file, given_texts = file_or_texts(arguments, text, named_file)
    texts = read_texts(file, given_texts, errors, instead="--text")
    model = load(run, language=language)
    about = {"system": model.card.name, "run": str(model.path), "layer": layer, "pooling": pooling}
    texts.count_unknown_words(model.tokenizer)
    options: dict[str, Any] = {"per_token": per_token, "layer": layer, "pooling": pooling}
    with texts.progress_bar("encoding", unit="tokens", results_follow=True) as progress:

        def encoded(examples: Iterator[Example]) -> Iterator[Any]:
            single_texts = (require_single_text(example, texts.name) for example in examples)
            return model.encode_stream(single_texts, progress=progress, **options)

        with VectorWriter(out, about) as writer:
            for line, embedding in process_lines(texts.examples, encoded):
                assert embedding is not None, "examples have text"
                writer.add(embedding, line.line or 0)
    texts.warn_empty_lines()
    texts.warn_unknown_words()
    _report(writer, per_token=per_token, as_json=as_json)


def _report(writer: Any, *, per_token: bool, as_json: bool) -> None:
    if writer.truncated:
        print(
            f"lmlab: {writer.truncated:,} of {writer.texts:,} texts are longer than the model "
            "reads; their ends were dropped (field truncated).",
            file=sys.stderr,
        )
    if as_json:
        record = {"file": str(writer.path), "texts": writer.texts, "width": writer.width}
        print_json({**record, "per_token": per_token, "truncated": writer.truncated})
        return
    unit = "a vector per token" if per_token else "a vector per text"
    texts = "1 text" if writer.texts == 1 else f"{writer.texts:,} texts"
    print(f"{texts}, {unit} of {writer.width} numbers: {writer.path}")
