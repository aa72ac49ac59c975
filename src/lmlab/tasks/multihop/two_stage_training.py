"""Two-stage training of CogQA (Ding et al. 2019), spans then nodes, and the batches of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.tracking_options import Tracker
from lmlab.data.tokenizers import Tokenizer
from lmlab.layers.span_pointers import label_tensor
from lmlab.models.cogqa import CogQA, CogQANodeTraining
from lmlab.tasks.finetune_job import fit_stage
from lmlab.tasks.input_pipeline import length_ordered_batches
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
        lengths = [len(example.input.tokens) for example in examples]
        self.order = length_ordered_batches(lengths, config, shuffle=shuffle)

    def batches_per_epoch(self, number: int = 0) -> int:
        return self.order.batches_per_epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        for batch in self.order.epoch(number, start):
            rows = batch.rows.tolist()
            examples = [self.examples[row] for row in rows]
            inputs = Batch.collate([e.input.tokens for e in examples], self.pad, rows=rows)
            yield replace(inputs, labels=label_tensor([e.labels for e in examples]))


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
        tokens = sum(len(e.inputs) * max(len(node.tokens) for node in e.inputs) for e in examples)
        self.size = max(1, config.tokens_per_batch * len(examples) // max(tokens, 1))

    def batches_per_epoch(self, number: int = 0) -> int:
        return -(-len(self.examples) // self.size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        order = np.arange(len(self.examples))
        if self.shuffle:
            order = np.random.default_rng([self.seed, number]).permutation(order)
        for low in range(start * self.size, len(order), self.size):
            yield self._batch(order[low : low + self.size].tolist())

    def _batch(self, indices: Sequence[int]) -> Batch:
        tokens: list[list[int]] = []
        rows: list[int] = []
        labels: list[PointerLabels] = []
        for index in indices:
            example = self.examples[index]
            tokens += [node_input.tokens for node_input in example.inputs]
            rows += [self.first + index] * len(example.inputs)
            labels += example.labels
        batch = Batch.collate(tokens, self.pad, rows=rows)
        return replace(batch, labels=label_tensor(labels))


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
    track: Sequence[str | Tracker] = ()

    @property
    def encoder(self) -> NodeEncoder:
        reader = self.system.reader
        return NodeEncoder(self.tokenizer, reader.vocabulary, reader.longest)

    def train_reader(self, rows: Mapping[str, Sequence[MultihopRow]]) -> int:
        """Train System 1 on spans; returns how many inputs were dropped, their spans truncated."""
        encoder, pad, dropped = self.encoder, self.system.vocabulary.pad, 0
        loaders: dict[str, BatchLoader] = {}
        for name, split_rows in rows.items():
            examples, truncated = span_examples(split_rows, encoder)
            dropped += truncated
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
        all_examples: list[GraphExample] = []
        for name in ("train", "validation"):
            if examples := self.graph_examples(rows.get(name, ())):
                loaders[name] = GraphExampleBatches(
                    examples, config, pad, first=len(all_examples), shuffle=name == "train"
                )
                all_examples += examples
        if "train" not in loaders:
            raise UserError("no question has an answer that its graph can lead to; check the rows.")
        self._fit(CogQANodeTraining(self.system, all_examples), loaders, STAGES[1])
        self.system.reader.requires_grad_(True)

    def graph_examples(self, rows: Sequence[MultihopRow]) -> list[GraphExample]:
        """The gold graph of each row, and the expanded one if the answer is in it."""
        encoder, graphs = self.encoder, []
        for low in range(0, len(rows), GRAPHS_PER_BATCH):
            batch = rows[low : low + GRAPHS_PER_BATCH]
            for row, expanded in zip(
                batch, expand_graphs(self.system.reader, encoder, batch), strict=True
            ):
                candidates = (graph_example(row, encoder), graph_example(row, encoder, expanded))
                graphs += [candidate for candidate in candidates if candidate is not None]
        return graphs if self.system.settings.joint_training else self._with_semantics(graphs)

    def _with_semantics(self, examples: Sequence[GraphExample]) -> list[GraphExample]:
        """With the semantic vectors of all nodes, which are constant if the reader is frozen."""
        missing = [
            item.tokens
            for example in examples
            if example.semantics is None
            for item in example.inputs
        ]
        extracted = iter(self.system.reader.extract(missing))
        return [
            item
            if item.semantics is not None
            else replace(
                item, semantics=torch.stack([next(extracted).semantics for _ in item.inputs])
            )
            for item in examples
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
            track=self.track,
        )
