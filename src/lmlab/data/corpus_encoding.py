"""From examples to columns of ids, chunk by chunk, as a layout says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.column_store import Columns
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.readers import Example
from lmlab.data.tokenizers import Tokenizer

CHUNK_EXAMPLES = 4096
CHUNK_CHARACTERS = 2**20


class EntityNumbering(Protocol):
    """What gives entities their numbers: a knowledge base."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of each entity by its name."""
        ...

    def fingerprint(self) -> str:
        """A string that changes when any number does."""
        ...


def encoded_chunks(
    split: Split,
    tokenizer: Tokenizer,
    source: Tokenizer,
    layout: Layout,
    *,
    progress: bool,
    entities: EntityNumbering | None = None,
) -> Iterator[Columns]:
    """The columns of a split, a few thousand examples at a time.

    tokens, one entry a token; offsets, the place of each sequence's first predicted or context
    token and after the last the end; characters and unknown, one entry an example; for pairs also
    condition_tokens and condition_offsets; with `entities` also entities, one entry a token: the
    number of the one that the corpus tells it names, -1 where none. Concatenated over chunks they
    are the whole split.
    """
    target_side = _Side(tokenizer, layout)
    source_side = _Side(source, Layout()) if layout.kind == "pairs" else None
    seen = 0
    with _progress_bar(split, progress) as advance:
        for examples in _chunks(split):
            columns = target_side.encode([example.text for example in examples])
            if source_side is not None:
                given = source_side.encode([_condition(example) for example in examples])
                columns["condition_tokens"] = given["tokens"]
                columns["condition_offsets"] = given["offsets"]
            if entities is not None:
                numbered = enumerate(examples, seen + 1)
                columns["entities"] = _entity_column(numbered, split.name, target_side, entities)
            seen += len(examples)
            advance()
            yield columns


def _condition(example: Example) -> str:
    if example.condition is None:
        raise UserError(f"expected a pair, but the text {example.text[:40]!r} has no source.")
    return example.condition


def _entity_column(
    examples: Iterable[tuple[int, Example]], split: str, side: _Side, entities: EntityNumbering
) -> NDArray[np.int32]:
    """The entity of each token of some examples, one after another; -1 where none is told.

    Examples come with their numbers in the split, from 1, by which errors name those whose line is
    not known.
    """
    if side.layout.kind == "contiguous":
        raise UserError("contiguous text has no mentions; give a corpus of single texts.")
    flat: list[int] = []
    head, tail = special_tokens_around(side.tokenizer.vocabulary, side.layout)
    for number, example in examples:
        if strange := [m.entity for m in example.mentions if m.entity not in entities.numbers]:
            where = example.location or f"text {number:,} of {split}"
            raise UserError(
                f"{where} ({example.text[:40]!r}) names the entity "
                f"{strange[0]!r}, which the knowledge does not have; add it, or give the knowledge "
                "it belongs to."
            )
        covered = [-1] * len(head)
        _, spans = side.tokenizer.encode_with_offsets(example.text)
        for low, high in spans:
            covered.append(_entity_at(example, low, high, entities))
        flat += [*covered, *[-1] * len(tail)][: side.layout.cut]
    return np.array(flat, dtype=np.int32)


def _entity_at(example: Example, low: int, high: int, entities: EntityNumbering) -> int:
    """The number of the entity whose mention holds characters of [low, high)."""
    for mention in example.mentions:
        if low < mention.end and mention.start < high:
            return entities.numbers[mention.entity]
    return -1


