"""Answers of a fine-tuned system to rows of its task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import (
    device_of,
    evaluating,
)
from lmlab.data.collation import by_budget
from lmlab.data.tokenizers import Tokenizer
from lmlab.sampling.decoding import greedy
from lmlab.tasks.finetuned_systems import (
    Continuing,
    WithHead,
)
from lmlab.tasks.generation import LONGEST_TEXT
from lmlab.tasks.task import Encoded, Task, batch_of

TOKENS_AT_ONCE = 8192


def answer_rows(
    system: WithHead | Continuing,
    task: Task,
    tokenizer: Tokenizer,
    rows: Sequence[Any],
    encoded: Sequence[Encoded],
) -> list[Any]:
    """An answer to each row, in their order."""
    if isinstance(system, Continuing):
        return written_texts(system, tokenizer, [each.given for each in encoded])
    answers: list[Any] = [None] * len(rows)
    pad = system.vocabulary.pad
    for group in by_budget([len(each.tokens) for each in encoded], TOKENS_AT_ONCE):
        chosen = [encoded[index] for index in group]
        with evaluating(system):
            batch = batch_of(chosen, pad).to(device_of(system))
            found = system.answers(batch, chosen, [rows[index] for index in group])
        for index, answer in zip(group, found, strict=True):
            answers[index] = answer
    return answers


def written_texts(
    system: Continuing, tokenizer: Tokenizer, sources: Sequence[Sequence[int]]
) -> list[str]:
    """The text of the likeliest token each time after each source, in their order.

    It ends where the end comes, or where the system has no more room.
    """
    texts = [""] * len(sources)
    for group in _read_together(system, [len(source) for source in sources]):
        chosen = Batch.from_sequences([sources[index] for index in group], system.vocabulary.pad)
        given = chosen.to(device_of(system))
        found = greedy(system, len(group), max_length=LONGEST_TEXT, condition=given)
        for index, each in zip(group, found, strict=True):
            texts[index] = tokenizer.decode(list(each.tokens))
    return texts


def _read_together(system: Continuing, lengths: Sequence[int]) -> Iterator[list[int]]:
    """Sources of like length; of the same, where they are the beginning of what is written."""
    if system.conditional:
        yield from by_budget(lengths, TOKENS_AT_ONCE)
        return
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(lengths):
        alike[length].append(index)
    for length, places in alike.items():
        for group in by_budget([length] * len(places), TOKENS_AT_ONCE):
            yield [places[index] for index in group]
