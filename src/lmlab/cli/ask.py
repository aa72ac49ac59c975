"""`lmlab ask RUN QUESTION...`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import Errors, Json, Run
from lmlab.cli.output import NO_ANSWER, print_json_list, print_table
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.core.answers import Answer
    from lmlab.language_model import LanguageModel
    from lmlab.retrieval.stored import StoredIndex
    from lmlab.sampling.asking import Asked

AT_ONCE = 64
"""Questions of a file that are read ahead, to be gathered by length."""


def ask(
    run: Run,
    questions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUESTION... | -]", help="Questions; - is standard input."),
    ] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="A question a line.")] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            metavar="DOCS",
            help="Look things up in these instead of the run's own: a built-in set (capitals, "
            "wordnet), a .jsonl file, a text file with a document a line, a folder.",
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
            help="A fact changed in the memory before it is asked; may be given again.",
        ),
    ] = None,
    show_evidence: Annotated[
        bool,
        typer.Option("--show-evidence", help="What was looked up, and how likely each of it is."),
    ] = False,
    n: Annotated[int, typer.Option("-n", help="Answers to each question, best first.")] = 1,
    method: Annotated[
        str | None,
        typer.Option(
            help="For systems that write their answers: thorough, fast, beam, greedy or sample, as "
            "far as they can; the usual one of each unless given."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the search; 5.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Most tokens of an answer that is written; 50.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    as_json: Json = False,
    errors: Errors = "strict",
) -> None:
    """Answer questions, with their probability and, if asked, what the answers rest on."""
    if documents is not None and index is not None:
        raise UserError("give --documents or --index, not both.")

    given = _questions(questions or [], file, errors)
    facts = [_fact(each) for each in fact or []]
    elsewhere = {"documents": documents, "index": index, "knowledge": knowledge}
    options = {"method": method, "beam": beam, "max_length": max_length}
    found = _answers(run, given, {**elsewhere, "facts": facts}, answers=n, seed=seed, **options)
    if as_json:
        print_json_list(each.as_dict() for each in found)
    else:
        print_asked(found, evidence=show_evidence)


def _answers(
    run: str, given: Iterable[list[str]], memory: dict[str, Any], **options: Any
) -> Iterator[Asked]:
    """Of a run that answers over hops by its own paragraphs, of any other by `load`."""
    from lmlab.tasks.hops.asking import is_hops, load_hops

    if not is_hops(run):
        from lmlab.api import load

        asked, index = load(run), memory.pop("index")
        if index is not None:
            memory["documents"] = _opened(index, asked)
        return asked.ask_stream(given, **memory, **options)
    from lmlab.sampling.asking import Asker

    for name in (name for name, value in memory.items() if value):
        raise UserError(
            f"a run of the task hops reads its own paragraphs, and takes no {name}; lmlab predict "
            "takes rows with others."
        )
    model = load_hops(run)
    return Asker(system=model, tokenizer=model.tokenizer, **options).ask(given)


def _opened(index: str, model: LanguageModel) -> StoredIndex:
    """An index; whoever waits is told where its vectors are not those of the model."""
    from lmlab.interop.text_encoders import own_vectors
    from lmlab.retrieval.stored import open_index

    found = open_index(index)
    if own_vectors(found, model.model) is None:
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


def _questions(questions: list[str], file: str | None, errors: str) -> Iterable[list[str]]:
    """Those of the command line at once; of a file some at a time, of standard input one by one."""
    from lmlab.cli.texts import texts_from

    if (file is None) == (not questions):
        raise UserError(
            "give what to ask, and only one of: questions, - for standard input, --file."
        )
    if file is None and questions != ["-"]:
        return [questions]
    texts = texts_from(file or "-", [], errors).texts
    size = AT_ONCE if file else 1
    return iter(lambda: list(islice(texts, size)), [])


def print_asked(found: Iterator[Asked], *, evidence: bool) -> None:
    """Each answer with its probability; a line between questions where there is more to each."""
    for number, asked in enumerate(found):
        if number and (evidence or len(asked.answers) > 1):
            print()
        for answer in asked.answers:
            print(f"{_share(answer)}\t{answer.text}")
        if not asked.answers:
            print(NO_ANSWER)
        if evidence and asked.answers:
            print_evidence(asked.answers[0])
        sys.stdout.flush()  # whoever waits at the other end of a pipe has waited long enough


def print_evidence(answer: Answer) -> None:
    """What the best answer rests on."""
    rows = [(f"{each.probability:.4f}", each.name, each.text) for each in answer.evidence]
    if rows:
        print_table(("probability", "looked up", "it says"), rows)
    else:
        print("nothing was looked up")


def _share(answer: Answer) -> str:
    from lmlab.sampling.asking import probability

    share = probability(answer)
    return "-" if share is None else f"{share:.4f}"
