"""Cloze accuracy and surprisal of one random token per text, by fill, infill or left context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Step, require
from lmlab.core.system import System
from lmlab.core.system_protocols import FillSystem, InfillSystem, StepSystem, SystemInfo
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
    system: System,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    *,
    seed: int = 0,
    progress: Callable[[int], None] = lambda texts: None,
) -> ClozeResult:
    """Mask one known token of each text, chosen uniformly, and predict it.

    By `Fill` where the system has it, else as the first token of an infilled blank (`Infill`), else
    as the next token given the prefix (`Step`). The same seed masks the same tokens for all systems
    with the same tokenizer.
    """
    method, score = _cloze_method(system)
    rows, positions, skipped = _mask_texts(system, tokenizer, texts, check_seed(seed))
    if not rows:
        raise UserError("there is no text with a known token to mask.")
    right, nats = 0, 0.0
    for group in group_by_length([len(row) for row in rows], CLOZE_TOKENS_PER_BATCH):
        with evaluation_mode(system):
            batch = pad_rows([rows[index] for index in group], system)
            targets = torch.tensor(
                [positions[index] for index in group], device=batch.tokens.device
            )
            log_probs = score(batch, targets)
        answers = batch.tokens[torch.arange(len(group), device=targets.device), targets]
        right += int((log_probs.argmax(-1) == answers).sum())
        nats -= float(log_probs.gather(1, answers[:, None]).double().sum())
        progress(len(group))
    accuracy = right / len(rows)
    return ClozeResult(
        method=method,
        texts=len(rows),
        skipped=skipped,
        accuracy=accuracy,
        standard_error=math.sqrt(accuracy * (1 - accuracy) / len(rows)),
        nats=nats / len(rows),
    )


ClozePrediction = Callable[[Batch, Tensor], Tensor]
"""From a batch and the masked position of each row to the log-probabilities there (B, V)."""


def _cloze_method(system: System) -> tuple[str, ClozePrediction]:
    """The method of a system, and its predictions."""
    if isinstance(system, FillSystem):
        return "fill", partial(_fill_log_probs, system)
    if isinstance(system, InfillSystem):
        return "infill", partial(_infill_log_probs, system)
    return "left", partial(_next_log_probs, require(system, StepSystem, "cloze"))


def _mask_texts(
    system: System, tokenizer: Tokenizer, texts: Iterable[str], seed: int
) -> tuple[list[list[int]], list[int], int]:
    """The sequences, the masked position of each, and the number of texts skipped."""
    vocabulary, generator = system.vocabulary, np.random.default_rng(seed)
    max_length = math.inf if system.window is None else system.window + 1
    rows, positions, skipped = [], [], 0
    for text in texts:
        ids = tokenizer.encode(text)
        known = [position for position, token in enumerate(ids, 1) if token != vocabulary.unknown]
        uniform = generator.random()  # sampled for every text, so that all systems mask the same
        end = [] if vocabulary.end is None else [vocabulary.end]
        if not known or len(ids) + 1 + len(end) > max_length:
            skipped += 1
            continue
        rows.append([vocabulary.bos, *ids, *end])
        positions.append(known[int(uniform * len(known))])
    return rows, positions, skipped


def _fill_log_probs(system: FillSystem, batch: Batch, targets: Tensor) -> Tensor:
    masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
    masked[torch.arange(len(batch), device=targets.device), targets] = True
    return system.fill(batch, masked).log_probs


def _infill_log_probs(system: InfillSystem, batch: Batch, targets: Tensor) -> Tensor:
    assert system.vocabulary.mask is not None, "a system that fills blanks has a mask token"
    rows = torch.arange(len(batch), device=targets.device)
    tokens = batch.tokens.clone()
    tokens[rows, targets] = system.vocabulary.mask
    decoder = system.infill_decoder(Batch(tokens=tokens, lengths=batch.lengths, rows=batch.rows))
    answers = batch.tokens[rows, targets].tolist()
    # Tokens generated before the answer (a sentinel, the prefix) end where two answers differ.
    texts = [decoder.linearise_fillings(row, [[answer]]) for row, answer in enumerate(answers)]
    others = [
        decoder.linearise_fillings(row, [[_other_token(answer, system)]])
        for row, answer in enumerate(answers)
    ]
    prefix_lengths = [_first_difference(a, b) for a, b in zip(texts, others, strict=True)]
    log_probs = _log_probs_after(decoder, texts, prefix_lengths)
    return log_probs[:, : system.vocabulary.size]


def _next_log_probs(system: Step, batch: Batch, targets: Tensor) -> Tensor:
    texts = [row[1:] for row in batch.tokens.tolist()]
    return _log_probs_after(system, texts, [position - 1 for position in targets.tolist()])


def _log_probs_after(
    decoder: Step, texts: Sequence[Sequence[int]], prefix_lengths: Sequence[int]
) -> Tensor:
    """Next-token distributions (rows, V) after the first `prefix_lengths` tokens of each text."""
    state, distributions = decoder.start(len(texts)), [torch.empty(0)] * len(texts)
    device = decoder.peek(state).log_probs.device
    for step in range(max(prefix_lengths) + 1):
        due = [row for row, count in enumerate(prefix_lengths) if count == step]
        if due:
            log_probs = decoder.peek(state).log_probs
            for row in due:
                distributions[row] = log_probs[row]
        if step < max(prefix_lengths):
            # A finished row is stepped on with any remaining token of its text.
            inputs = [text[min(step, len(text) - 1)] for text in texts]
            state = decoder.advance(state, torch.tensor(inputs, device=device))
    return torch.stack(distributions)


def _other_token(token: int, system: SystemInfo) -> int:
    """Any other token that can be predicted."""
    excluded = {*system.vocabulary.unpredictable, system.vocabulary.end, token}
    return next(i for i in range(system.vocabulary.size) if i not in excluded)


def _first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
