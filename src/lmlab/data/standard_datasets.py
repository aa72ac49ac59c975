"""Standard datasets (PTB, Multi30k, CATH, bAbI) with the preprocessing behind published results.

A protocol fixes the files, the split, the truncation and the vocabulary, so that results are
comparable. `NAME:PATH` opens one, where PATH is the dataset's folder or its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError, unknown_name
from lmlab.data.babi import Babi
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.lines import Errors
from lmlab.data.readers import ExampleReader, Fasta, ParallelFiles, PlainText
from lmlab.data.splitting import ShuffledExamples, split_every_fifth

NO_VALIDATION = "The protocol has no validation split: the test split is used for validation."


@dataclass(frozen=True, kw_only=True)
class ProtocolFiles:
    """Location of a dataset's files, and how strictly they are read."""

    root: Path
    folder: str
    protocol: str
    errors: Errors
    seed: int

    def file(self, *names: str) -> Path:
        """The first of these names that exists in the folder, plain or gzipped."""
        for base in (self.root / self.folder, self.root):
            for name in names:
                for candidate in (base / name, base / f"{name}.gz"):
                    if candidate.is_file():
                        return candidate
        raise UserError(
            f"the protocol {self.protocol} needs {names[0]}, which is neither in {self.root} nor "
            f"in {self.root / self.folder}."
        )

    def text(self, *names: str) -> PlainText:
        """A reader of that file, one sentence per line."""
        return PlainText(path=self.file(*names), errors=self.errors)


@dataclass(frozen=True)
class CorpusProtocol:
    """A named preprocessing protocol of a dataset."""

    folder: str
    """Name of the dataset's folder."""
    description: str
    build: Callable[[ProtocolFiles, str], Corpus]
    """Builds the corpus from its files and description."""


def open_protocol(name: str, root: Path, *, errors: Errors = "strict", seed: int = 0) -> Corpus:
    """Open the corpus of a protocol, with its data in `root` or in the dataset's folder in it."""
    if name not in CORPUS_PROTOCOLS:
        raise unknown_name("protocol", name, CORPUS_PROTOCOLS)
    protocol = CORPUS_PROTOCOLS[name]
    source = ProtocolFiles(
        root=root, folder=protocol.folder, protocol=name, errors=errors, seed=seed
    )
    return protocol.build(source, protocol.description)


def _corpus(
    source: ProtocolFiles, readers: Mapping[str, ExampleReader], description: str, **options: Any
) -> Corpus:
    """The corpus of a reader for each split; `options` are fields of `Corpus`."""
    splits = {part: Split(reader, name=part) for part, reader in readers.items()}
    return Corpus(name=source.protocol, splits=splits, description=description, **options)


def _multi30k_l20(source: ProtocolFiles, description: str) -> Corpus:
    reader = source.text("train.en")
    return _corpus(
        source,
        {
            "train": ShuffledExamples(reader, source.seed, 0.0, 0.8),
            "test": ShuffledExamples(reader, source.seed, 0.8, 1.0),
        },
        f"{description} Shuffled by seed {source.seed}. {NO_VALIDATION}",
        layout=Layout(cut=20),
        vocabulary_from=("train", "test"),
    )


def _multi30k(source: ProtocolFiles, description: str) -> Corpus:
    files = {"train": "train.en", "validation": "val.en", "test": "test_2016_flickr.en"}
    readers = {part: source.text(file) for part, file in files.items()}
    return _corpus(source, readers, description, min_count=2)


def _characters(source: ProtocolFiles, reader: ExampleReader, description: str, cut: int) -> Corpus:
    """Texts as characters without an end token; every fifth is test."""
    return _corpus(
        source,
        {part: split_every_fifth(reader, part) for part in ("train", "test")},
        f"{description} {NO_VALIDATION}",
        layout=Layout(cut=cut, end=False),
        tokenizer="char",
    )


def _multi30k_char(source: ProtocolFiles, description: str) -> Corpus:
    return _characters(source, source.text("train.en"), description, 100)


def _cath(cut: int) -> Callable[[ProtocolFiles, str], Corpus]:
    def build(source: ProtocolFiles, description: str) -> Corpus:
        reader = Fasta(path=source.file("cath-domain-seqs-S35.fa"), errors=source.errors)
        return _characters(source, reader, description, cut)

    return build


def _ptb(layout: Layout) -> Callable[[ProtocolFiles, str], Corpus]:
    files = {
        "train": ("train.txt", "ptb.train.txt"),
        "validation": ("valid.txt", "ptb.valid.txt"),
        "test": ("test.txt", "ptb.test.txt"),
    }

    def build(source: ProtocolFiles, description: str) -> Corpus:
        readers = {part: source.text(*names) for part, names in files.items()}
        return _corpus(source, readers, description, layout=layout)

    return build


def _babi(task: int) -> Callable[[ProtocolFiles, str], Corpus]:
    files = {"train": "train", "validation": "valid", "test": "test"}

    def build(source: ProtocolFiles, description: str) -> Corpus:
        readers = {
            part: Babi(path=source.file(f"qa{task}_{end}.txt"), errors=source.errors)
            for part, end in files.items()
        }
        return _corpus(source, readers, description)

    return build


def _multi30k_pairs(source: ProtocolFiles, description: str) -> Corpus:
    files = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
    readers = {
        part: ParallelFiles(
            source=source.file(f"{stem}.de"), target=source.file(f"{stem}.en"), errors=source.errors
        )
        for part, stem in files.items()
    }
    return _corpus(source, readers, description, layout=Layout(kind="pairs"), min_count=2)


_LETTERS = (
    "as letters, with a start token and no end token, cut to {} in all; every fifth sequence is "
    "test."
)

CORPUS_PROTOCOLS: dict[str, CorpusProtocol] = {
    "multi30k-l20": CorpusProtocol(
        "multi30k",
        "Captions with <s> and </s>, cut to 20 tokens in all, every word of the file in the "
        "vocabulary, shuffled once and split 80/20.",
        _multi30k_l20,
    ),
    "multi30k": CorpusProtocol(
        "multi30k",
        "Captions: train.en, val.en, test_2016_flickr.en; every token and the end of sentence is "
        "predicted; words seen once in training become <unk>.",
        _multi30k,
    ),
    "multi30k-char-l100": CorpusProtocol(
        "multi30k",
        "Captions as characters, with a start token and no end token, cut to 100 in all; every "
        "fifth line is test.",
        _multi30k_char,
    ),
    "cath-l100": CorpusProtocol("cath", f"Protein domains {_LETTERS.format(100)}", _cath(100)),
    "cath-l20": CorpusProtocol("cath", f"Protein domains {_LETTERS.format(20)}", _cath(20)),
    "ptb-contiguous": CorpusProtocol(
        "ptb",
        "Penn Treebank, Mikolov's split, end of line as a token, state carried across lines.",
        _ptb(Layout(kind="contiguous")),
    ),
    "ptb-sentence": CorpusProtocol(
        "ptb",
        "Penn Treebank, Mikolov's split, end of line as a token, state reset at each line.",
        _ptb(Layout()),
    ),
    **{
        f"babi-{task}": CorpusProtocol(
            "babi",
            f"bAbI task {task} (en-valid-10k): story, question and answer as one text per "
            "question.",
            _babi(task),
        )
        for task in (1, 2, 5, 15)
    },
    "multi30k-de-en": CorpusProtocol(
        "multi30k",
        "Captions, English given German: train, val, test_2016_flickr; words seen once in "
        "training become <unk>. BLEU is computed by sacreBLEU with tokenize=none.",
        _multi30k_pairs,
    ),
}
