"""Answers of a fine-tuned system to rows of its task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmlab.data.tokenizers import Tokenizer
from lmlab.scoring.batching import by_budget
from lmlab.scoring.evaluating import device_of, evaluating
from lmlab.tasks.systems import Continuing, WithHead
from lmlab.tasks.task import Encoded, Task, batch_of

TOKENS_AT_ONCE = 8192
LONGEST_TEXT = 64
"""Tokens that are written at most where a text is asked for."""


def answer_rows(
    system: WithHead | Continuing,
    task: Task,
    tokenizer: Tokenizer,
    rows: Sequence[Any],
    encoded: Sequence[Encoded],
) -> list[Any]:
    """An answer to each row, in their order."""
    if isinstance(system, Continuing):
        with evaluating(system):
            texts = [system.write(each, longest=LONGEST_TEXT) for each in encoded]
        return [tokenizer.decode(text) for text in texts]
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
