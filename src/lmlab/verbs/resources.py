"""Verbs of corpora, indexes, word vectors and other tools' formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.notebook import Records
from lmlab.core.options import Argument, Option, as_keywords, takes
from lmlab.core.shared_options import Errors
from lmlab.retrieval.index_options import IndexOptions
from lmlab.verbs.language_model import LanguageModel

if TYPE_CHECKING:
    from lmlab.data.corpus_summary import CorpusSummary
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.retrieval_encoder import RetrievalEncoder
    from lmlab.retrieval.stored_index import DocumentHit, IndexDescription, StoredIndex

    EncoderSource = str | Path | LanguageModel | RetrievalEncoder
    from lmlab.scoring.word_vectors import WordVectors
    from lmlab.verbs.language_model import LanguageModel


FILE_FORMS = {
    "contiguous:PATH": "A file or folder read as one stream that goes on over its lines.",
    "parallel:DE-EN:FOLDER": "Pairs for translating: train*.de beside train*.en, and so for "
    "val*|valid*|dev* and test*, with the names of any two languages.",
    "parallel:FILE,FILE": "Pairs for translating: sources a line, and their translations in the "
    "same lines of the other file; split as a file is.",
}
"""Corpus specs other than a plain file or folder."""


@dataclass(frozen=True, kw_only=True)
class CorpusEntry:
    """A corpus, or a form of one, that `--data` takes."""

    name: str
    form: str
    """built-in, the package of a plug-in, protocol, or your files."""
    description: str


def data_list() -> Records[CorpusEntry]:
    """List the built-in corpora and the protocols for data of your own.

    >>> "capitals" in [entry.name for entry in lmlab.data_list()]
    True
    """
    from lmlab.data.builtin_corpora import named_corpora
    from lmlab.data.standard_datasets import CORPUS_PROTOCOLS

    entries = [
        (name, corpus.package or "built-in", corpus.description)
        for name, corpus in named_corpora().items()
    ]
    entries += [(f"{name}:PATH", "protocol", p.description) for name, p in CORPUS_PROTOCOLS.items()]
    entries += [(name, "your files", text) for name, text in FILE_FORMS.items()]
    return Records(CorpusEntry(name=n, form=f, description=d) for n, f, d in entries)


def data_describe(
    corpus: Annotated[
        str | Path,
        Argument(
            "A built-in name, a file, a folder, NAME:PATH for a protocol, or for pairs "
            "parallel:de-en:FOLDER or parallel:FILE,FILE; see lmlab data list.",
            metavar="CORPUS",
        ),
    ],
    *,
    tokenizer: Annotated[
        str | None,
        Option("Tokenizer: word, char, byte, bpe or wordpiece.", show_default="the corpus's own"),
    ] = None,
    errors: Errors = "strict",
) -> CorpusSummary:
    """Describe a corpus: sizes, unknown words, duplicates, lengths, entropy if known.

    >>> summary = lmlab.data_describe("capitals")
    >>> summary.name, summary.entropy > 0
    ('capitals', True)
    """
    from lmlab.data.corpus import open_corpus
    from lmlab.data.corpus_summary import summarise_corpus

    return summarise_corpus(open_corpus(corpus, errors=errors), tokenizer)


DEFAULT_HITS = 5
"""Default number of documents retrieved."""
IndexArgument = Annotated[str | Path, Argument("The folder of an index.", metavar="INDEX")]


@dataclass(frozen=True, kw_only=True)
class IndexBuildOptions(IndexOptions):
    """How documents are read, encoded and indexed."""

    errors: Errors = "strict"


@takes(IndexBuildOptions)
def index_build(
    documents: Annotated[
        str | Path | Documents,
        Argument(
            "A built-in set (capitals, wordnet), a .jsonl file of objects with text, name and "
            "title, a text file with a document a line, or a folder of .txt files.",
            metavar="DOCS",
        ),
    ],
    encoder: Annotated[
        str | Path | EncoderSource,
        Option(
            "Encoder of the documents: a run, a folder in the Hub's format, or bm25 for an index "
            "by words."
        ),
    ],
    out: Annotated[str | Path, Option("Output folder.")],
    options: IndexBuildOptions,
) -> StoredIndex:
    """Build a retrieval index of documents.

    It is written atomically and opened. `encoder` is a run or model with `Encode`, a folder in
    Hugging Face format, or "bm25" for a lexical index.

    >>> index = lmlab.index_build("capitals", "bm25", "indexes/capitals")
    >>> [hit.document.text for hit in index.search(["Peru"], k=1)[0]]
    ['the capital of Peru is Lima']
    """
    from lmlab.data.lines import check_errors
    from lmlab.interop.text_encoders import as_encoder
    from lmlab.retrieval.documents import load_documents
    from lmlab.retrieval.stored_index import BM25, build_index

    if isinstance(documents, (str, Path)):
        documents = load_documents(documents, errors=check_errors(options.errors))
    model = encoder.model if isinstance(encoder, LanguageModel) else encoder
    chosen = as_keywords(options, IndexOptions)
    return build_index(documents, None if model == BM25 else as_encoder(model), out, **chosen)


def open_index(
    path: str | Path, *, encoder: EncoderSource | None = None, verify: bool = True
) -> StoredIndex:
    """Open a retrieval index; vectors are memory-mapped.

    `encoder` is the one it was built with, by default from its original location. Files are checked
    against the hashes in manifest.json before first use, unless `verify` is false.

    >>> index = lmlab.open_index("indexes/capitals")
    >>> len(index), [hit.number for hit in index.search(["the capital of Peru"], k=1)[0]]
    (186, [47])
    """
    from lmlab.core.manifest import verification
    from lmlab.interop.text_encoders import as_encoder, find_encoder
    from lmlab.retrieval.stored_index import open_index as open_stored

    with verification(verify):
        if encoder is None:
            return open_stored(path, find_encoder=find_encoder)
        model = encoder.model if isinstance(encoder, LanguageModel) else encoder
        return open_stored(path, find_encoder=lambda *_: as_encoder(model))


def index_search(
    index: Annotated[
        str | Path | StoredIndex, Argument("The folder of an index.", metavar="INDEX")
    ],
    texts: Sequence[str],
    *,
    k: Annotated[
        int | None,
        Option(
            "Documents to find for each text.",
            flag="-k",
            show_default=f"{DEFAULT_HITS}, or all of fewer",
        ),
    ] = None,
    encoder: Annotated[
        str | Path | EncoderSource | None,
        Option(
            "Encoder that the index was built with.", show_default="where it was when it was built"
        ),
    ] = None,
) -> list[Records[DocumentHit]]:
    """Search an index for the documents nearest to a text.

    >>> [[hit]] = lmlab.index_search("indexes/capitals", ["the capital of Peru"], k=1)
    >>> hit.document.text
    'the capital of Peru is Lima'
    """
    opened = open_index(index, encoder=encoder) if isinstance(index, (str, Path)) else index
    if encoder is not None and opened.about.encoder is None:
        raise UserError(
            f"{opened.path} is searched by words (bm25), not vectors; leave --encoder out."
        )
    hits = opened.search(texts, min(DEFAULT_HITS, len(opened)) if k is None else k)
    return [Records(found) for found in hits]


def index_info(index: IndexArgument) -> IndexDescription:
    """Describe an index: its contents and how it was built.

    >>> lmlab.index_info("indexes/capitals").documents
    186
    """
    from lmlab.retrieval.stored_index import open_index as open_stored

    return open_stored(index).about


VECTOR_FILES = (".txt", ".bin", ".vec")


def words(source: str | Path | LanguageModel) -> WordVectors:
    """Query word vectors: nearest neighbours, analogies, word similarity, export.

    `source` is a run, or a file of word2vec (text or binary), fastText (.vec) or GloVe (text).

    >>> vectors = lmlab.words("runs/window")
    >>> [neighbour.word == "dog" for neighbour in vectors.nearest("dog", 2)]
    [False, False]
    """
    from lmlab.interop.word_vector_files import read_word_vectors
    from lmlab.scoring.word_vectors import word_vectors
    from lmlab.verbs.loading import trained_model

    if isinstance(source, (str, Path)) and not Path(source).is_dir():
        return read_word_vectors(source)
    model = trained_model(source)
    return word_vectors(model.system, model.tokenizer)


def export_words(vectors: WordVectors, out: str | Path) -> None:
    """Write word vectors as a word2vec file: .txt (or .vec) as text, .bin binary."""
    from lmlab.interop.word2vec import write_word2vec

    if Path(out).suffix not in VECTOR_FILES:
        raise UserError(f"word vectors are saved as .txt (or .vec) or .bin, got {out}.")
    write_word2vec(out, vectors)


RunFolderArgument = Annotated[str | Path, Argument("The folder of a trained run.", metavar="RUN")]
ArpaFile = Annotated[str | Path, Argument("An ARPA file; .gz is compressed.", metavar="FILE")]
NewRun = Annotated[str | Path, Option("The folder of the new run.", metavar="RUN")]


@dataclass(frozen=True, kw_only=True)
class HubExport:
    """An exported checkpoint in Hugging Face format."""

    folder: Path
    model_type: str
    note: str | None
    """What readers of its probabilities must know."""


def import_hf(
    source: Annotated[
        str | Path, Argument("A checkpoint's folder, or its Hub name.", metavar="FOLDER_OR_NAME")
    ],
    *,
    out: NewRun,
    family: Annotated[
        str | None, Option("The model type that it must be of.", metavar="TYPE")
    ] = None,
) -> LanguageModel:
    """Import a Hugging Face checkpoint as a run."""
    from lmlab.interop.hf import checkpoint_import

    return LanguageModel(checkpoint_import.import_hf(source, out, family=family))


def export_hf(
    run: RunFolderArgument,
    folder: Annotated[str | Path, Argument("A new folder.", metavar="FOLDER")],
) -> HubExport:
    """Export a run in Hugging Face format, which transformers loads."""
    from lmlab.interop.hf import checkpoint_export

    family = checkpoint_export.export_hf(run, folder)
    note = checkpoint_export.softmax_note(family)
    return HubExport(folder=Path(folder), model_type=family.model_type, note=note)


def export_arpa(run: RunFolderArgument, file: ArpaFile) -> Path:
    """Export an n-gram run as an ARPA file, which KenLM, SRILM and others read.

    >>> lmlab.export_arpa("runs/ngram", "grammar.arpa").name
    'grammar.arpa'
    """
    from lmlab.interop import arpa

    arpa.export_arpa(run, file)
    return Path(file)


def import_arpa(file: ArpaFile, *, out: NewRun) -> LanguageModel:
    """Import an ARPA file as a run, to be scored, sampled and compared like any other.

    >>> _ = lmlab.export_arpa("runs/ngram", "again.arpa")
    >>> lmlab.import_arpa("again.arpa", out="runs/imported").score(["the cat sleeps"])[0].kind
    'exact'
    """
    from lmlab.interop import arpa

    return LanguageModel(arpa.import_arpa(file, out))
