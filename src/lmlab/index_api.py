"""Python API of retrieval indexes (dense or BM25): build one from documents, and open one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.core.manifest import verification
from lmlab.language_model import LanguageModel

if TYPE_CHECKING:
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.retrieval_encoder import RetrievalEncoder
    from lmlab.retrieval.stored_index import StoredIndex


def build_index(
    documents: str | Path | Documents,
    encoder: str | Path | LanguageModel | RetrievalEncoder,
    out: Path | str,
    *,
    errors: str = "strict",
    **options: Any,
) -> StoredIndex:
    """Build a retrieval index of documents in a folder, atomically, and open it.

    `documents` are a built-in set (capitals, wordnet), a file, a folder, or `Documents`. `encoder`
    is a run or model with `Encode`, a folder in Hugging Face format, or "bm25" for a lexical index.
    `options` are those of `lmlab.retrieval.stored_index.build_index`: kind (flat, ivf, hnsw),
    recall, batch, seed, progress.

    >>> index = lmlab.build_index("capitals", "bm25", "indexes/capitals")
    >>> [hit.document.text for hit in index.search(["Peru"], k=1)[0]]
    ['the capital of Peru is Lima']
    """
    from lmlab.data.lines import check_errors
    from lmlab.interop.text_encoders import as_encoder
    from lmlab.retrieval.documents import load_documents
    from lmlab.retrieval.stored_index import BM25
    from lmlab.retrieval.stored_index import build_index as build

    if isinstance(documents, (str, Path)):
        documents = load_documents(documents, errors=check_errors(errors))
    encoder_model = encoder.model if isinstance(encoder, LanguageModel) else encoder
    return build(
        documents, None if encoder_model == BM25 else as_encoder(encoder_model), out, **options
    )


def open_index(
    path: Path | str,
    *,
    encoder: str | Path | LanguageModel | RetrievalEncoder | None = None,
    verify: bool = True,
) -> StoredIndex:
    """Open a retrieval index; vectors are memory-mapped.

    `encoder` is the one it was built with, by default from its original location. Files are checked
    against the hashes in manifest.json before first use, unless `verify` is false.

    >>> index = lmlab.open_index("indexes/capitals")
    >>> len(index), [hit.number for hit in index.search(["the capital of Peru"], k=1)[0]]
    (186, [47])
    """
    from lmlab.interop.text_encoders import as_encoder, find_encoder
    from lmlab.retrieval.stored_index import open_index as open_stored

    with verification(verify):
        if encoder is None:
            return open_stored(path, find_encoder=find_encoder)
        encoder_model = encoder.model if isinstance(encoder, LanguageModel) else encoder
        return open_stored(path, find_encoder=lambda *_: as_encoder(encoder_model))
