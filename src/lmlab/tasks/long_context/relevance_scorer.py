"""MemRecall's judge: relevance scores of blocks, and its training examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.collation import group_by_length
from lmlab.models.cogltx import RelevanceScorer
from lmlab.tasks.long_context.blocks import (
    block_length_with_end,
    concatenate_blocks,
    query_length,
)
from lmlab.tasks.long_context.memrecall import (
    LongText,
    MemoryBudget,
    WorkingMemory,
)
from lmlab.tasks.task import EncodedExample, collate_examples

TOKENS_PER_BATCH = 8192


def score_blocks(scorer: RelevanceScorer, memories: Sequence[WorkingMemory]) -> list[list[float]]:
    """The score of every block of every memory: the mean over its tokens (`BlockScorer`)."""
    vocabulary = scorer.base.vocabulary
    scored: list[list[float]] = [[] for _ in memories]
    read = [concatenate_blocks(m.text.query, m.blocks, vocabulary) for m in memories]
    for group in group_by_length([len(each.tokens) for each in read], TOKENS_PER_BATCH):
        with evaluation_mode(scorer):
            batch = collate_examples([read[index] for index in group], vocabulary.pad)
            scores = scorer.log_odds(batch.to(device_of(scorer))).sigmoid().cpu().numpy()
        for row, index in enumerate(group):
            scored[index] = mean_block_scores(scores[row], memories[index], vocabulary)
    return scored


def mean_block_scores(
    scores: np.ndarray, memory: WorkingMemory, vocabulary: Vocabulary
) -> list[float]:
    """The mean score of the tokens of each block; `scores` (T,) of all positions of the memory."""
    means, low = [], query_length(memory.text.query, vocabulary)
    for block in memory.blocks:
        means.append(float(scores[low : low + len(block.tokens)].mean()))
        low += block_length_with_end(block, vocabulary)
    return means


def relevance_labels(
    memory: WorkingMemory, relevant: Sequence[bool], vocabulary: Vocabulary
) -> EncodedExample:
    """The memory with a relevance label per token: [1 … 1 | 0 … 0 | 1 … 1 | …].

    The query's tokens and its special tokens are relevant; a block's tokens with its end token have
    the block's label.
    """
    read = concatenate_blocks(memory.text.query, memory.blocks, vocabulary)
    labels = [1] * query_length(memory.text.query, vocabulary)
    for number, block in zip(memory.numbers, memory.blocks, strict=True):
        labels += [int(relevant[number])] * block_length_with_end(block, vocabulary)
    return EncodedExample(tokens=read.tokens, labels=labels, spans=read.spans)


def random_blocks(
    text: LongText, room: MemoryBudget, generator: np.random.Generator
) -> WorkingMemory:
    """z_rand: consecutive blocks from a random one on, as many as fit.

    If the text ends before the memory is full, the blocks before them are added.
    """
    count = len(text.blocks)
    first = int(generator.integers(max(count, 1)))
    return room.fill(
        WorkingMemory(text=text, numbers=()), [*range(first, count), *range(first - 1, -1, -1)]
    )


def relevant_and_random(
    text: LongText, relevant: Sequence[bool], room: MemoryBudget, generator: np.random.Generator
) -> WorkingMemory:
    """z_relv: all relevant blocks (as many as fit, in random order), and random others."""
    order = [int(number) for number in generator.permutation(len(text.blocks))]
    order.sort(key=lambda number: not relevant[number])
    return room.fill(WorkingMemory(text=text, numbers=()), order)


def scorer_examples(
    text: LongText, relevant: Sequence[bool], room: MemoryBudget, generator: np.random.Generator
) -> list[EncodedExample]:
    """Training examples of the judge for one text: z_rand and z_relv."""
    memories = (
        random_blocks(text, room, generator),
        relevant_and_random(text, relevant, room, generator),
    )
    return [relevance_labels(memory, relevant, room.vocabulary) for memory in memories]
