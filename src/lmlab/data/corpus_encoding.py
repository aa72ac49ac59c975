"""Corpus encoding: examples tokenised by layout into id columns, in chunks; entity numbering."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.column_store import Columns
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.data.readers import Example
from lmlab.data.tokenizers import Tokenizer

CHUNK_EXAMPLES = 4096
CHUNK_CHARACTERS = 2**20


class EntityNumbering(Protocol):
    """Entity numbering: maps entity names to ids; implemented by knowledge bases."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """The id of each entity by name."""

    def fingerprint(self) -> str:
        """A string that changes when any id does."""


def encoded_chunks(
    split: Split,
    tokenizer: Tokenizer,
    source: Tokenizer,
    layout: Layout,
    *,
    progress: bool,
    entities: EntityNumbering | None = None,
) -> Iterator[Columns]:
    """Tokenise a split into columns, a few thousand examples at a time.

    tokens: one entry per token; offsets: the start of each sequence, context token included, and
    the end of the last; characters and unknown: one entry per example; for pairs also
    condition_tokens and condition_offsets; with `entities` also entities, one entry per token: the
    id of the entity annotated in the corpus, -1 for none. The chunks concatenate to the whole
    split.
    """
    target_side = _Side(tokenizer, layout)
    source_side = _Side(source, Layout()) if layout.kind == "pairs" else None
    done = 0
    with _progress_bar(split, progress) as advance:
        for examples in _chunks(split):
            columns = target_side.encode([example.text for example in examples])
            if source_side is not None:
                conditions = source_side.encode([_condition(example) for example in examples])
                columns["condition_tokens"] = conditions["tokens"]
                columns["condition_offsets"] = conditions["offsets"]
            if entities is not None:
                numbered = enumerate(examples, done + 1)
                columns["entities"] = _entity_column(numbered, split.name, target_side, entities)
            done += len(examples)
            advance()
            yield columns


def _condition(example: Example) -> str:
    if example.condition is None:
        raise UserError(f"expected a pair, but the text {example.text[:40]!r} has no source.")
    return example.condition


def _entity_column(
    examples: Iterable[tuple[int, Example]], split: str, side: _Side, entities: EntityNumbering
) -> NDArray[np.int32]:
    """The annotated entity of each token of some examples, concatenated; -1 for none.

    Examples come with their index in the split, from 1, which errors report where the line is
    unknown.
    """
    if side.layout.kind == "contiguous":
        raise UserError("contiguous text has no mentions; give a corpus of single texts.")
    flat: list[int] = []
    head, tail = special_tokens_around(side.tokenizer.vocabulary, side.layout)
    for number, example in examples:
        if unknown := [m.entity for m in example.mentions if m.entity not in entities.numbers]:
            where = example.location or f"text {number:,} of {split}"
            raise UserError(
                f"{where} ({example.text[:40]!r}) mentions the entity {unknown[0]!r}, which is "
                "not in the knowledge base; add it, or give the matching knowledge base."
            )
        covered = [-1] * len(head)
        _, spans = side.tokenizer.encode_with_offsets(example.text)
        for low, high in spans:
            covered.append(_entity_at(example, low, high, entities))
        flat += [*covered, *[-1] * len(tail)][: side.layout.cut]
    return np.array(flat, dtype=np.int32)


def _entity_at(example: Example, low: int, high: int, entities: EntityNumbering) -> int:
    """The id of the entity whose mention overlaps characters [low, high)."""
    for mention in example.mentions:
        if low < mention.end and mention.start < high:
            return entities.numbers[mention.entity]
    return -1


@dataclass
class _Side:
    """One side of the examples (targets or sources), with its position in the stream."""

    tokenizer: Tokenizer
    layout: Layout
    position: int | None = None
    """Tokens emitted so far; None before the first chunk."""

    def encode(self, texts: list[str]) -> Columns:
        vocabulary = self.tokenizer.vocabulary
        head, tail = special_tokens_around(vocabulary, self.layout)
        flat: list[int] = []
        characters: list[int] = []
        unknown: list[int] = []
        unknown_id = -1 if vocabulary.unknown is None else vocabulary.unknown
        first = self.position is None
        if first and self.layout.kind == "contiguous":
            flat += tail
        self.position = (self.position or 0) + len(flat)
        offsets = [self.position] if first else []
        for text, ids in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            sequence = [*head, *ids, *tail][: self.layout.cut]
            flat += sequence
            self.position += len(sequence)
            offsets.append(self.position)
            truncated = len(head) + len(ids) > len(sequence)
            size = len(sequence) - len(head)
            characters.append(self.tokenizer.characters_of(text, size) if truncated else len(text))
            # Counted over the text's own tokens: GPT-2's end-of-text, which doubles as the unknown
            # token, is no unknown word when it frames a text.
            unknown.append(ids[:size].count(unknown_id))
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
    """The ids of the special tokens before and after a text."""
    start = vocabulary.end if vocabulary.start is None else vocabulary.start
    if start is None or (layout.end and vocabulary.end is None):
        raise UserError(
            "this tokenizer has no start or end token (such as <s> or </s>), and texts need "
            "one; train one with --tokenizer."
        )
    tail = [vocabulary.end] if layout.end and vocabulary.end is not None else []
    return ([] if layout.kind == "contiguous" else [start]), tail


def encode_with_special_tokens(tokenizer: TokenizerProtocol, text: str) -> tuple[int, ...]:
    """Encode a source with its special tokens, as in training; an empty one has only these.

    The first position is always a special token (the end token if there is no start token), which
    systems rely on.
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
def _progress_bar(split: Split, enabled: bool) -> Iterator[Any]:
    """A transient progress bar on standard error; yields the function that advances it."""
    if not enabled:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from lmlab.core.progress_bars import progress_bar

    bar = progress_bar(
        TextColumn("tokenising {task.fields[name]}"),
        BarColumn(),
        TextColumn("{task.fields[examples]:,} examples"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
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
    """Entities known by name only, numbered alphabetically."""

    names: tuple[str, ...]
    numbers: Mapping[str, int]

    def fingerprint(self) -> str:
        return hashlib.blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()


def corpus_entities(corpus: Corpus) -> CorpusEntities | None:
    """The entities annotated in all splits of a corpus; None if there are none.

    Takes one pass over the corpus; memory for the names.
    """
    named = {
        mention.entity
        for split in corpus.splits.values()
        for example in split
        for mention in example.mentions
    }
    names = tuple(sorted(named))
    return CorpusEntities(names, {name: i for i, name in enumerate(names)}) if names else None
