"""The likeliest token each time, from systems that step, for parts that may not use the verbs."""

from __future__ import annotations

import torch

from lmlab.core.batch import Batch
from lmlab.core.protocols import Step
from lmlab.core.system import System


@torch.no_grad()
def decode_greedily(
    system: System, condition: Batch, *, max_length: int
) -> list[tuple[tuple[int, ...], float]]:
    """For each row of the condition a text without its end symbol, and its log-probability.

    At most `max_length` tokens, the end included. Cost: a step a token for the rows not finished.
    """
    assert isinstance(system, Step), "texts are written by systems that step"
    rows = len(condition)
    texts: list[tuple[int, ...]] = [()] * rows
    totals = torch.zeros(rows, dtype=torch.float64)
    end = -1 if system.vocabulary.end is None else system.vocabulary.end
    going, state = torch.arange(rows), system.start(rows, condition=condition)
    for length in range(1, max_length + 1):
        best = system.peek(state).log_probs.max(-1)
        totals[going] += best.values.double().cpu()
        kept = best.indices.ne(end).nonzero()[:, 0]
        going, chosen = going[kept.cpu()], best.indices[kept]
        for row, token in zip(going.tolist(), chosen.tolist(), strict=True):
            texts[row] = (*texts[row], token)
        if not len(kept) or length == max_length:
            break
        state = system.advance(state.select(kept), chosen)
    return list(zip(texts, totals.tolist(), strict=True))
