"""Documents that a system may look up: a built-in set, a file, a folder, or an index's own."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import overload

from lmlab.core.errors import UserError, unknown_name
from lmlab.data.languages._countries import pairs
from lmlab.data.lines import Errors, ReadingReport, numbered_lines
from lmlab.data.wordnet import load
from lmlab.data.wordnet.glosses import tokenize


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A text that can be looked up."""

    name: str
    """Tells it from all others: a synset's id, a file's name, a line's number."""
    text: str
    title: str = ""
    """What it is about, in words; may be empty."""


class Documents(Sequence[Document]):
    """Documents in an order that gives them their numbers; names are unique, no text is empty."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._all = tuple(documents)
        self.numbers = {document.name: number for number, document in enumerate(self._all)}
        if not self._all:
            raise UserError("there is no document in what was given; give at least one.")
        if len(self.numbers) < len(self._all):
            seen: set[str] = set()
            twice = next(d.name for d in self._all if d.name in seen or seen.add(d.name))  # type: ignore[func-returns-value]
            raise UserError(f"two documents are called {twice!r}; names tell them apart.")
        for document in self._all:
            if not document.text.strip():
                raise UserError(f"the document {document.name!r} is empty; leave it out.")

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, place: int) -> Document: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Document, ...]: ...
    def __getitem__(self, place: int | slice) -> Document | tuple[Document, ...]:
        return self._all[place]

    def __iter__(self) -> Iterator[Document]:
        return iter(self._all)

    def fingerprint(self) -> str:
        """Hash of all names, titles and texts, in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for document in self._all:
            digest.update(repr((document.name, document.title, document.text)).encode())
        return digest.hexdigest()

    def replacing(self, document: Document) -> Documents:
        """The same with one document put in the place of that with its name."""
        if document.name not in self.numbers:
            raise UserError(f"there is no document called {document.name!r} to replace.")
        return Documents(document if d.name == document.name else d for d in self._all)

    def to_bytes(self) -> bytes:
        """As packed JSON lines, the same bytes for the same documents."""
        lines = (json.dumps(asdict(document), ensure_ascii=False) for document in self._all)
        return gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)


def open_documents(spec: str | Path, *, errors: Errors = "strict") -> Documents:
    """The documents that a specification names.

    A built-in set (`capitals`, `wordnet`); a `.jsonl` file of objects with `text`, and `name` and
    `title` if they like; a text file, a document a line; a folder of text files, each a document.
    """
    if str(spec) in BUILT_IN:
        return BUILT_IN[str(spec)]()
    path = Path(spec).expanduser()
    if not path.exists():
        raise unknown_name("set of documents, file or folder", str(spec), BUILT_IN)
    if path.is_dir():
        return Documents(_folder(path, errors))
    if ".jsonl" in path.suffixes:
        return Documents(_json_lines(path, errors))
    lines = numbered_lines(path, ReadingReport(), errors)
    return Documents(Document(name=str(number), text=text) for number, text in lines if text)


def _json_lines(path: Path, errors: Errors) -> Iterator[Document]:
    for number, line in numbered_lines(path, ReadingReport(), errors):
        if not line:
            continue
        try:
            yield _document(json.loads(line), number)
        except (ValueError, TypeError) as error:
            if errors == "strict":
                raise UserError(
                    f"{path}, line {number}: expected an object with 'text' ({error})."
                ) from None


def _document(row: object, number: int) -> Document:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError("its text must be a string")
    name, title = row.get("name", str(number)), row.get("title", "")
    if not isinstance(name, str) or not isinstance(title, str):
        raise ValueError("name and title must be strings")
    return Document(name=name, title=title, text=row["text"].strip())


def _folder(path: Path, errors: Errors) -> Iterator[Document]:
    for file in sorted(each for each in path.rglob("*.txt") if each.is_file()):
        text = " ".join(line for _, line in numbered_lines(file, ReadingReport(), errors) if line)
        if text:
            yield Document(name=str(file.relative_to(path)), title=file.stem, text=text)


@cache
def capital_documents() -> Documents:
    """A sentence about each country and its capital."""
    return Documents(
        Document(
            name=each.country_en,
            title=each.country_en,
            text=f"the capital of {each.country_en} is {each.capital_en}",
        )
        for each in pairs()
    )


@cache
def gloss_documents() -> Documents:
    """WordNet's definitions, after the words that they define, without the examples."""
    return Documents(_gloss(name, definition) for name, definition, _ in load().glosses())


def _gloss(name: str, definition: str) -> Document:
    title = " , ".join(tokenize(lemma) for lemma in load()[name].lemmas)
    return Document(name=name, title=title, text=tokenize(f"{title} : {definition}"))


BUILT_IN: dict[str, Callable[[], Documents]] = {
    "capitals": capital_documents,
    "wordnet": gloss_documents,
}
