"""`lmlab index build DOCS`, `index search INDEX "…"`, `index info INDEX`: document retrieval."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import ErrorsOption, JsonOption, NoVerify, RawOption
from lmlab.cli.output import print, print_json, print_table, step_progress_bar
from lmlab.cli.text_inputs import FileOption, TextOption, read_text_arguments, require_single_text
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.retrieval.stored_index import DocumentHit, IndexDescription

MAX_SHOWN_CHARACTERS = 120
"""Most characters of a document printed."""
DEFAULT_HITS = 5
"""Default number of documents retrieved."""

IndexArgument = Annotated[str, typer.Argument(metavar="INDEX", help="The folder of an index.")]


def build(
    documents: Annotated[
        str,
        typer.Argument(
            metavar="DOCS",
            help="A built-in set (capitals, wordnet), a .jsonl file of objects with text, name and "
            "title, a text file with a document a line, or a folder of .txt files.",
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            help="What makes vectors of them: a run, a folder in the Hub's format, or bm25 for an "
            "index by words."
        ),
    ],
    out: Annotated[str, typer.Option(help="Output folder.")],
    kind: Annotated[
        str, typer.Option(help="flat searches every vector; ivf and hnsw some, faster.")
    ] = "flat",
    recall: Annotated[float, typer.Option(help="Target recall of ivf and hnsw.")] = 0.95,
    batch: Annotated[int, typer.Option(help="Batch size of the encoder.")] = 64,
    seed: Annotated[int, typer.Option(help="Random seed of ivf and hnsw.")] = 0,
    errors: ErrorsOption = "strict",
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
) -> None:
    """Build a retrieval index of documents."""
    from lmlab.data.lines import ReadingReport, check_errors
    from lmlab.index_api import build_index
    from lmlab.retrieval.documents import load_documents

    report = ReadingReport()
    opened = load_documents(documents, errors=check_errors(errors), report=report)
    if report.bad_rows or report.replaced_bytes:
        print(f"lmlab: {documents}: {report.oddities()}.", file=sys.stderr)
    with step_progress_bar() as progress:
        built = build_index(
            opened,
            encoder,
            out,
            kind=kind,
            recall=recall,
            batch=batch,
            seed=seed,
            progress=progress,
        )
    reached = built.about.recall
    if reached is not None and reached < recall:
        print(
            f"lmlab: {kind} finds {reached:.1%} of the ten nearest however far it looks, and "
            f"{recall:.1%} were asked for; --kind flat finds all.",
            file=sys.stderr,
        )
    _print_description(built.about, out, as_json=as_json)


def search(
    index: IndexArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="Queries: texts, or a file with one text per line; - is standard input.",
        ),
    ] = None,
    text: TextOption = None,
    file: FileOption = None,
    k: Annotated[
        int | None,
        typer.Option("-k", help=f"Documents to find for each text; {DEFAULT_HITS} if so many."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Where the encoder is that the index was built with, if it has moved."),
    ] = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: ErrorsOption = "strict",
    no_verify: NoVerify = False,
) -> None:
    """Search an index for the documents nearest to a text."""
    from lmlab.index_api import open_index

    text_input = read_text_arguments(arguments or [], text or [], file, errors)
    examples = list(text_input.examples)
    questions = [require_single_text(example, text_input.name) for example in examples]
    opened = open_index(index, encoder=encoder)
    if encoder is not None and opened.about.encoder is None:
        raise UserError(f"{index} is searched by words (bm25), not vectors; leave --encoder out.")
    hits_by_query = opened.search(questions, min(DEFAULT_HITS, len(opened)) if k is None else k)
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


def info(index: IndexArgument, as_json: JsonOption = False, no_verify: NoVerify = False) -> None:
    """Describe an index: its contents and how it was built."""
    from lmlab.retrieval.stored_index import open_index

    _print_description(open_index(index).about, index, as_json=as_json)


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
