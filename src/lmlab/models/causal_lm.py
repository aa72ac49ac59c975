"""Autoregressive LM classes: base, text-encoding, per-position latent, unigram mixture, n-gram.

p(s) = Π_t p(s_t | s_<t), decoded step by step. Besides the general ones: n-gram models (modified
Kneser-Ney), mixtures of unigrams, and models with a latent choice per position (which earlier word,
which component), marginalised.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lmlab.backbones.latent_choice import LatentChoiceBackbone, concatenate_predictions, split_view
from lmlab.core.assembly import Assembly
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.parts import Predictions, initial_state, prediction_mask
from lmlab.core.score import ScorerKind
from lmlab.core.state import State
from lmlab.core.view import View, causal_view
from lmlab.emissions.ngram_table import NgramTable
from lmlab.emissions.unigram_mixture import UnigramMixture


@dataclass(frozen=True, eq=False)
class FieldwiseState:
    """Base of decoding states: row tensors and inner states are selected and detached by field."""

    def select(self, rows: Tensor) -> Self:
        return self._map(lambda v: v[rows] if isinstance(v, Tensor) else v.select(rows))

    def detach(self) -> Self:
        return self._map(lambda v: v.detach())

    def _map(self, function: Callable[[Any], Any]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: function(v) for n, v in values.items() if hasattr(v, "detach")})


@dataclass(frozen=True, eq=False)
class DecodingState(FieldwiseState):
    """A backbone's state and its latest hidden state, which predicts the next token."""

    memory: State
    values: Tensor
    log_weights: Tensor | None


def split_answers(
    tokens: Iterable[int], separators: Container[int], count: int
) -> list[tuple[int, ...]]:
    """The answers to blanks in a decoder's output, at least `count`; missing ones are empty."""
    answers: list[list[int]] = [[]]
    for token in tokens:
        if token in separators:
            answers.append([])
        else:
            answers[-1].append(token)
    return [tuple(answer) for answer in answers] + [()] * (count - len(answers))


class AutoregressiveLM(Assembly):
    """Autoregressive language model: predicts the next token from its prefix, step by step."""

    scorer_kind: ClassVar[ScorerKind] = "left-to-right"

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        """The state of `rows` sequences before their first token."""
        device = next(iter(self.state_dict().values())).device
        tokens = torch.full((rows,), self.vocabulary.bos, device=device)
        return self._step(initial_state(self.backbone, rows), tokens)

    def peek(self, state: DecodingState) -> Categorical:
        """The distribution of the next token, (rows, V)."""
        log_probs = self.emission.log_probs(state.values)
        if state.log_weights is not None:
            log_probs = torch.logsumexp(state.log_weights[..., None] + log_probs, dim=-2)
        return Categorical(log_probs)

    def advance(self, state: DecodingState, tokens: Tensor) -> DecodingState:
        """The state after one more token in each row, (rows,)."""
        return self._step(state.memory, tokens)

    def _step(self, memory: State, tokens: Tensor) -> DecodingState:
        lengths = torch.ones_like(tokens)
        view = View(inputs=tokens[:, None], lengths=lengths, attention_mask=CausalMask())
        hidden = self.backbone(view, memory)
        weights = None if hidden.log_weights is None else hidden.log_weights[:, -1]
        assert hidden.state is not None, "a backbone that steps carries a state"
        # "sources" outputs are mixture components shared by all later positions.
        values = hidden.values if self.backbone.output_kind == "sources" else hidden.values[:, -1]
        return DecodingState(hidden.state, values, weights)


class CausalLM(AutoregressiveLM):
    """Causal language model that also encodes text: a vector per sequence or per token."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the hidden state of the last position before the end token."""
        view = causal_view(batch)
        values = self.hidden(view).values
        last = (view.lengths - 1).clamp(min=0)
        return values[torch.arange(len(values), device=values.device), last]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states; each encodes the tokens up to and including its own."""
        view = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=CausalMask())
        return self.hidden(view).values


MAX_LENGTH = 128
"""Positions per forward pass: memory is quadratic in it."""


class LatentChoiceLM(AutoregressiveLM):
    """Autoregressive model with a latent choice at each position, described by its backbone.

    Long texts are processed in segments without changing any result: the state carries all context.
    """

    backbone: LatentChoiceBackbone

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        if view.inputs.shape[1] <= MAX_LENGTH:
            return super().target_log_probs(view, state)
        parts = []
        for segment in split_view(view, MAX_LENGTH):
            parts.append(super().target_log_probs(segment, state))
            state = parts[-1].state
        return concatenate_predictions(parts)

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        captures = super().capture_internals(batch)
        posterior = captures.pop("posterior", None)
        return (
            captures
            if posterior is None
            else {**captures, **self.backbone.explain(posterior.values)}
        )


class UnigramMixtureLM(AutoregressiveLM):
    """Mixture of unigrams, fitted by EM."""

    emission: UnigramMixture

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        view = self.objective.view(batch)
        assert view.targets is not None
        return {"counts": self.emission.expected_counts(view.targets[prediction_mask(view)])}

    def maximise(self, counts: dict[str, Tensor]) -> None:
        self.emission.set_from_counts(counts["counts"])


class NgramModel(AutoregressiveLM):
    """N-gram model, fitted in one pass of counting."""

    emission: NgramTable

    @property
    def parameter_count(self) -> int:
        """Number of probabilities and backoff weights in its tables."""
        return self.emission.table_log_probs.numel() + self.emission.table_log_backoffs.numel()

    def fit_counts(self, tokens: np.ndarray, offsets: np.ndarray) -> str | None:
        orders = self.emission.fit(tokens, offsets).fallback_orders
        if not orders:
            return None
        failed = ", ".join(map(str, orders))
        return f"too little text to estimate the discounts of order {failed}; using 0.5, 1 and 1.5."