@dataclass
class _Side:
    """One side of the examples (the texts, or their sources); counts where it is in the stream."""

    tokenizer: Tokenizer
    layout: Layout
    place: int | None = None
    """Tokens written so far; None before the first chunk."""

    def encode(self, texts: list[str]) -> Columns:
        vocabulary = self.tokenizer.vocabulary
        head, tail = special_tokens_around(vocabulary, self.layout)
        flat: list[int] = []
        characters: list[int] = []
        unknown: list[int] = []
        missing = -1 if vocabulary.unknown is None else vocabulary.unknown
        first = self.place is None
        if first and self.layout.kind == "contiguous":
            flat += tail
        self.place = (self.place or 0) + len(flat)
        offsets = [self.place] if first else []
        for text, ids in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            sequence = [*head, *ids, *tail][: self.layout.cut]
            flat += sequence
            self.place += len(sequence)
            offsets.append(self.place)
            dropped = len(head) + len(ids) > len(sequence)
            kept = len(sequence) - len(head)
            characters.append(self.tokenizer.characters_of(text, kept) if dropped else len(text))
            # Of the text's own tokens: a frame of GPT-2's end of text, which is its unknown token
            # too, holds no unknown word.
            unknown.append(ids[:kept].count(missing))
        return self._columns(flat, offsets, characters, unknown)

    def _columns(
        self, flat: list[int], offsets: list[int], characters: list[int], unknown: list[int]
    ) -> Columns:
        vocabulary = self.tokenizer.vocabulary
        tokens = np.array(flat, dtype=np.uint16 if vocabulary.size <= 2**16 else np.uint32)
        return {
            "tokens": tokens,
            "offsets": np.array(offsets, dtype=np.int64),
            "characters": np.array(characters, dtype=np.int32),
            "unknown": np.array(unknown, dtype=np.int32),
        }


def special_tokens_around(vocabulary: Vocabulary, layout: Layout) -> tuple[list[int], list[int]]:
    """The ids before and after the tokens of a text."""
    start = vocabulary.end if vocabulary.start is None else vocabulary.start
    if start is None or (layout.end and vocabulary.end is None):
        raise UserError(
            "this tokeniser has no start or end symbol (<s>, </s> or their like), and texts need "
            "them; train one with --tokenizer."
        )
    tail = [vocabulary.end] if layout.end and vocabulary.end is not None else []
    return ([] if layout.kind == "contiguous" else [start]), tail


def encode_with_special_tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of a source between its symbols, as training reads it; of an empty one these alone.

    Its first place is always a symbol, the end where there is no start: systems count on it.
    """
    vocabulary = tokenizer.vocabulary
    end = () if vocabulary.end is None else (vocabulary.end,)
    return (vocabulary.bos, *tokenizer.encode(text), *end)


def _chunks(split: Iterable[Example]) -> Iterator[list[Example]]:
    """Lists of examples, bounded in number and in characters."""
    chunk: list[Example] = []
    characters = 0
    for example in split:
        chunk.append(example)
        characters += len(example.text) + len(example.condition or "")
        if len(chunk) >= CHUNK_EXAMPLES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


@contextmanager
def _progress_bar(split: Split, shown: bool) -> Iterator[Any]:
    """A bar on standard error that disappears when it is full; hands out what advances it."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("tokenising {task.fields[name]}"),
        BarColumn(),
        TextColumn("{task.fields[examples]:,} examples"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        # Where nobody watches, rich would still leave empty lines behind.
        disable=not console.is_terminal,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("", total=split.size_bytes(), name=split.name, examples=0)
        yield lambda: bar.update(
            task, completed=split.report.bytes_read, examples=split.report.examples
        )


@dataclass(frozen=True)
class CorpusEntities:
    """Entities by their names alone, numbered in the order of the alphabet."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]

    def fingerprint(self) -> str:
        return hashlib.blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()


def corpus_entities(corpus: Corpus) -> CorpusEntities | None:
    """What the texts of all splits tell that they mention; None where they tell nothing.

    It takes a pass over the corpus, in memory for the names.
    """
    told = {m.entity for split in corpus.splits.values() for each in split for m in each.mentions}
    names = tuple(sorted(told))
    return CorpusEntities(names, {name: i for i, name in enumerate(names)}) if names else None
