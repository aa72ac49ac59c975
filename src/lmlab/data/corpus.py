"""A corpus: named splits of examples, how they are laid out, and the truth where it is known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport, is_gzip
from lmlab.data.readers import Example, ExampleReader, GeneratedExamples
from lmlab.data.truth import Truth

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How examples become sequences of tokens."""

    kind: Literal["sentences", "contiguous", "pairs"] = "sentences"
    """Each text afresh from <s>; one stream that goes on over </s>; each text given another."""
    cut: int | None = None
    """Most tokens in all, <s> and </s> counted; a longer sequence is simply cut and has no </s>."""
    end: bool = True
    """Whether </s> is appended, and so predicted."""

    def __post_init__(self) -> None:
        if self.cut is not None and self.cut < 2:
            raise UserError(f"a cut must leave at least <s> and one token, not {self.cut}.")
        if self.kind == "contiguous" and (self.cut is not None or not self.end):
            raise UserError("contiguous text is one stream: it is not cut, and its lines end.")


class Split:
    """Examples that can be passed over again and again; nothing is kept in memory."""

    def __init__(self, reader: ExampleReader, *, name: str = "text") -> None:
        self.reader = reader
        self.name = name
        self.report = ReadingReport()
        """What the latest pass met; complete when that pass is."""

    @classmethod
    def from_list(cls, examples: Iterable[Example | str], *, identity: str, name: str) -> Split:
        """A split of given examples; `identity` is name, version and seed of what made them."""
        kept = tuple(Example(item) if isinstance(item, str) else item for item in examples)
        return cls(GeneratedExamples(lambda: kept, identity), name=name)

    @classmethod
    def generated(cls, make: Callable[[], Iterable[Example]], *, identity: str, name: str) -> Split:
        """A split made afresh by `make` on each pass, always the same examples."""
        return cls(GeneratedExamples(make, identity), name=name)

    def __iter__(self) -> Iterator[Example]:
        report = self.report = ReadingReport()
        for example in self.reader.read(report):
            report.examples += 1
            yield example
        if report.examples == 0:
            where = ", ".join(map(str, self.reader.files()[:3])) or self.name
            raise UserError(
                f"{where} holds no example for the {self.name} split ({report.summary()}); give a "
                "file with at least one line of text."
            )

    def first(self, count: int = 1) -> list[Example]:
        """The first examples, without reading on; an empty split is an error here already."""
        return list(islice(self, count))

    def texts(self) -> Iterator[str]:
        """All texts, and for pairs their conditions: what a joint vocabulary is made of."""
        for example in self:
            if example.condition is not None:
                yield example.condition
            yield example.text

    def texts_of_side(self, *, source: bool) -> Iterator[str]:
        """The texts alone, or what they are given alone: what separate vocabularies are made of."""
        for example in self:
            yield (example.condition or "") if source else example.text

    def size_bytes(self) -> int | None:
        """Bytes that a pass will read, for a progress bar; None where it cannot be known before."""
        files = self.reader.files()
        if not files or any(is_gzip(path) for path in files):
            return None
        return sum(path.stat().st_size for path in files)

    def fingerprint(self) -> str:
        """Hash of the content: equal if and only if the examples are (in practice)."""
        return hashlib.blake2b(self.reader.identity().encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A named body of text in splits, with what is needed to read it as its makers meant."""

    name: str
    splits: Mapping[str, Split]
    """Among train, validation and test; a corpus need not have all of them."""
    layout: Layout = field(default_factory=Layout)
    tokenizer: str = "word"
    """Default tokeniser: word, char, bpe or wordpiece."""
    min_count: int = 1
    """Words seen less often in training become <unk>, by default."""
    vocabulary_from: Sequence[str] = ("train",)
    """Splits whose words make the vocabulary: train, unless a protocol says otherwise."""
    truth: Truth | None = None
    description: str = ""

    def __post_init__(self) -> None:
        strange = set(self.splits) - set(SPLITS)
        assert not strange and "train" in self.splits, f"splits of {self.name}: {list(self.splits)}"
        assert set(self.vocabulary_from) <= set(self.splits), f"vocabulary of {self.name}"

    def split(self, name: str) -> Split:
        """The split of that name; where there is no validation split, test (or train) stands in.

        A missing test split is an error: nothing else may be reported in its place.
        """
        if name not in SPLITS:
            raise UserError(f"there is no split called {name!r}; choose from {', '.join(SPLITS)}.")
        if name in self.splits:
            return self.splits[name]
        if name == "validation":
            return self.splits.get("test", self.splits["train"])
        raise UserError(
            f"the corpus {self.name} has no {name} split, only {', '.join(self.splits)}; choose "
            "one of these."
        )

    def vocabulary_texts(self, *, source: bool | None = None) -> Iterator[str]:
        """The texts a tokeniser is trained on; of pairs both sides, the source's or the other's."""
        for name in self.vocabulary_from:
            split = self.splits[name]
            yield from split.texts() if source is None else split.texts_of_side(source=source)

    def fingerprint(self) -> str:
        """Hash of all content and of the layout; files are streamed."""
        digest = hashlib.blake2b(repr(sorted(asdict(self.layout).items())).encode(), digest_size=16)
        for name in sorted(self.splits):
            digest.update(f"{name}={self.splits[name].fingerprint()}\n".encode())
        return digest.hexdigest()


def open_corpus(spec: str | Path, *, errors: str = "strict", seed: int = 0) -> Corpus:
    """The corpus that a specification names; see `lmlab.data.load_corpus` for its forms.

    A built-in name, a file, a folder with `train*`, `val*|valid*|dev*`, `test*` in it, or NAME:PATH
    for a protocol. `seed` decides generated texts and how a single file is split.
    """
    # Imported late, because every form of corpus is built from the classes above.
    from lmlab.data.load_corpus import load_corpus

    return load_corpus(str(spec), errors=errors, seed=seed)
