"""`lmlab index build DOCS`, `index search INDEX "…"`, `index info INDEX`: document retrieval."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption
from lmlab.cli.output import print, print_json, print_table, step_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import FileOption, TextOption, read_text_arguments, require_single_text
from lmlab.core.shared_options import Errors
from lmlab.verbs import resources as verbs

if TYPE_CHECKING:
    from lmlab.retrieval.stored_index import DocumentHit, IndexDescription

MAX_SHOWN_CHARACTERS = 120
"""Most characters of a document printed."""


@terminal(verbs.index_build, loads=True, without=("precision",))
def build(
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    documents: str,
    out: str,
    kind: str,
    recall: float,
    errors: str,
    **options: Any,
) -> None:
    from lmlab.data.lines import ReadingReport, check_errors
    from lmlab.retrieval.documents import load_documents

    report = ReadingReport()
    opened = load_documents(documents, errors=check_errors(errors), report=report)
    if report.bad_rows or report.replaced_bytes:
        print(f"lmlab: {documents}: {report.oddities()}.", file=sys.stderr)
    index_build: Any = verbs.index_build
    with step_progress_bar() as progress:
        built = index_build(opened, out=out, kind=kind, recall=recall, progress=progress, **options)
    reached = built.about.recall
    if reached is not None and reached < recall:
        print(
            f"lmlab: {kind} finds {reached:.1%} of the ten nearest however far it looks, and "
            f"{recall:.1%} were asked for; --kind flat finds all.",
            file=sys.stderr,
        )
    _print_description(built.about, out, as_json=as_json)


@terminal(verbs.index_search, loads=True, without=("precision",))
def search(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="Queries: texts, or a file with one text per line; - is standard input.",
        ),
    ] = None,
    text: TextOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
    *,
    index: str,
    encoder: str | None,
    k: int | None,
) -> None:
    text_input = read_text_arguments(arguments or [], text or [], file, errors)
    examples = list(text_input.examples)
    questions = [require_single_text(example, text_input.name) for example in examples]
    opened = verbs.open_index(index, encoder=encoder)
    hits_by_query = verbs.index_search(opened, questions, k=k, encoder=encoder)
    if opened.cut:
        print(
            f"lmlab: {opened.cut} of {len(questions)} texts exceeded the encoder's window of "
            f"{opened.encoder.window} tokens; only the beginning was looked for.",
            file=sys.stderr,
        )
    if as_json:
        rows = zip(examples, hits_by_query, strict=True)
        print_json([{"line": e.line, **_as_dict(e.text, hits)} for e, hits in rows])
        return
    for number, (question, hits) in enumerate(zip(questions, hits_by_query, strict=True)):
        if len(questions) > 1:
            print(f"{chr(10) if number else ''}{question}\n")
        _print_hits(hits)
    text_input.warn_empty_lines()


@terminal(verbs.index_info)
def info(as_json: JsonOption = False, no_verify: NoVerify = False, *, index: str) -> None:
    _print_description(verbs.index_info(index), index, as_json=as_json)


def _as_dict(question: str, hits: list[DocumentHit]) -> dict[str, Any]:
    records = [
        {"rank": rank, "score": hit.score, "number": hit.number, **asdict(hit.document)}
        for rank, hit in enumerate(hits, 1)
    ]
    return {"question": question, "found": records}


def _print_hits(hits: list[DocumentHit]) -> None:
    if not hits:
        print("nothing was found: no document has a word of the text in it.")
        return
    rows = [
        (
            str(rank),
            f"{hit.score:.4f}",
            hit.document.name,
            shorten_text(hit.document.title, MAX_SHOWN_CHARACTERS // 3),
            shorten_text(hit.document.text, MAX_SHOWN_CHARACTERS),
        )
        for rank, hit in enumerate(hits, 1)
    ]
    print_table(("rank", "score", "name", "title", "text"), rows)


def shorten_text(text: str, max_characters: int) -> str:
    """A text on one line, cut to `most` characters."""
    line = " ".join(text.split())
    if len(line) <= max_characters:
        return line
    cut = textwrap.shorten(line, max_characters, placeholder=" …")
    return cut if len(cut) > max_characters // 2 else f"{line[: max_characters - 1]}…"


def _print_description(about: IndexDescription, path: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"path": path, **asdict(about)})
        return
    count = f"{about.documents:,} document{'' if about.documents == 1 else 's'}"
    print(f"{path}: {count}, {about.kind}, {format_size(sum(about.files.values()))} on the disk")
    if about.encoder is not None:
        where = f" ({about.encoder.path})" if about.encoder.path else ""
        print(f"encoder: {about.encoder.name}{where}, vectors of width {about.width}")
        if about.kind != "flat" and about.recall is not None:
            print(f"recall: {about.recall:.1%} of the ten nearest, tried when it was built")
        if about.truncated:
            print(
                f"cut to what the encoder reads: {about.truncated:,} of {about.documents:,} "
                f"documents; "
                "divide them if their ends should be found."
            )
    print(f"written by lmlab {about.lmlab}, format {about.format}")


def format_size(count: int) -> str:
    """A size in bytes as a readable number with its unit."""
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{count / 2**10:,.1f} KiB"
