"""Data loaders: training and held-out batches, BPTT streams, gradient accumulation groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmlab.core.batch import Batch
from lmlab.data.batches import LengthBatches, MixedBatches, StreamBatches
from lmlab.data.corpus import Corpus
from lmlab.data.corpus_encoding import EntityNumbering
from lmlab.data.dataset import TokenDataset
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.config import TrainingConfig


class BatchLoader(Protocol):
    """Batches of a dataset, deterministic per epoch, starting at any position."""

    def batches_per_epoch(self, number: int = 0) -> int: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]: ...


HELD_OUT_BPTT = 512
"""Segment length of held-out contiguous text where the state is carried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FitData:
    """Training batches, and held-out batches where there are any."""

    train: BatchLoader
    held_out: BatchLoader | None = None
    held_out_split: str | None = None
    """validation; or, without one, test, which is reported but decides nothing."""
    carries_state: bool = False
    """Whether text continues from batch to batch, and with it the recurrent state."""

    @property
    def has_validation(self) -> bool:
        """Whether the held-out loss may select weights, stop training or change the rate."""
        return self.held_out_split == "validation"


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingData(FitData):
    """The training split of a corpus, and a held-out one where it has any."""

    dataset: TokenDataset
    max_length: int = 0
    """Tokens of the longest input sequence, its context included."""
    max_source_length: int = 0
    """Tokens of the longest source; 0 where there are none."""

    def flat(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """All ids concatenated, and the sequence boundaries (N + 1); a stream is one sequence."""
        tokens = self.dataset.stream
        if self.dataset.layout.kind == "contiguous":
            return tokens, np.array([0, len(tokens)], dtype=np.int64)
        return tokens, np.concatenate([[0], np.cumsum(self.dataset.lengths)])

    def with_held_out_bptt(self, bptt: int) -> TrainingData:
        """The same, with held-out contiguous text in segments of `bptt`; sentences stay whole."""
        if not isinstance(self.held_out, StreamBatches):
            return self
        held_out = StreamBatches(self.held_out.dataset, batch_size=1, bptt=bptt)
        return replace(self, held_out=held_out)

    def with_mixed_lengths(self) -> TrainingData:
        """The same, with texts of mixed lengths in each training batch."""
        train = self.train
        assert isinstance(train, LengthBatches), "contiguous text has no sequences to mix"
        mixed = MixedBatches(self.dataset, tokens_per_batch=train.tokens_per_batch, seed=train.seed)
        return replace(self, train=mixed)


def training_data(
    corpus: Corpus,
    tokenizer: Tokenizer,
    config: TrainingConfig,
    *,
    progress: bool = True,
    source_tokenizer: Tokenizer | None = None,
    entities: EntityNumbering | None = None,
) -> TrainingData:
    """Tokenize a corpus and set up its batches.

    Without a validation split, the loss on the test split is reported but selects nothing.
    `source_tokenizer` is that of the sources, where it differs; `entities` numbers the entities
    that the texts mention, where the corpus annotates them.
    """
    held_out_split = next((name for name in ("validation", "test") if name in corpus.splits), None)

    def tokenize(split: str) -> TokenDataset:
        return TokenDataset.build(
            corpus.splits[split],
            tokenizer,
            corpus.layout,
            progress=progress,
            condition_tokenizer=source_tokenizer,
            entities=entities,
        )

    dataset = tokenize("train")
    held_out = None if held_out_split is None else tokenize(held_out_split)
    return TrainingData(
        dataset=dataset,
        train=training_batches(dataset, config),
        held_out=None if held_out is None else held_out_batches(held_out, config),
        held_out_split=held_out_split,
        carries_state=corpus.layout.kind == "contiguous",
        max_length=_max_length(dataset, held_out, config),
        max_source_length=_max_source_length(dataset, held_out),
    )


def _max_length(
    dataset: TokenDataset, held_out: TokenDataset | None, config: TrainingConfig
) -> int:
    if dataset.layout.kind == "contiguous":
        return 1 + config.bptt  # held-out text is cut to the system's maximum length
    splits = [dataset] if held_out is None else [dataset, held_out]
    return max(int(split.lengths.max()) for split in splits)


def _max_source_length(dataset: TokenDataset, held_out: TokenDataset | None) -> int:
    splits = [split for split in (dataset, held_out) if split is not None and split.has_condition]
    lengths = [split.condition_lengths_between(0, len(split)) for split in splits]
    return max((int(split_lengths.max()) for split_lengths in lengths), default=0)


def training_batches(dataset: TokenDataset, config: TrainingConfig) -> BatchLoader:
    """Parallel streams of contiguous text, or shuffled batches of similar lengths."""
    if dataset.layout.kind == "contiguous":
        return StreamBatches(dataset, batch_size=config.stream_batch_size, bptt=config.bptt)
    return LengthBatches(dataset, tokens_per_batch=config.tokens_per_batch, seed=config.seed)


def held_out_batches(dataset: TokenDataset, config: TrainingConfig) -> BatchLoader:
    """Contiguous text as a single stream, so that the loss equals the score of the text."""
    if dataset.layout.kind == "contiguous":
        return StreamBatches(dataset, batch_size=1, bptt=HELD_OUT_BPTT)
    return LengthBatches(
        dataset, tokens_per_batch=config.tokens_per_batch, seed=config.seed, shuffle=False
    )


def gradient_accumulation_groups(
    loader: BatchLoader, *, epoch: int, position: int, size: int
) -> Iterator[list[Batch]]:
    """Gradient accumulation: batches `size` at a time, epoch after epoch, from a position on.

    The last group of an epoch may be smaller; no group spans two epochs.
    """
    while True:
        batches = loader.epoch(epoch, position)
        while group := list(islice(batches, size)):
            yield group
        epoch, position = epoch + 1, 0
