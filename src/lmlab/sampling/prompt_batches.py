"""Prompts of different lengths decoded in one batch, each with its own settings and random numbers.

What a server needs: the requests of many clients together. A row's tokens depend on its own
settings and seed alone, and rows that have ended leave the batch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmlab.core.distribution import Categorical, inverse_cdf
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import Decoder
from lmlab.core.state import State
from lmlab.inference.decoding import next_distribution
from lmlab.sampling.decoding import MAX_NUMBERS, apply_filters, make_filters


@dataclass(frozen=True, kw_only=True)
class PredictedToken:
    """A token of a prompt or after it, with its log-probability given all before it."""

    id: int
    generated: bool
    """False for a token of the prompt."""
    log_prob: float | None
    """In nats, untempered and untruncated; None in a prompt whose tokens are not scored."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The most probable ids with their log-probabilities, best first, as many as requested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptRow:
    """One prompt to continue, and what receives its tokens."""

    ids: tuple[int, ...]
    """Without start token."""
    max_tokens: int
    """Tokens generated at most, the end token included; 0 only reads the prompt."""
    receive: Callable[[PredictedToken], bool]
    """Called with each token in order; the row ends where it returns false."""
    finish: Callable[[], None]
    """Called when the row has ended, which may be long before the batch has."""
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    generator: torch.Generator = field(default_factory=torch.Generator)
    """Of this row alone."""
    scores_prompt: bool = False
    """Whether the tokens of the prompt get log-probabilities."""
    alternatives: int = 0

    def predicts(self, step: int) -> bool:
        """Whether the distribution of the token at this position is needed."""
        return step >= len(self.ids) or self.scores_prompt


def check_prompt_length(system: Decoder, ids: Sequence[int], max_tokens: int) -> int:
    """The number of tokens that can be generated after a prompt; a UserError if it is too long."""
    window = system.max_generation_length(None)
    if window is None:
        return max_tokens
    if len(ids) > window or (max_tokens and len(ids) == window):
        raise UserError(
            f"this model takes at most {window} tokens at once, and the prompt has {len(ids)}; "
            "give a shorter one."
        )
    return min(max_tokens, window - len(ids))


def decode_prompts(system: Decoder, rows: Sequence[PromptRow]) -> None:
    """Decode each row and hand over its tokens. Cost: a step per token of the longest row."""
    size = max(1, MAX_NUMBERS // system.vocabulary.size)
    waiting = [row for row in rows if row.ids or row.max_tokens]
    for row in rows:
        if row not in waiting:
            row.finish()
    with evaluation_mode(system):
        for first in range(0, len(waiting), size):
            _decode_group(system, waiting[first : first + size])


def _decode_group(system: Decoder, rows: Sequence[PromptRow]) -> None:
    device, end = device_of(system), system.vocabulary.end
    state = system.start(len(rows))
    for step in itertools.count():
        tokens = _next_tokens(system, state, rows, step)
        continuing = [
            index
            for index, (row, token) in enumerate(zip(rows, tokens, strict=True))
            if row.receive(token)
            and step + 1 < len(row.ids) + row.max_tokens
            and not (token.generated and token.id == end)
        ]
        for index in sorted({*range(len(rows))} - {*continuing}):
            rows[index].finish()
        if not continuing:
            return
        chosen = torch.tensor([tokens[index].id for index in continuing], device=device)
        if len(continuing) < len(rows):
            rows = [rows[index] for index in continuing]
            state = state.select(torch.tensor(continuing, device=device))
        state = system.advance(state, chosen)


def _next_tokens(
    system: Decoder, state: State, rows: Sequence[PromptRow], step: int
) -> list[PredictedToken]:
    """The token of each row at this position: its prompt's, or a chosen one."""
    predicting = [index for index, row in enumerate(rows) if row.predicts(step)]
    tokens = [
        PredictedToken(
            id=row.ids[step] if step < len(row.ids) else -1, generated=False, log_prob=None
        )
        for row in rows
    ]
    if not predicting:
        return tokens
    log_probs = next_distribution(system, state).log_probs[predicting]
    chosen = [rows[index] for index in predicting]
    ids = _chosen_ids(log_probs, chosen, step)
    values = log_probs.gather(-1, ids[:, None]).squeeze(-1).tolist()
    count = min(max(row.alternatives for row in chosen), log_probs.shape[-1])
    best = log_probs.topk(count, -1)
    best_ids, best_values = best.indices.tolist(), best.values.tolist()
    for number, (index, row) in enumerate(zip(predicting, chosen, strict=True)):
        ranked = zip(best_ids[number], best_values[number], strict=True)
        tokens[index] = PredictedToken(
            id=int(ids[number]),
            generated=step >= len(row.ids),
            log_prob=values[number],
            alternatives=tuple(itertools.islice(ranked, row.alternatives)),
        )
    return tokens


def _chosen_ids(log_probs: Tensor, rows: Sequence[PromptRow], step: int) -> Tensor:
    """(rows,) the ids at this position; rows of the same settings are filtered together."""
    ids = torch.zeros(len(rows), dtype=torch.long, device=log_probs.device)
    by_settings: dict[tuple[float, float], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if step < len(row.ids):
            ids[index] = row.ids[step]
        else:
            by_settings[row.temperature, row.top_p].append(index)
    for (temperature, top_p), group in by_settings.items():
        if temperature == 0:
            ids[group] = log_probs[group].argmax(-1)
            continue
        filters = make_filters(temperature=temperature, top_p=top_p)
        filtered = apply_filters(filters, Categorical(log_probs[group])).log_probs
        uniforms = [torch.rand(1, generator=rows[i].generator, dtype=torch.double) for i in group]
        ids[group] = inverse_cdf(filtered, torch.stack(uniforms).to(log_probs.device))
    return ids
