"""Stored retrieval index: a folder with documents and a dense or BM25 index, searched by text.

INDEX/  meta.json  documents.jsonl.gz  manifest.json
        vectors.npy, and index.faiss unless the search is exhaustive   (dense)
        bm25/                                                          (BM25)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lmlab import __version__
from lmlab.core.atomic_files import new_folder, write_json
from lmlab.core.errors import UserError
from lmlab.core.manifest import DamageError, check_files, verifies, write_manifest
from lmlab.core.notebook import NotebookRecord, scalar_fields
from lmlab.core.options import takes
from lmlab.core.untrusted_input import check_seed, parse_dataclass, read_json_object
from lmlab.retrieval.bm25 import LexicalIndex
from lmlab.retrieval.dense_index import DenseIndex, check_kind, read_vectors
from lmlab.retrieval.documents import (
    INDEX_DOCUMENTS_FILE,
    META,
    Document,
    Documents,
    document_text,
    load_documents,
)
from lmlab.retrieval.exact_search import Floats, Numbers
from lmlab.retrieval.index_options import IndexKind, IndexOptions, IndexProgress
from lmlab.retrieval.retrieval_encoder import EncoderDescription, RetrievalEncoder

FORMAT = 3
"""Version of the folder format; larger ones come from a later lmlab."""
BM25 = "bm25"
VECTORS_FILE, FAISS_FILE = "vectors.npy", "index.faiss"


@dataclass(frozen=True, kw_only=True)
class DocumentHit(NotebookRecord):
    """A retrieved document."""

    document: Document
    number: int
    """Its index in the collection."""
    score: float
    """Inner product with the query, or BM25 score."""

    def table_rows(self) -> Iterable[Mapping[str, Any]]:
        """The document's number, score and text."""
        return [{**scalar_fields(self), **scalar_fields(self.document)}]


@dataclass(frozen=True, kw_only=True)
class IndexDescription:
    """meta.json: description of an index."""

    format: int
    lmlab: str
    """The version that wrote it."""
    kind: str
    """flat, ivf, hnsw, or bm25."""
    documents: int
    """Number of documents."""
    fingerprint: str
    """Hash of the documents."""
    files: dict[str, int]
    """Bytes of each file but meta.json."""
    width: int | None = None
    """Dimension of the vectors; None for bm25."""
    encoder: EncoderDescription | None = None
    """Encoder of the vectors; None for bm25."""
    truncated: int = 0
    """Number of documents truncated by the encoder."""
    recall: float | None = None
    """Recall of an approximate index when it was built."""


LoadEncoder = Callable[[Path, IndexDescription], RetrievalEncoder]
"""Loads the encoder of an index, given its folder and description."""


@takes(IndexOptions)
def build_index(
    documents: Documents, encoder: RetrievalEncoder | None, out: Path | str, options: IndexOptions
) -> StoredIndex:
    """Build an index of the documents and write it atomically: dense, or BM25 without an encoder.

    Vectors are written to disk in batches of `batch`, so that memory holds only the documents and
    FAISS's index. `kind`, `recall` and `seed` are those of `DenseIndex.build`.
    """
    kind, batch, progress = options.kind, options.batch, options.progress
    check_kind(kind)
    check_seed(options.seed)
    if encoder is None and kind != "flat":
        raise UserError(f"kind {kind} does not apply to a bm25 index; remove it.")
    if batch < 1:
        raise UserError(f"batch must be at least 1, got {batch}.")
    with new_folder(Path(out)) as folder:
        (folder / INDEX_DOCUMENTS_FILE).write_bytes(documents.to_bytes())
        fields: dict[str, Any] = {"kind": BM25}
        if encoder is None:
            LexicalIndex.build([document_text(d) for d in documents]).save(folder / BM25)
        else:
            truncated_before = encoder.truncated
            vectors = _encode(documents, encoder, folder / VECTORS_FILE, batch, progress)
            report = lambda done, of: progress("indexing", done, of)  # noqa: E731
            index = DenseIndex.build(
                vectors, kind=kind, seed=options.seed, recall=options.recall, progress=report
            )
            if kind != "flat":  # the vectors file is the flat index
                index.save(folder / FAISS_FILE)
            fields = {
                "kind": kind,
                "width": index.width,
                "encoder": encoder.description,
                "truncated": encoder.truncated - truncated_before,
                "recall": index.recall,
            }
        _write_description(folder, documents, fields)
        write_manifest(folder, _file_names(folder))
    return open_index(out, encoder=encoder)


