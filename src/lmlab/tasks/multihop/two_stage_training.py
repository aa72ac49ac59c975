"""Two-stage training of CogQA (Ding et al. 2019): first the spans, then the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.data.batches import LengthBatches
from lmlab.data.tokenizers import Tokenizer
from lmlab.layers.span_pointers import label_tensor
from lmlab.models.cogqa import CogQA, CogQANodeTraining
from lmlab.tasks.finetune_job import fit_stage
from lmlab.tasks.multihop.cognitive_graph import NodeEncoder
from lmlab.tasks.multihop.graph_examples import (
    GraphExample,
    PointerLabels,
    SpanExample,
    graph_example,
    span_examples,
)
from lmlab.tasks.multihop.graph_expansion import expand_graphs
from lmlab.tasks.multihop.multihop_rows import MultihopRow
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import BatchLoader
from lmlab.training.run_folder import RunFolder


class SpanExampleBatches:
    """Batches of inputs of similar length (`LengthBatches`), with their labels."""

    def __init__(
        self, examples: Sequence[SpanExample], config: TrainingConfig, pad: int, *, shuffle: bool
    ) -> None:
        self.examples, self.pad = examples, pad
        self.order = LengthBatches(
            _Lengths(examples, pad),  # type: ignore[arg-type]
            tokens_per_batch=config.tokens_per_batch,
            seed=config.seed,
            shuffle=shuffle,
        )

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.order.epoch(number, start):
            chosen = [self.examples[row] for row in batch.rows.tolist()]
            yield replace(batch, labels=label_tensor([each.labels for each in chosen]))


class GraphExampleBatches:
    """Batches of whole graphs within the token budget on average, in random order."""

    def __init__(
        self,
        examples: Sequence[GraphExample],
        config: TrainingConfig,
        pad: int,
        *,
        first: int = 0,
        shuffle: bool,
    ) -> None:
        self.examples, self.pad, self.seed, self.shuffle = examples, pad, config.seed, shuffle
        self.first = first
        """Index of the first of these graphs among all."""
        tokens = sum(len(each.inputs) * _longest(each) for each in examples)
        self.size = max(1, config.tokens_per_batch * len(examples) // max(tokens, 1))

    def batches_per_epoch(self, number: int = 0) -> int:
        return -(-len(self.examples) // self.size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        order = np.arange(len(self.examples))
        if self.shuffle:
            order = np.random.default_rng([self.seed, number]).permutation(order)
        for low in range(start * self.size, len(order), self.size):
            yield self._batch(order[low : low + self.size].tolist())

    def _batch(self, chosen: Sequence[int]) -> Batch:
        tokens: list[list[int]] = []
        rows: list[int] = []
        labels: list[PointerLabels] = []
        for number in chosen:
            example = self.examples[number]
            tokens += [each.tokens for each in example.inputs]
            rows += [self.first + number] * len(example.inputs)
            labels += example.labels
        batch = Batch.collate(tokens, self.pad, rows=rows)
        return replace(batch, labels=label_tensor(labels))


def _longest(example: GraphExample) -> int:
    return max(len(each.tokens) for each in example.inputs)


class _Lengths:
    """The part of a dataset that `LengthBatches` needs, for inputs."""

    has_condition = False
    has_entities = False

    def __init__(self, examples: Sequence[SpanExample], pad: int) -> None:
        self._tokens = [np.array(each.input.tokens) for each in examples]
        self._lengths = np.array([len(each) for each in self._tokens])
        self.vocabulary = _Pad(pad)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Any:
        return self._tokens[index]

    def lengths_between(self, low: int, high: int) -> Any:
        return self._lengths[low:high]


@dataclass(frozen=True)
class _Pad:
    pad: int


STAGES = ("spans", "nodes")
"""The folders of the two stages in a run's own, each with its metrics and checkpoints."""
GRAPHS_PER_BATCH = 128
FROZEN_READER_FACTOR = 8
"""Factor of tokens per batch in the second stage if the reader is frozen: nothing is encoded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStageTraining:
    """CogQA's two training stages: the reader on spans, then the graph network on nodes."""

    system: CogQA
    tokenizer: Tokenizer
    config: TrainingConfig
    folder: RunFolder
    quiet: bool = False

    @property
    def encoder(self) -> NodeEncoder:
        reader = self.system.reader
        return NodeEncoder(self.tokenizer, reader.vocabulary, reader.longest)

    def train_reader(self, rows: Mapping[str, Sequence[MultihopRow]]) -> int:
        """Train System 1 on spans; returns how many inputs were dropped, their spans truncated."""
        encoder, pad, dropped = self.encoder, self.system.vocabulary.pad, 0
        loaders: dict[str, BatchLoader] = {}
        for name, found in rows.items():
            examples, cut = span_examples(found, encoder)
            dropped += cut
            if examples:
                loaders[name] = SpanExampleBatches(
                    examples, self.config, pad, shuffle=name == "train"
                )
        self._fit(self.system.reader, loaders, STAGES[0])
        return dropped

    def train_graph_network(self, rows: Mapping[str, Sequence[MultihopRow]]) -> None:
        """Train System 2 on the gold graphs and on those that System 1 expands."""
        pad, config = self.system.vocabulary.pad, self.config
        if not self.system.settings.joint_training:
            config = replace(
                config, tokens_per_batch=FROZEN_READER_FACTOR * config.tokens_per_batch
            )
        loaders: dict[str, BatchLoader] = {}
        every: list[GraphExample] = []
        for name in ("train", "validation"):
            if found := self.graph_examples(rows.get(name, ())):
                loaders[name] = GraphExampleBatches(
                    found, config, pad, first=len(every), shuffle=name == "train"
                )
                every += found
        if "train" not in loaders:
            raise UserError("no question has an answer that its graph can lead to; check the rows.")
        self._fit(CogQANodeTraining(self.system, every), loaders, STAGES[1])
        self.system.reader.requires_grad_(True)

    def graph_examples(self, rows: Sequence[MultihopRow]) -> list[GraphExample]:
        """The gold graph of each row, and the expanded one if the answer is in it."""
        encoder, graphs = self.encoder, []
        for low in range(0, len(rows), GRAPHS_PER_BATCH):
            some = rows[low : low + GRAPHS_PER_BATCH]
            for row, grown in zip(
                some, expand_graphs(self.system.reader, encoder, some), strict=True
            ):
                both = (graph_example(row, encoder), graph_example(row, encoder, grown))
                graphs += [each for each in both if each is not None]
        return graphs if self.system.settings.joint_training else self._with_semantics(graphs)

    def _with_semantics(self, examples: Sequence[GraphExample]) -> list[GraphExample]:
        """With the semantic vectors of all nodes, which are constant if the reader is frozen."""
        missing = [
            each.tokens
            for example in examples
            if example.semantics is None
            for each in example.inputs
        ]
        extracted = iter(self.system.reader.extract(missing))
        return [
            each
            if each.semantics is not None
            else replace(
                each, semantics=torch.stack([next(extracted).semantics for _ in each.inputs])
            )
            for each in examples
        ]

    def _fit(self, system: System, loaders: Mapping[str, BatchLoader], stage: str) -> None:
        fit_stage(
            system,
            loaders,
            folder=RunFolder(self.folder.path / stage),
            config=self.config,
            unit="nats per paragraph" if stage == STAGES[0] else "nats per answer",
            title=f"stage {1 + STAGES.index(stage)} of {len(STAGES)}: {stage}",
            quiet=self.quiet,
        )
