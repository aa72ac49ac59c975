"""Texts drawn token by token from any system that steps, for parts that may not sample by verbs."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.core.distribution import inverse_cdf
from lmlab.core.protocols import Step
from lmlab.core.system import System

MAX_LOGITS_AT_ONCE = 8_000_000
"""Rows times vocabulary in one step; more rows than fit are drawn in several goes."""


@torch.no_grad()
def sample_texts(
    system: System,
    rows: int,
    *,
    max_length: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """`rows` texts, each s_t ~ p(· | s_<t), up to and with their end symbol, or `max_length` long.

    The start symbol is left out. Cost: one step a token for the rows that are not finished.
    """
    at_once = max(1, MAX_LOGITS_AT_ONCE // system.vocabulary.size)
    drawn: list[list[int]] = []
    while len(drawn) < rows:
        drawn += _draw_some(system, min(at_once, rows - len(drawn)), max_length, generator)
    return drawn


def _draw_some(
    system: System, rows: int, max_length: int, generator: torch.Generator | None
) -> list[list[int]]:
    assert isinstance(system, Step), "texts are drawn from systems that step"
    texts: list[list[int]] = [[] for _ in range(rows)]
    end = -1 if system.vocabulary.end is None else system.vocabulary.end
    going, state = torch.arange(rows), system.start(rows)
    for length in range(1, max_length + 1):
        log_probs = system.peek(state).log_probs
        home = log_probs if generator is None else log_probs.to(generator.device)
        chosen = sample_tokens(home, generator=generator).to(log_probs.device)
        for row, token in zip(going.tolist(), chosen.tolist(), strict=True):
            texts[row].append(token)
        kept = (chosen != end).nonzero()[:, 0]
        if not len(kept) or length == max_length:
            break
        if len(kept) < len(going):
            going, chosen, state = going[kept.cpu()], chosen[kept], state.select(kept)
        state = system.advance(state, chosen)
    return texts


def sample_tokens(log_probs: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """(B,) a token of each row of (B, V), by one random number, where `Categorical.sample` takes V
    of them: most of the time that a word model takes to draw."""
    drawn = torch.rand(len(log_probs), 1, generator=generator, dtype=torch.double)
    return inverse_cdf(log_probs, drawn.to(log_probs.device))
