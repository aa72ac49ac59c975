"""Answers of a fine-tuned system to rows of its task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.data.collation import group_by_length
from lmlab.data.tokenizers import Tokenizer
from lmlab.sampling.decoding import greedy_search
from lmlab.tasks.finetuned_systems import (
    FinetunedGenerator,
    TaskHeadModel,
)
from lmlab.tasks.generation import MAX_NEW_TOKENS
from lmlab.tasks.task import EncodedExample, Task, collate_examples

TOKENS_PER_BATCH = 8192


def predict_rows(
    system: TaskHeadModel | FinetunedGenerator,
    task: Task,
    tokenizer: Tokenizer,
    rows: Sequence[Any],
    encoded: Sequence[EncodedExample],
) -> list[Any]:
    """An answer to each row, in their order."""
    if isinstance(system, FinetunedGenerator):
        return generate_texts(system, tokenizer, [each.given for each in encoded])
    answers: list[Any] = [None] * len(rows)
    pad = system.vocabulary.pad
    for group in group_by_length([len(each.tokens) for each in encoded], TOKENS_PER_BATCH):
        chosen = [encoded[index] for index in group]
        with evaluation_mode(system):
            batch = collate_examples(chosen, pad).to(device_of(system))
            found = system.answers(batch, chosen, [rows[index] for index in group])
        for index, answer in zip(group, found, strict=True):
            answers[index] = answer
    return answers


def generate_texts(
    system: FinetunedGenerator, tokenizer: Tokenizer, sources: Sequence[Sequence[int]]
) -> list[str]:
    """The text of the likeliest token each time after each source, in their order.

    It ends where the end comes, or where the system has no more room.
    """
    texts = [""] * len(sources)
    for group in _read_together(system, [len(source) for source in sources]):
        chosen = Batch.collate([sources[index] for index in group], system.vocabulary.pad)
        given = chosen.to(device_of(system))
        found = greedy_search(system, len(group), max_length=MAX_NEW_TOKENS, condition=given)
        for index, each in zip(group, found, strict=True):
            texts[index] = tokenizer.decode(list(each.tokens))
    return texts


def _read_together(system: FinetunedGenerator, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Sources of like length; of the same, where they are the beginning of what is written."""
    if system.conditional:
        yield from group_by_length(lengths, TOKENS_PER_BATCH)
        return
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        alike[length].append(index)
    for length, places in alike.items():
        for group in group_by_length([length] * len(places), TOKENS_PER_BATCH):
            yield [places[index] for index in group]
