"""`lmlab ask RUN QUESTION...`: question answering with evidence."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import NO_ANSWER, one_line, print, print_table, with_progress
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import (
    FileOption,
    TextInput,
    align_results,
    print_results,
    read_text_arguments,
    require_single_text,
)
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.verbs import generation as verbs

if TYPE_CHECKING:
    from lmlab.core.answers import Answer
    from lmlab.data.readers import Example
    from lmlab.retrieval.stored_index import StoredIndex
    from lmlab.sampling.question_answering import AnsweredQuestion
    from lmlab.verbs.language_model import LanguageModel

CHUNK_SIZE = 64
"""Questions read ahead, to be batched by length."""


@terminal(verbs.ask)
def ask(
    run: RunArgument,
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | QUESTION...]",
            help="Questions, or a file with one question per line; - is standard input.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="QUESTION", help="A question; repeatable.")
    ] = None,
    file: FileOption = None,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="INDEX",
            help="Retrieve from the documents of an index; its vectors serve if the run made them.",
        ),
    ] = None,
    show_evidence: Annotated[
        bool,
        typer.Option(
            "--show-evidence", help="Also print the retrieved documents and their probabilities."
        ),
    ] = False,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    documents: str | None,
    **options: Any,
) -> None:
    if documents is not None and index is not None:
        raise UserError("give --documents or --index, not both.")

    from lmlab.sampling.question_answering import AnsweredQuestion

    text_input = read_text_arguments(questions or [], text or [], file, errors)
    lines: deque[Example] = deque()
    options["documents"] = documents
    answers = _ask_model(run, _chunks(text_input, lines), index, **options)
    with text_input.progress_bar("answering") as done:
        results = with_progress(align_results(answers, lines), done)
        empty = AnsweredQuestion(question="", answers=()).as_dict()
        show = partial(print_answers, evidence=show_evidence)
        print_results(results, show, empty=empty, as_json=as_json)


def _chunks(text_input: TextInput, lines: deque[Example]) -> Iterator[list[str]]:
    """Questions in chunks; all lines, empty ones too, wait in `lines` for their answers."""
    for chunk in text_input.chunks(CHUNK_SIZE):
        lines.extend(chunk)
        if questions := [require_single_text(line, text_input.name) for line in chunk if line.text]:
            yield questions


def _ask_model(
    run: str, chunks: Iterable[list[str]], index: str | None, **options: Any
) -> Iterator[AnsweredQuestion]:
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import load_answerer

    model = load_answerer(run)
    if index is not None:
        options["documents"] = index
        if isinstance(model, LanguageModel):
            options["documents"] = _open_index(index, model)
    return model.ask_stream(chunks, **options)


def _open_index(index: str, model: LanguageModel) -> StoredIndex:
    """Open an index; warn if its vectors were made by another model."""
    from lmlab.interop.text_encoders import vectors_of_model
    from lmlab.retrieval.stored_index import open_index

    stored = open_index(index)
    if vectors_of_model(stored, model.model) is None:
        built = stored.about.encoder
        by = "words (bm25)" if built is None else (built.path or built.name)
        print(
            f"lmlab: {index} was built by {by} and not by this run as it looks documents up, so "
            f"that its {len(stored):,} documents are embedded anew.",
            file=sys.stderr,
        )
    elif stored.about.recall is not None and stored.about.kind != "flat":
        print(
            f"lmlab: {index} is searched by {stored.about.kind}, which found "
            f"{stored.about.recall:.1%} of the ten nearest when it was built.",
            file=sys.stderr,
        )
    return stored


def print_answers(results: Iterable[AnsweredQuestion | None], *, evidence: bool) -> None:
    """Print each answer with its probability, NO_ANSWER if empty, an empty line for None.

    Questions are separated by an empty line if they take more than one line each.
    """
    for number, answered in enumerate(results):
        if number and answered is not None and (evidence or len(answered.answers) > 1):
            print()
        if answered is None:
            print()
            continue
        for answer in answered.answers:
            text = one_line(answer.text) if answer.text.strip() else NO_ANSWER
            print(f"{_format_probability(answer)}\t{text}")
        if not answered.answers:
            print(NO_ANSWER)
        if evidence and answered.answers:
            print_evidence(answered.answers[0])
        sys.stdout.flush()  # do not keep the reader of a pipe waiting


def print_evidence(answer: Answer) -> None:
    """Print the evidence of the best answer."""
    rows = [(f"{item.probability:.4f}", item.name, item.text) for item in answer.evidence]
    if rows:
        print_table(("probability", "looked up", "it says"), rows)
    else:
        print("nothing was looked up")


def _format_probability(answer: Answer) -> str:
    from lmlab.sampling.question_answering import answer_probability

    probability = answer_probability(answer)
    return "-" if probability is None else f"{probability:.4f}"
