"""`lmlab ask RUN QUESTION...`: question answering with evidence."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import (
    NO_ANSWER,
    one_line,
    print,
    print_json_list,
    print_table,
    text_progress_bar,
    with_progress,
)
from lmlab.cli.text_inputs import (
    FileOption,
    TextInput,
    align_results,
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

    given = read_text_arguments(questions or [], text or [], file, errors)
    facts = [_fact(each) for each in fact or []]
    elsewhere = {"documents": documents, "index": index, "knowledge": knowledge}
    options = {"method": method, "beam": beam, "max_length": max_length}
    memory = {**elsewhere, "facts": facts}
    lines: deque[Example] = deque()
    found = _answers(run, _chunks(given, lines), memory, answers=n, seed=seed, **options)
    with text_progress_bar(
        f"answering {given.name}", given.report, given.size, unit="texts"
    ) as done:
        asked = with_progress(align_results(found, lines), done)
        if as_json:
            print_json_list(_record(line, each) for line, each in asked)
        else:
            print_answers((each for _, each in asked), evidence=show_evidence)


def _chunks(given: TextInput, lines: deque[Example]) -> Iterator[list[str]]:
    """Questions in chunks; all lines, empty ones too, wait in `lines` for their answers."""
    for chunk in given.chunks(CHUNK_SIZE):
        lines.extend(chunk)
        if questions := [require_single_text(line, given.name) for line in chunk if line.text]:
            yield questions


def _record(line: Example, asked: AnsweredQuestion | None) -> dict[str, object]:
    from lmlab.sampling.question_answering import AnsweredQuestion

    return {"line": line.line, **(asked or AnsweredQuestion(question="", answers=())).as_dict()}


def _answers(
    run: str, given: Iterable[list[str]], memory: dict[str, Any], **options: Any
) -> Iterator[AnsweredQuestion]:
    from lmlab.api import load_answerer
    from lmlab.language_model import LanguageModel

    model, index = load_answerer(run), memory.pop("index")
    if index is not None:
        memory["documents"] = _opened(index, model) if isinstance(model, LanguageModel) else index
    return model.ask_stream(given, **memory, **options)


def _opened(index: str, model: LanguageModel) -> StoredIndex:
    """Open an index; warn if its vectors were made by another model."""
    from lmlab.interop.text_encoders import vectors_of_model
    from lmlab.retrieval.stored_index import open_index

    found = open_index(index)
    if vectors_of_model(found, model.model) is None:
        built = found.about.encoder
        by = "words (bm25)" if built is None else (built.path or built.name)
        print(
            f"lmlab: {index} was built by {by} and not by this run as it looks documents up, so "
            f"that its {len(found):,} documents are embedded anew.",
            file=sys.stderr,
        )
    elif found.about.recall is not None and found.about.kind != "flat":
        print(
            f"lmlab: {index} is searched by {found.about.kind}, which found "
            f"{found.about.recall:.1%} of the ten nearest when it was built.",
            file=sys.stderr,
        )
    return found


def _fact(written: str) -> tuple[str, str, str]:
    parts = [part.strip() for part in written.split("|")]
    if len(parts) != 3 or not all(parts):
        raise UserError(f"a fact is written 'SUBJECT | RELATION | OBJECT', and {written!r} is not.")
    return parts[0], parts[1], parts[2]


def print_answers(found: Iterable[AnsweredQuestion | None], *, evidence: bool) -> None:
    """Print each answer with its probability, NO_ANSWER if empty, an empty line for None.

    Questions are separated by an empty line if they take more than one line each.
    """
    for number, asked in enumerate(found):
        if number and asked is not None and (evidence or len(asked.answers) > 1):
            print()
        if asked is None:
            print()
            continue
        for answer in asked.answers:
            print(
                f"{_share(answer)}\t{one_line(answer.text) if answer.text.strip() else NO_ANSWER}"
            )
        if not asked.answers:
            print(NO_ANSWER)
        if evidence and asked.answers:
            print_evidence(asked.answers[0])
        sys.stdout.flush()  # do not keep the reader of a pipe waiting


def print_evidence(answer: Answer) -> None:
    """Print the evidence of the best answer."""
    rows = [(f"{each.probability:.4f}", each.name, each.text) for each in answer.evidence]
    if rows:
        print_table(("probability", "looked up", "it says"), rows)
    else:
        print("nothing was looked up")


def _share(answer: Answer) -> str:
    from lmlab.sampling.question_answering import answer_probability

    share = answer_probability(answer)
    return "-" if share is None else f"{share:.4f}"
