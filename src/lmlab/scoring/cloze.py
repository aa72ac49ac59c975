"""Cloze accuracy: one token of each text is masked and predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Fill, Infill, Step, require
from lmlab.core.untrusted_input import check_seed
from lmlab.data.batches import group_by_length, pad_rows
from lmlab.data.tokenizers import Tokenizer

CLOZE_TOKENS_PER_BATCH = 4096

METHOD_DESCRIPTIONS = {
    "fill": "a masked token, given all others",
    "infill": "the first token of a blank of unknown length, given all others",
    "left": "the next token, given only those before it",
}
"""What each method predicts; figures of different methods are not comparable."""


@dataclass(frozen=True, kw_only=True)
class ClozeResult:
    """Accuracy of the most probable token, and the mean surprisal of the masked token."""

    method: str
    """fill, infill or left: see `METHOD_DESCRIPTIONS`."""
    texts: int
    skipped: int
    """Texts without a known token to mask, or too long for the system."""
    accuracy: float
    standard_error: float
    nats: float
    """Mean of -log p of the masked token."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cloze_accuracy(
    system: Any,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda texts: None,
) -> ClozeResult:
    """Mask one known token of each text, chosen uniformly, and predict it.

    By `Fill` where the system has it, else as the first token of an infilled blank (`Infill`), else
    as the next token given the prefix (`Step`). The same seed masks the same tokens for all systems
    with the same tokeniser.
    """
    how = "fill" if isinstance(system, Fill) else "infill" if isinstance(system, Infill) else "left"
    if how == "left":
        require(system, Step, "cloze")
    ask = {"fill": _filled, "infill": _written, "left": _continued}[how]
    rows, places, skipped = _hidden(system, tokenizer, texts, check_seed(seed))
    if not rows:
        raise UserError("there is no text with a known token to mask.")
    right, nats = 0, 0.0
    for group in group_by_length([len(row) for row in rows], CLOZE_TOKENS_PER_BATCH):
        with evaluation_mode(system):
            batch = pad_rows([rows[index] for index in group], system)
            at = torch.tensor([places[index] for index in group], device=batch.tokens.device)
            log_probs = ask(system, batch, at)
        answers = batch.tokens[torch.arange(len(group), device=at.device), at]
        right += int((log_probs.argmax(-1) == answers).sum())
        nats -= float(log_probs.gather(1, answers[:, None]).double().sum())
        progress(len(group))
    accuracy = right / len(rows)
    return ClozeResult(
        method=how,
        texts=len(rows),
        skipped=skipped,
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(rows)),
        nats=nats / len(rows),
    )


def _hidden(
    system: Any, tokenizer: Tokenizer, texts: Iterable[str], seed: int
) -> tuple[list[list[int]], list[int], int]:
    """The sequences, the masked position of each, and the number of texts skipped."""
    vocabulary, generator = system.vocabulary, np.random.default_rng(seed)
    longest = math.inf if system.window is None else system.window + 1
    rows, places, skipped = [], [], 0
    for text in texts:
        ids = tokenizer.encode(text)
        known = [place for place, token in enumerate(ids, 1) if token != vocabulary.unknown]
        drawn = generator.random()  # sampled for every text, so that all systems mask the same
        end = [] if vocabulary.end is None else [vocabulary.end]
        if not known or len(ids) + 1 + len(end) > longest:
            skipped += 1
            continue
        rows.append([vocabulary.bos, *ids, *end])
        places.append(known[int(drawn * len(known))])
    return rows, places, skipped


def _filled(system: Any, batch: Batch, at: Tensor) -> Tensor:
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[torch.arange(len(batch), device=at.device), at] = True
    found: Tensor = system.fill(batch, masked).log_probs
    return found


def _written(system: Any, batch: Batch, at: Tensor) -> Tensor:
    rows = torch.arange(len(batch), device=at.device)
    tokens = batch.tokens.clone()
    tokens[rows, at] = system.vocabulary.mask
    writer = system.infill_decoder(Batch(tokens=tokens, lengths=batch.lengths, rows=batch.rows))
    answers = batch.tokens[rows, at].tolist()
    # Tokens generated before the answer (a sentinel, the prefix) end where two answers differ.
    texts = [writer.linearise_fillings(row, [[answer]]) for row, answer in enumerate(answers)]
    others = [
        writer.linearise_fillings(row, [[_another(answer, system)]])
        for row, answer in enumerate(answers)
    ]
    before = [_first_difference(a, b) for a, b in zip(texts, others, strict=True)]
    found = _along(writer, texts, before)
    return found[:, : system.vocabulary.size]


def _continued(system: Any, batch: Batch, at: Tensor) -> Tensor:
    texts = [row[1:] for row in batch.tokens.tolist()]
    return _along(system, texts, [place - 1 for place in at.tolist()])


def _along(writer: Any, texts: Sequence[Sequence[int]], before: Sequence[int]) -> Tensor:
    """Next-token distributions (rows, V) after the first `before` tokens of each text."""
    state, found = writer.start(len(texts)), [torch.empty(0)] * len(texts)
    device = writer.peek(state).log_probs.device
    for step in range(max(before) + 1):
        here = [row for row, count in enumerate(before) if count == step]
        if here:
            log_probs = writer.peek(state).log_probs
            for row in here:
                found[row] = log_probs[row]
        if step < max(before):
            # A finished row is stepped on with any remaining token of its text.
            fed = [text[min(step, len(text) - 1)] for text in texts]
            state = writer.advance(state, torch.tensor(fed, device=device))
    return torch.stack(found)


def _another(token: int, system: Any) -> int:
    """Any other token that can be predicted."""
    never = {*system.vocabulary.unpredictable, system.vocabulary.end, token}
    return next(i for i in range(system.vocabulary.size) if i not in never)


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
