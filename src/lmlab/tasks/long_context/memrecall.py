"""MemRecall (CogLTX, Ding et al. 2020): a judge scores and selects blocks of a long text.

The judge is a model of the relevance of tokens; its labels and training examples are made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length
from lmlab.models.cogltx import RelevanceScorer
from lmlab.tasks.long_context.blocks import (
    TextBlock,
    block_length_with_end,
    concatenate_blocks,
    query_length,
)
from lmlab.tasks.task import EncodedExample, collate_examples

TOKENS_PER_BATCH = 8192


@dataclass(frozen=True, kw_only=True)
class LongText:
    """A query and the blocks of the text that it is about."""

    query: TextBlock
    """The question, or empty; for tagging, the block whose words are tagged."""
    blocks: tuple[TextBlock, ...]


@dataclass(frozen=True, kw_only=True)
class WorkingMemory:
    """Working memory z = [query, some blocks in the order of the text]."""

    text: LongText
    numbers: tuple[int, ...]
    """Indices of the blocks, ascending."""

    @property
    def blocks(self) -> list[TextBlock]:
        return [self.text.blocks[number] for number in self.numbers]


class BlockScorer(Protocol):
    """A judge: scores every block of every memory by the mean of its tokens' scores."""

    def __call__(self, memories: Sequence[WorkingMemory]) -> list[list[float]]: ...


@dataclass(frozen=True, kw_only=True)
class MemRecallStep:
    """The scores of one MemRecall step on a text."""

    coarse: dict[int, float]
    """Coarse score of each block in the retrieval competition."""
    fine: dict[int, float]
    """Fine score of each block of the full memory in the rehearsal, winners only."""
    kept: tuple[int, ...]
    """The blocks that did not decay, in the order of the text."""


@dataclass(frozen=True, kw_only=True)
class MemRecallResult:
    """The final working memory of a text, with the steps."""

    memory: WorkingMemory
    steps: tuple[MemRecallStep, ...]

    @property
    def scores(self) -> dict[int, float]:
        """Fine scores of the last step, of all blocks that won its competition."""
        return self.steps[-1].fine


def mem_recall(
    texts: Sequence[LongText],
    judge: BlockScorer,
    settings: MemRecallConfig,
    *,
    max_length: int,
    vocabulary: Vocabulary,
) -> list[MemRecallResult]:
    """MemRecall: the blocks of each text that a judge retains, in `retained_blocks` steps.

    Per step: every block outside z⁺ gets a coarse score in the context of z⁺ (retrieval
    competition), the best join z⁺ until the next does not fit into `max_length` tokens; then all of
    z⁺ get fine scores jointly, and only the best ones stay, as many as `retained_blocks` gives for
    the step (rehearsal and decay). A block of an earlier step can lose to better ones. Ties: the
    earlier block.

    Cost: about one pass of the judge over the text and the memory per step.
    """
    budget = MemoryBudget(longest=max_length, vocabulary=vocabulary)
    memories = [WorkingMemory(text=text, numbers=()) for text in texts]
    steps: list[list[MemRecallStep]] = [[] for _ in texts]
    for retained_count in settings.retained_blocks:
        coarse = coarse_scores(memories, judge, budget, grouped=settings.grouped)
        full = [budget.fill(m, rank_blocks(c)) for m, c in zip(memories, coarse, strict=True)]
        fine = [
            dict(zip(memory.numbers, scores, strict=True))
            for memory, scores in zip(full, judge(full), strict=True)
        ]
        for row, memory in enumerate(full):
            best = rank_blocks(fine[row])[: retained_count or None]
            retained = tuple(sorted(best))
            memories[row] = WorkingMemory(text=memory.text, numbers=retained)
            steps[row].append(MemRecallStep(coarse=coarse[row], fine=fine[row], kept=retained))
    return [
        MemRecallResult(memory=memory, steps=tuple(text_steps))
        for memory, text_steps in zip(memories, steps, strict=True)
    ]


def coarse_scores(
    memories: Sequence[WorkingMemory], judge: BlockScorer, budget: MemoryBudget, *, grouped: bool
) -> list[dict[int, float]]:
    """The coarse score of every block outside its text's memory, judged together with it."""
    contenders: list[tuple[int, WorkingMemory]] = [
        (row, contender)
        for row, memory in enumerate(memories)
        for contender in budget.contenders(memory, grouped=grouped)
    ]
    scores = judge([contender for _, contender in contenders])
    coarse: list[dict[int, float]] = [{} for _ in memories]
    for (row, contender), values in zip(contenders, scores, strict=True):
        memory_numbers = memories[row].numbers
        new = zip(contender.numbers, values, strict=True)
        coarse[row] |= {number: value for number, value in new if number not in memory_numbers}
    return coarse


