"""Conditional scoring of parallel texts: log p(text | source), in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

import torch

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.options import as_keywords, takes
from lmlab.core.score import Convention, Score
from lmlab.core.system_protocols import SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.corpus import Layout
from lmlab.data.corpus_encoding import encode_with_special_tokens
from lmlab.data.readers import Example
from lmlab.scoring.score_accumulator import ScoreAccumulator, ScoringRow
from lmlab.scoring.scorer import Scorer, chunk_texts
from lmlab.scoring.scoring_options import ScoringOptions


class SourcePair(NamedTuple):
    """A source and its target text."""

    source: str
    text: str


class SourceScorer:
    """Scorer of (source, text) pairs: log p(text | source) in nats, per token, convention stated.

    A source has its special tokens as in training, an empty one only these, and its tokens are
    never scored. Pairs are read ahead in bounded chunks, batched by the longer of their two sides,
    and returned in their order. Both sides are encoded whole, so there are no windows and no
    methods for masked models; the other options are those of a `Scorer`.
    """

    @takes(ScoringOptions)
    def __init__(
        self,
        system: SystemInfo,
        tokenizer: TokenizerProtocol,
        source_tokenizer: TokenizerProtocol,
        layout: Layout,
        options: ScoringOptions,
    ) -> None:
        if options.window is not None or options.stride is not None:
            raise UserError(
                "window and stride do not apply to texts with a source, which are scored "
                "whole; remove them."
            )
        of_texts = as_keywords(replace(options, carry=False))
        self.texts = Scorer(system, tokenizer, Layout(end=layout.end), **of_texts)
        """The scorer of the target texts."""
        method = self.texts.method
        if method is not None and (method.masked or method.needs_whole_text):
            raise UserError(
                f"the method {method.name} does not apply to texts with a source; remove it."
            )
        self.source_tokenizer = source_tokenizer
        self.convention: Convention = replace(
            self.texts.convention, source=True, window=None, stride=None, lookahead=0
        )
        """The convention of all scores returned."""

    def score(self, pairs: Iterable[tuple[str, str]], per_token: bool = True) -> Iterator[Score]:
        """Score each text given its source; `pairs` are (source, text)."""
        retain_freed_memory()  # a batch frees the memory the next one needs
        generator, method = torch.Generator().manual_seed(self.texts.seed), self.texts.method
        number = 0
        for chunk in chunk_texts((SourcePair(*pair) for pair in pairs), size=_characters):
            rows = [
                self._row(pair, pair_number, per_token)
                for pair_number, pair in enumerate(chunk, number + 1)
            ]
            number += len(chunk)
            self.texts.score_rows(rows, generator)
            for pair, row in zip(chunk, rows, strict=True):
                score = replace(row.accumulator.score(self.convention), source=pair.source)
                if method is not None:
                    method.check_kind(score.kind)
                yield score

    def score_examples(
        self, examples: Iterable[Example], per_token: bool = True
    ) -> Iterator[Score]:
        """Score the pairs of a corpus."""
        return self.score(map(_pair_of, examples), per_token)

    def _row(self, pair: SourcePair, number: int, per_token: bool) -> ScoringRow:
        """A pair as a row; `number` counts from 1 and is for error messages."""
        accumulator = ScoreAccumulator(pair.text, self.texts.vocabulary, per_token=per_token)
        accumulator.add_tokens(self.texts.predicted(accumulator, per_token))
        source = encode_with_special_tokens(self.source_tokenizer, pair.source)
        [row, *other_windows] = self.texts.rows(accumulator)
        try:
            self.texts.system.check_condition_length(len(source))
        except UserError as error:
            raise UserError(f"source {number}: {error}") from error
        if other_windows:
            raise UserError(
                f"text {number}: a text with a source is scored whole, at most "
                f"{self.texts.window} tokens, and {pair.text[:20]!r} … has "
                f"{len(accumulator.pending)}; shorten it."
            )
        return row._replace(source=source)


def _characters(pair: SourcePair) -> int:
    return len(pair.source) + len(pair.text)


def _pair_of(example: Example) -> SourcePair:
    if example.condition is None:
        raise UserError(
            f"each text needs a source, and {example.text[:40]!r} has none; give pairs alone."
        )
    return SourcePair(example.condition, example.text)


def pair_with_sources(sources: Iterable[str], texts: Iterable[str]) -> Iterator[SourcePair]:
    """Zip texts with sources; a UserError where their numbers differ."""
    if isinstance(sources, Sized) and isinstance(texts, Sized) and len(sources) != len(texts):
        raise UserError(
            f"there must be as many texts as sources, got {len(texts)} and {len(sources)}; "
            "give each text its own."
        )
    return _zip_strict(sources, texts)


def _zip_strict(sources: Iterable[str], texts: Iterable[str]) -> Iterator[SourcePair]:
    for count, (source, text) in enumerate(zip_longest(sources, texts)):
        if source is None or text is None:
            ended = "sources" if source is None else "texts"
            raise UserError(
                f"there must be as many texts as sources, and the {ended} ended after "
                f"{count}; give each text its own."
            )
        yield SourcePair(source, text)


def check_takes_source(card: Card) -> None:
    """A UserError where a system takes no source."""
    if not card.conditional:
        raise UserError(
            f"{card.name} scores texts without a source; remove the sources, or score the "
            "texts as continuations (--given, --conditional; in Python score_given)."
        )
