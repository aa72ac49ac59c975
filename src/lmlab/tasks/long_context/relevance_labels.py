"""Relevance labels of text blocks: BM25, then interventions (CogLTX), or given spans; recall.

The field `relevant` of a row holds the spans of its text that support the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.retrieval.bm25 import token_scores, token_weights
from lmlab.tasks.long_context.memrecall import LongText, WorkingMemory

Losses = Callable[[Sequence[WorkingMemory], Sequence[int]], list[float]]
"""The reasoner's loss on each memory, in nats per label; the second argument gives its example."""


def initial_relevance(text: LongText, count: int, generator: np.random.Generator) -> list[bool]:
    """Initial relevance labels: the `count` best blocks by BM25 between query and blocks.

    A block that shares no token with the query is never among them. Without a query, `count` random
    blocks.
    """
    labels = [False] * len(text.blocks)
    if text.query.tokens:
        scores = bm25_scores(text)
        best = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
        chosen = [number for number in best[:count] if scores[number] > 0]
    else:
        chosen = generator.permutation(len(labels))[:count].tolist()
    for number in chosen:
        labels[number] = True
    return labels


def bm25_scores(text: LongText) -> list[float]:
    """BM25 of each block for the query, over tokens."""
    blocks = [block.tokens for block in text.blocks]
    size = 1 + max(max(tokens, default=0) for tokens in (*blocks, text.query.tokens))
    scores = token_scores(token_weights(blocks, size), [text.query.tokens])
    return [float(score) for score in scores[:, 0]]


def updated_relevance(before: bool, increase: float, settings: MemRecallConfig) -> bool:
    """Relevance label of a block after an intervention (Ding et al. 2020).

        increase = loss(z without the block) - loss(z)

    Above t_up the block is relevant, below t_down it is not; in between the label stays, which
    prevents changes at every epoch.
    """
    if increase > settings.t_up:
        return True
    return False if increase < settings.t_down else before


def intervene(
    memories: Sequence[WorkingMemory],
    labels: Sequence[Sequence[bool]],
    certain: Sequence[Sequence[bool]],
    losses: Losses,
    settings: MemRecallConfig,
) -> list[list[bool]]:
    """Update relevance labels by interventions: remove each block of each memory once.

    `certain` blocks hold the answer itself: they are always relevant and never removed. Blocks
    outside a memory keep their labels. Cost: one pass over the memory per block in it.
    """
    removals = [
        (row, number)
        for row, memory in enumerate(memories)
        for number in memory.numbers
        if not certain[row][number]
    ]
    reduced_memories = [
        WorkingMemory(
            text=memories[row].text, numbers=tuple(n for n in memories[row].numbers if n != number)
        )
        for row, number in removals
    ]
    full = losses(memories, range(len(memories)))
    reduced_losses = losses(reduced_memories, [row for row, _ in removals])
    updated = [[bool(m or c) for m, c in zip(*pair, strict=True)] for pair in
             zip(labels, certain, strict=True)]  # fmt: skip
    for (row, number), loss in zip(removals, reduced_losses, strict=True):
        updated[row][number] = updated_relevance(updated[row][number], loss - full[row], settings)
    return updated


Spans = Sequence[tuple[int, int]]


def check_relevant(row: Mapping[str, Any], text: str) -> None:
    """A UserError if `relevant` is given and is no list of [start, end) in the text."""
    if "relevant" not in row:
        return
    requirement = "relevant must be a list of [start, end), characters of the text"
    if not isinstance(row["relevant"], list):
        raise UserError(f"{requirement}, got {row['relevant']!r}.")
    for span in row["relevant"]:
        is_pair = isinstance(span, list | tuple) and len(span) == 2
        if not is_pair or not all(isinstance(bound, int) for bound in span):
            raise UserError(f"{requirement}, got {span!r}.")
        if not 0 <= span[0] < span[1] <= len(text):
            raise UserError(f"{requirement}, got {list(span)} in {len(text)} characters.")


def relevant_text_recall(
    rows: Sequence[Mapping[str, Any]], read_spans: Sequence[Spans]
) -> dict[str, float]:
    """Recall of the relevant spans, over rows that have any; empty if none has.

    Gives the share of spans encoded, and of rows with all spans encoded. A span counts if all of it
    was encoded, both ends included.
    """
    labelled = [(row["relevant"], spans) for row, spans in zip(rows, read_spans, strict=True)
            if row.get("relevant")]  # fmt: skip
    if not labelled:
        return {}
    encoded_spans = [[_within(span, spans) for span in relevant] for relevant, spans in labelled]
    return {
        "relevant_read": sum(map(sum, encoded_spans)) / sum(map(len, encoded_spans)),
        "all_relevant_read": sum(map(all, encoded_spans)) / len(encoded_spans),
    }


def _within(span: Sequence[int], spans: Spans) -> bool:
    return any(low <= span[0] and span[1] <= high for low, high in spans)