def rank_blocks(scores: dict[int, float]) -> list[int]:
    """Block indices by descending score, ties in the order of the text."""
    return sorted(scores, key=lambda number: (-scores[number], number))


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Capacity of a memory: `longest` tokens, special tokens included."""

    longest: int
    vocabulary: Vocabulary

    def left(self, memory: WorkingMemory) -> int:
        """Tokens that still fit."""
        taken = sum(block_length_with_end(block, self.vocabulary) for block in memory.blocks)
        return self.longest - query_length(memory.text.query, self.vocabulary) - taken

    def fill(self, memory: WorkingMemory, candidates: Sequence[int]) -> WorkingMemory:
        """The memory with the candidates added in order, until the next does not fit."""
        left, added = self.left(memory), []
        for number in candidates:
            if number in memory.numbers:
                continue
            left -= block_length_with_end(memory.text.blocks[number], self.vocabulary)
            if left < 0:
                break
            added.append(number)
        return WorkingMemory(text=memory.text, numbers=tuple(sorted((*memory.numbers, *added))))

    def contenders(self, memory: WorkingMemory, *, grouped: bool) -> Iterator[WorkingMemory]:
        """The memory with blocks that it lacks, one at a time or as many neighbours as fit."""
        others = [n for n in range(len(memory.text.blocks)) if n not in memory.numbers]
        while others:
            extended = self.fill(memory, others if grouped else others[:1])
            new = [number for number in extended.numbers if number not in memory.numbers]
            if not new:
                # The retained blocks leave no room: judge the block with the query alone.
                alone = WorkingMemory(text=memory.text, numbers=())
                extended, new = self.fill(alone, others[:1]), others[:1]
            yield extended
            others = others[len(new) :]


def score_blocks(scorer: RelevanceScorer, memories: Sequence[WorkingMemory]) -> list[list[float]]:
    """The score of every block of every memory: the mean over its tokens (`BlockScorer`)."""
    vocabulary = scorer.base.vocabulary
    block_scores: list[list[float]] = [[] for _ in memories]
    encoded = [concatenate_blocks(m.text.query, m.blocks, vocabulary) for m in memories]
    for group in group_by_length([len(example.tokens) for example in encoded], TOKENS_PER_BATCH):
        with evaluation_mode(scorer):
            batch = collate_examples([encoded[index] for index in group], vocabulary.pad)
            scores = scorer.log_odds(batch.to(device_of(scorer))).sigmoid().cpu().numpy()
        for row, index in enumerate(group):
            block_scores[index] = mean_block_scores(scores[row], memories[index], vocabulary)
    return block_scores


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
    encoded = concatenate_blocks(memory.text.query, memory.blocks, vocabulary)
    labels = [1] * query_length(memory.text.query, vocabulary)
    for number, block in zip(memory.numbers, memory.blocks, strict=True):
        labels += [int(relevant[number])] * block_length_with_end(block, vocabulary)
    return EncodedExample(tokens=encoded.tokens, labels=labels, spans=encoded.spans)


def random_blocks(
    text: LongText, budget: MemoryBudget, generator: np.random.Generator
) -> WorkingMemory:
    """z_rand: consecutive blocks from a random one on, as many as fit.

    If the text ends before the memory is full, the blocks before them are added.
    """
    count = len(text.blocks)
    first = int(generator.integers(max(count, 1)))
    return budget.fill(
        WorkingMemory(text=text, numbers=()), [*range(first, count), *range(first - 1, -1, -1)]
    )


def relevant_and_random(
    text: LongText, relevant: Sequence[bool], budget: MemoryBudget, generator: np.random.Generator
) -> WorkingMemory:
    """z_relv: all relevant blocks (as many as fit, in random order), and random others."""
    order = [int(number) for number in generator.permutation(len(text.blocks))]
    order.sort(key=lambda number: not relevant[number])
    return budget.fill(WorkingMemory(text=text, numbers=()), order)


def scorer_examples(
    text: LongText, relevant: Sequence[bool], budget: MemoryBudget, generator: np.random.Generator
) -> list[EncodedExample]:
    """Training examples of the judge for one text: z_rand and z_relv."""
    memories = (
        random_blocks(text, budget, generator),
        relevant_and_random(text, relevant, budget, generator),
    )
    return [relevance_labels(memory, relevant, budget.vocabulary) for memory in memories]
