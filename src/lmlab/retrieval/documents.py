"""Document collections for retrieval: built-in, from a file or folder, or of a stored index."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import overload

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.core.manifest import verify_files
from lmlab.core.untrusted_input import parse_json
from lmlab.data.countries import country_table
from lmlab.data.lines import Errors, ReadingReport, held_lines
from lmlab.data.wordnet import load_wordnet
from lmlab.data.wordnet.compact_format import decode_numbers
from lmlab.data.wordnet.glosses import tokenize_gloss


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A retrievable text."""

    name: str
    """Unique name: a synset's id, a file's name, a line's number."""
    text: str
    title: str = ""
    """Title; may be empty."""


class Documents(Sequence[Document]):
    """Ordered documents, numbered by position; names are unique, no text is empty."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._all = tuple(documents)
        self.numbers = {document.name: number for number, document in enumerate(self._all)}
        if not self._all:
            raise UserError("no documents were given; give at least one.")
        if len(self.numbers) < len(self._all):
            duplicate = next(d.name for n, d in enumerate(self._all) if self.numbers[d.name] != n)
            raise UserError(f"two documents are named {duplicate!r}; names must be unique.")
        for document in self._all:
            if not document.text.strip():
                raise UserError(f"the document {document.name!r} is empty; remove it.")

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Document, ...]: ...
    def __getitem__(self, index: int | slice) -> Document | tuple[Document, ...]:
        return self._all[index]

    def __iter__(self) -> Iterator[Document]:
        return iter(self._all)

    def fingerprint(self) -> str:
        """Hash of all names, titles and texts, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for document in self._all:
            digest.update(repr((document.name, document.title, document.text)).encode())
        return digest.hexdigest()

    def replacing(self, document: Document) -> Documents:
        """The same with the document of this name replaced."""
        if document.name not in self.numbers:
            raise UserError(f"there is no document named {document.name!r} to replace.")
        return Documents(document if d.name == document.name else d for d in self._all)

    def to_bytes(self) -> bytes:
        """Compressed JSON lines, deterministic."""
        lines = (json.dumps(asdict(document), ensure_ascii=False) for document in self._all)
        return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def document_text(document: Document) -> str:
    """What encoders and indexes see: the text, after its title unless it begins with it."""
    if not document.title or document.text.startswith(document.title):
        return document.text
    return f"{document.title} : {document.text}"


def title_and_body(document: Document) -> tuple[str, str]:
    """The title, and the text without the title that it may begin with."""
    body = document.text.removeprefix(document.title).strip()
    return document.title, body.removeprefix(":").strip() if document.title else document.text


def load_documents(
    spec: str | Path, *, errors: Errors = "strict", report: ReadingReport | None = None
) -> Documents:
    """Load the documents that a specification names.

    A built-in set (`capitals`, `wordnet`); a `.jsonl` file of objects with `text` and optionally
    `name` and `title`; a text file, one document per line; a folder of .txt files, one document
    each; the folder of a stored index, for its own. Files may be gzipped. A bad row is an error
    with its line, or with `errors="replace"` dropped and counted in `report.bad_rows`.
    """
    if str(spec) in BUILTIN_DOCUMENTS:
        return BUILTIN_DOCUMENTS[str(spec)]()
    path = Path(spec).expanduser()
    if not path.exists():
        raise unknown_name_or_path("set of documents, file or folder", str(spec), BUILTIN_DOCUMENTS)
    if path.is_dir() and (path / INDEX_DOCUMENTS_FILE).is_file():
        if (path / META).is_file():
            verify_files(path, [INDEX_DOCUMENTS_FILE], advice="build the index again")
        path = path / INDEX_DOCUMENTS_FILE
    lines = _json_lines if ".jsonl" in path.suffixes else _text_lines
    read = _read_folder if path.is_dir() else lines
    documents = tuple(read(path, errors, ReadingReport() if report is None else report))
    if not documents:
        expected = "text files (*.txt)" if path.is_dir() else "documents"
        raise UserError(f"there are no {expected} with any text in {path}; give at least one.")
    return Documents(documents)


def _text_lines(path: Path, errors: Errors, report: ReadingReport) -> Iterator[Document]:
    for number, text in held_lines(path, report, errors):
        if text:
            yield Document(name=str(number), text=text)


def _json_lines(path: Path, errors: Errors, report: ReadingReport) -> Iterator[Document]:
    lines: dict[str, int] = {}
    for number, line in held_lines(path, report, errors):
        if not line:
            continue
        try:
            document = _parse_document(_parse_object(line), number)
            if document.name in lines:
                reason = f"its name {document.name!r} is that of line {lines[document.name]}"
                raise ValueError(f"{reason} already; names must be unique")
        except ValueError as error:
            if errors == "strict":
                raise UserError(f"{path}, line {number}: {error}.") from None
            report.bad_rows += 1
            continue
        lines[document.name] = number
        yield document


def _parse_object(line: str) -> object:
    try:
        return parse_json(line)
    except ValueError as error:
        reason = "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"expected an object with 'text', but {reason}") from None


def _parse_document(row: object, number: int) -> Document:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError("expected an object with 'text', which must be a string")
    name, title, text = row.get("name", number), row.get("title", ""), row["text"].strip()
    name = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
    if not isinstance(name, str) or not isinstance(title, str):
        raise ValueError("name and title must be strings")
    if not text:
        raise ValueError("its text is empty")
    return Document(name=name, title=title, text=text)


def _read_folder(path: Path, errors: Errors, report: ReadingReport) -> Iterator[Document]:
    for file in sorted(candidate for candidate in path.rglob("*.txt") if candidate.is_file()):
        text = " ".join(line for _, line in held_lines(file, report, errors) if line)
        if text:
            yield Document(name=file.relative_to(path).as_posix(), title=file.stem, text=text)


@cache
def capital_documents() -> Documents:
    """One sentence about each country and its capital."""
    return Documents(
        Document(
            name=row.country_en,
            title=row.country_en,
            text=f"the capital of {row.country_en} is {row.capital_en}",
        )
        for row in country_table()
    )


@cache
def gloss_documents() -> Documents:
    """WordNet's glosses, preceded by the words they define, without the examples."""
    columns = load_wordnet().columns()
    return Documents(_gloss(name, senses, definition) for name, senses, _, definition, _ in columns)


def _gloss(name: str, senses: str, definition: str) -> Document:
    title = " , ".join(tokenize_gloss(lemma) for lemma, _ in decode_numbers(senses))
    return Document(name=name, title=title, text=f"{title} : {tokenize_gloss(definition)}")


BUILTIN_DOCUMENTS: dict[str, Callable[[], Documents]] = {
    "capitals": capital_documents,
    "wordnet": gloss_documents,
}
META = "meta.json"
"""The file that marks a folder as a stored index."""
INDEX_DOCUMENTS_FILE = "documents.jsonl.gz"
"""The documents of a stored index."""