def _encode(
    documents: Documents, encoder: RetrievalEncoder, path: Path, batch: int, progress: IndexProgress
) -> Floats:
    """Vectors (N, W) of all documents, memory-mapped."""
    vectors = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.float32, shape=(len(documents), encoder.width)
    )
    texts = [document_text(document) for document in documents]
    # Batched by similar length to avoid padding; the longest first, so that running out of memory
    # shows at once.
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    for first in range(0, len(order), batch):
        numbers = order[first : first + batch]
        vectors[numbers] = encoder.encode_documents([texts[number] for number in numbers])
        progress("encoding", min(first + batch, len(order)), len(order))
    vectors.flush()
    return vectors


def _write_description(folder: Path, documents: Documents, fields: dict[str, Any]) -> None:
    description = IndexDescription(
        format=FORMAT,
        lmlab=__version__,
        documents=len(documents),
        fingerprint=documents.fingerprint(),
        files={name: (folder / name).stat().st_size for name in _file_names(folder)},
        **fields,
    )
    write_json(folder / META, asdict(description))


def _file_names(folder: Path) -> list[str]:
    """All files of a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in files]


class StoredIndex:
    """The index of a folder. Vectors are memory-mapped."""

    def __init__(
        self, path: Path, about: IndexDescription, find_encoder: LoadEncoder, *, verify: bool = True
    ) -> None:
        self.path = path
        self.about = about
        self._find_encoder = find_encoder
        self._verifies = verify
        self.cut = 0
        """Number of queries truncated by the encoder so far."""

    def __repr__(self) -> str:
        return f"StoredIndex({str(self.path)!r}, {self.about.kind}, {self.about.documents})"

    def __len__(self) -> int:
        """Number of documents."""
        return self.about.documents

    @cached_property
    def documents(self) -> Documents:
        self._verify(INDEX_DOCUMENTS_FILE)
        documents = load_documents(self.path / INDEX_DOCUMENTS_FILE)
        if len(documents) != self.about.documents:
            raise damaged_index_error(self.path / INDEX_DOCUMENTS_FILE)
        return documents

    @cached_property
    def vectors(self) -> DenseIndex:
        """The dense index of the documents; not for bm25."""
        assert self.about.kind != BM25, "words have no vectors"
        name = VECTORS_FILE if self.about.kind == "flat" else FAISS_FILE
        self._verify(name, trusted=name == FAISS_FILE)
        index = DenseIndex.load(self.path / name)
        if (index.size, index.width) != (self.about.documents, self.about.width):
            raise damaged_index_error(self.path / name)
        return index

    def all_vectors(self) -> Floats | None:
        """(N, W) vectors of all documents, for any kind of dense index; None for bm25."""
        if self.about.kind == BM25:
            return None
        self._verify(VECTORS_FILE)
        vectors = read_vectors(self.path / VECTORS_FILE)
        if vectors.shape != (self.about.documents, self.about.width):
            raise damaged_index_error(self.path / VECTORS_FILE)
        return vectors

    @cached_property
    def encoder(self) -> RetrievalEncoder:
        """The query encoder, verified to be the one the documents were encoded with."""
        encoder = self._find_encoder(self.path, self.about)
        check_encoder(self.path, self.about, encoder)
        return encoder

    @cached_property
    def words(self) -> LexicalIndex:
        names = [name for name in self.about.files if name.startswith(f"{BM25}/")]
        self._verify(*names, trusted=True)
        index = LexicalIndex.load(self.path / BM25)
        if index.size != self.about.documents:
            raise damaged_index_error(self.path / BM25)
        return index

    def _verify(self, *names: str, trusted: bool = False) -> None:
        """Raise a UserError if a file differs from what was written; checked once, before its use.

        `trusted` files are verified even where the others are not: FAISS and bm25s do not validate
        their input, and a damaged file could crash the process.
        """
        if trusted or self._verifies:
            verify_index(self.path, names)

    def search(self, texts: Sequence[str], k: int = 10) -> list[list[DocumentHit]]:
        """The best documents for each text, best first: k, or fewer if fewer were found."""
        scores, numbers = self.search_numbers(texts, k)
        return [
            [
                DocumentHit(document=self.documents[number], number=number, score=score)
                for score, number in zip(row_scores, row_numbers, strict=True)
                if number >= 0
            ]
            for row_scores, row_numbers in zip(scores.tolist(), numbers.tolist(), strict=True)
        ]

    def search_numbers(self, texts: Sequence[str], k: int) -> tuple[Floats, Numbers]:
        """(B, k) scores and ids of the best documents; -inf and -1 where there are no more."""
        if isinstance(texts, str):
            raise UserError("search takes a list of texts, got a single string; put it in a list.")
        if not 1 <= k <= self.about.documents:
            raise UserError(
                f"k must be from 1 to the {self.about.documents} documents of {self.path}, got {k}."
            )
        if any(not text.strip() for text in texts):
            raise UserError("a query is empty; give one with words in it.")
        if self.about.kind == BM25:
            return self.words.search(texts, k)
        truncated_before = self.encoder.truncated
        vectors = self.encoder.encode_queries(texts)
        self.cut += self.encoder.truncated - truncated_before
        return self.vectors.search(vectors, k)


def missing_encoder(path: Path, about: IndexDescription) -> RetrievalEncoder:
    """Raise an error: no encoder is available."""
    raise UserError(
        f"{path} needs its encoder ({about.encoder}) for searching; say which one to use."
    )


def open_index(
    path: Path | str,
    *,
    encoder: RetrievalEncoder | None = None,
    find_encoder: LoadEncoder = missing_encoder,
) -> StoredIndex:
    """Open the index of a folder; `encoder` encodes queries, for all but bm25.

    If it is not given, `find_encoder` loads it at the first query: reading documents alone needs no
    weights.
    """
    folder, verify = Path(path), verifies()
    about = read_description(folder)
    if verify:
        verify_index(folder, [META])
    for name, size in about.files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            raise damaged_index_error(folder / name)
    find = find_encoder if encoder is None else lambda *_: encoder
    return StoredIndex(folder, about, find, verify=verify)


def verify_index(folder: Path, names: Sequence[str]) -> None:
    """Raise a UserError if files of an index differ from its manifest."""
    try:
        check_files(folder, names)
    except DamageError as error:
        raise UserError(f"{folder} is damaged ({error}); build the index again.") from error


def is_index(path: Path | str) -> bool:
    """Whether a folder is a stored index."""
    return (Path(path) / META).is_file()


def read_description(folder: Path) -> IndexDescription:
    """meta.json of an index, checked to be readable by this version."""
    if not folder.is_dir():
        raise UserError(f"there is no index at {folder}; build one with lmlab index build.")
    if not (folder / META).is_file():
        raise UserError(
            f"{folder} is not an index: it has no {META}; build one with lmlab index build."
        )
    try:
        meta = read_json_object(folder / META)
        if int(meta["format"]) > FORMAT:
            raise UserError(
                f"{folder} was written by a later lmlab ({meta.get('lmlab', '?')}, format "
                f"{meta['format']}), and this one reads up to format {FORMAT}; upgrade lmlab."
            )
        encoder = meta.get("encoder")
        meta["encoder"] = None if encoder is None else parse_dataclass(EncoderDescription, encoder)
        return _check_description(parse_dataclass(IndexDescription, meta))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"{folder / META} does not describe an index; build it again.") from error


def _check_description(about: IndexDescription) -> IndexDescription:
    """The description if it is consistent; raises a ValueError otherwise."""
    is_bm25 = about.kind == BM25
    if not is_bm25 and about.kind not in get_args(IndexKind):
        raise ValueError(f"there is no kind of index named {about.kind}")
    if about.documents < 1 or is_bm25 != (about.width is None) or is_bm25 != (not about.encoder):
        raise ValueError("its documents, width and encoder do not match")
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in about.files):
        raise ValueError("it names files in another folder")
    needed = {INDEX_DOCUMENTS_FILE} if is_bm25 else {INDEX_DOCUMENTS_FILE, VECTORS_FILE}
    if not needed <= about.files.keys():
        raise ValueError("it does not name all of its files")
    return about


def check_encoder(path: Path, about: IndexDescription, encoder: RetrievalEncoder) -> None:
    """Raise a UserError if an index was built with another encoder: scores would be meaningless."""
    built = about.encoder
    assert built is not None, "words need no encoder"
    if encoder.width != about.width:
        raise UserError(
            f"{path} holds vectors of width {about.width}, got {encoder.width} from the encoder "
            f"{encoder.description.path or encoder.description.name}; use the one that it was "
            f"built with ({built.path or built.name})."
        )
    if encoder.description.fingerprint != built.fingerprint:
        raise UserError(
            f"{path} was built with another encoder than "
            f"{encoder.description.path or 'this one'}, or with other weights of it "
            f"({built.name}, {built.path or 'from memory'}); build the index again, or use that "
            "encoder."
        )


def damaged_index_error(path: Path) -> UserError:
    return UserError(f"{path} is missing, damaged or cut short; build the index again.")
