"""The judge of MemRecall: how relevant each token of a memory is, and what it is taught on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import (
    device_of,
    evaluating,
)
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.collation import by_budget
from lmlab.tasks.long_context.blocks import (
    cost_of,
    side_by_side,
    size_of,
)
from lmlab.tasks.long_context.memrecall import (
    LongText,
    Memory,
    Room,
)
from lmlab.tasks.task import NO_LABEL, Encoded, batch_of

TOKENS_AT_ONCE = 8192


class Judge(nn.Module):
    """judge(z) = sigmoid(MLP(encoder(z))), a number in (0, 1) for each token of z.

    The score of a block is the mean over its tokens, its end symbol left out.
    """

    def __init__(self, base: System, *, width: int, frozen: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.base, self.frozen = base, frozen
        self.mlp = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
        )
        if frozen:
            for parameter in base.parameters():
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> Judge:
        super().train(mode)
        if self.frozen:
            self.base.eval()
        return self

    def log_odds(self, batch: Batch) -> Tensor:
        """(B, T) before the sigmoid."""
        vectors = self.base.encode_tokens(batch)  # type: ignore[operator]
        found: Tensor = self.mlp(vectors).squeeze(-1)
        return found

    def loss(self, batch: Batch) -> Tensor:
        """(B,) cross-entropy with the labels (B, T) of 0 and 1, the mean over each row's tokens."""
        assert batch.labels is not None
        told = (batch.labels != NO_LABEL).float()
        target = batch.labels.clamp(min=0).float()
        each = F.binary_cross_entropy_with_logits(self.log_odds(batch), target, reduction="none")
        return (each * told).sum(1) / told.sum(1)

    def score(self, memories: Sequence[Memory]) -> list[list[float]]:
        """The score of every block of every memory."""
        vocabulary = self.base.vocabulary
        found: list[list[float]] = [[] for _ in memories]
        read = [side_by_side(m.text.query, m.blocks, vocabulary) for m in memories]
        for group in by_budget([len(each.tokens) for each in read], TOKENS_AT_ONCE):
            with evaluating(self):
                batch = batch_of([read[index] for index in group], vocabulary.pad)
                scores = self.log_odds(batch.to(device_of(self))).sigmoid().cpu().numpy()
            for row, index in enumerate(group):
                found[index] = block_means(scores[row], memories[index], vocabulary)
        return found


def block_means(scores: np.ndarray, memory: Memory, vocabulary: Vocabulary) -> list[float]:
    """The mean score of the tokens of each block; `scores` (T,) of all places of the memory."""
    means, low = [], size_of(memory.text.query, vocabulary)
    for block in memory.blocks:
        means.append(float(scores[low : low + len(block.tokens)].mean()))
        low += cost_of(block, vocabulary)
    return means


def relevance_labels(memory: Memory, relevant: Sequence[bool], vocabulary: Vocabulary) -> Encoded:
    """The memory with what its judge should say of each token: [1 … 1 | 0 … 0 | 1 … 1 | …].

    The query's tokens and the symbols around it are relevant, a block's with its end symbol are as
    the block is.
    """
    read = side_by_side(memory.text.query, memory.blocks, vocabulary)
    labels = [1] * size_of(memory.text.query, vocabulary)
    for number, block in zip(memory.numbers, memory.blocks, strict=True):
        labels += [int(relevant[number])] * cost_of(block, vocabulary)
    return Encoded(tokens=read.tokens, labels=labels, spans=read.spans)


def random_stretch(text: LongText, room: Room, generator: np.random.Generator) -> Memory:
    """z_rand: neighbouring blocks from a random one on, as many as fit.

    Where the text ends before the memory is full, those before them come too.
    """
    count = len(text.blocks)
    first = int(generator.integers(max(count, 1)))
    return room.fill(
        Memory(text=text, numbers=()), [*range(first, count), *range(first - 1, -1, -1)]
    )


def relevant_and_random(
    text: LongText, relevant: Sequence[bool], room: Room, generator: np.random.Generator
) -> Memory:
    """z_relv: all relevant blocks (as many as fit, in random order), and random others."""
    order = [int(number) for number in generator.permutation(len(text.blocks))]
    order.sort(key=lambda number: not relevant[number])
    return room.fill(Memory(text=text, numbers=()), order)


def lessons(
    text: LongText, relevant: Sequence[bool], room: Room, generator: np.random.Generator
) -> list[Encoded]:
    """What the judge is taught on by one visit of a text: z_rand and z_relv."""
    memories = (
        random_stretch(text, room, generator),
        relevant_and_random(text, relevant, room, generator),
    )
    return [relevance_labels(memory, relevant, room.vocabulary) for memory in memories]
