"""`lmlab ask RUN QUESTION...`: question answering with evidence."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import NO_ANSWER, one_line, print, print_table, with_progress
from lmlab.cli.text_inputs import (
    FileOption,
    TextInput,
    align_results,
    print_results,
    read_text_arguments,
    require_single_text,
)
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.core.answers import Answer
    from lmlab.data.readers import Example
    from lmlab.language_model import LanguageModel
    from lmlab.retrieval.stored_index import StoredIndex
    from lmlab.sampling.question_answering import AnsweredQuestion

CHUNK_SIZE = 64
"""Questions read ahead, to be batched by length."""


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
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="DOCS",
            help="Retrieve from these documents instead of the run's own: a built-in set "
            "(capitals, wordnet), a .jsonl file, a text file with one document per "
            "line, a folder.",
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="INDEX",
            help="The same, in the documents of an index; its vectors serve if the run made them.",
        ),
    ] = None,
    knowledge: Annotated[
        str | None,
        typer.Option(
            metavar="KNOWLEDGE",
            help="Other facts about the same entities, for a memory of facts: a built-in knowledge "
            "or a folder of tables.",
        ),
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'SUBJECT | RELATION | OBJECT'",
            help="A fact to change in the memory before answering; repeatable.",
        ),
    ] = None,
    show_evidence: Annotated[
        bool,
        typer.Option(
            "--show-evidence", help="Also print the retrieved documents and their probabilities."
        ),
    ] = False,
    n: Annotated[int, typer.Option("-n", help="Number of answers per question, best first.")] = 1,
    method: Annotated[
        str | None,
        typer.Option(
            help="For systems that write their answers: thorough, fast, beam, greedy or sample, as "
            "far as they can; the usual one of each unless given."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; 5.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum number of tokens of a generated answer; 50.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: ErrorsOption = "strict",
    no_verify: NoVerify = False,
) -> None:
    """Answer questions, with probabilities and optionally the evidence."""
    if documents is not None and index is not None:
        raise UserError("give --documents or --index, not both.")

    from lmlab.sampling.question_answering import AnsweredQuestion

    text_input = read_text_arguments(questions or [], text or [], file, errors)
    facts = [_parse_fact(item) for item in fact or []]
    options = {"method": method, "beam": beam, "max_length": max_length, "seed": seed}
    memory = {"documents": documents, "index": index, "knowledge": knowledge, "facts": facts}
    lines: deque[Example] = deque()
    answers = _ask_model(run, _chunks(text_input, lines), memory, answers=n, **options)
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
    run: str, chunks: Iterable[list[str]], memory: dict[str, Any], **options: Any
) -> Iterator[AnsweredQuestion]:
    from lmlab.api import load_answerer
    from lmlab.language_model import LanguageModel

    model, index = load_answerer(run), memory.pop("index")
    if index is not None:
        memory["documents"] = index
        if isinstance(model, LanguageModel):
            memory["documents"] = _open_index(index, model)
    return model.ask_stream(chunks, **memory, **options)


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


def _parse_fact(text: str) -> tuple[str, str, str]:
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 3 or not all(parts):
        raise UserError(f"a fact is written 'SUBJECT | RELATION | OBJECT', and {text!r} is not.")
    return parts[0], parts[1], parts[2]


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
