"""Mixtures of K token distributions (dot or cosine), with a linear-map component, as a product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.capture import NON_NEGATIVE, UNIT_INTERVAL, Capture
from lmlab.core.parts import Emission, HiddenStates
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import (
    STATE_USAGE,
    never_predicted_mask,
    output_embedding,
    usage_capture,
)
from lmlab.layers.input_embedding import scale_to_radius, unit_vectors
from lmlab.layers.matrix_product import Linear
from lmlab.layers.softmax_log_prob import (
    linear_log_prob,
    log_table,
    mixture_log_prob,
    table_log_prob,
)


class MixtureStates(nn.Module):
    """Component distributions P(s | z) = softmax_s(e_s · v_z) for K vectors v_z.

    `tied` shares the input embedding as e; without it the output vectors are free.
    """

    never_predicted: Tensor
    weight: Tensor

    def __init__(
        self, count: int, width: int, vocabulary: Vocabulary, *, tied: nn.Embedding | None = None
    ) -> None:
        super().__init__()
        self.count = count
        self.weight = output_embedding(width, vocabulary, tied)
        # Random initialisation breaks the symmetry between states.
        self.vectors = nn.Parameter(torch.randn(count, width))
        self.register_buffer("never_predicted", never_predicted_mask(vocabulary), persistent=False)

    def factors(self) -> tuple[Tensor, Tensor]:
        """(V, W) and (K, W), whose inner products are the logits of tokens under states."""
        return self.weight, self.vectors

    def log_table(self) -> Tensor:
        """(V, K) log P(s | z), tokens first, so that a target is a contiguous row."""
        return log_table(*self.factors(), self.never_predicted)

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(…, K) log P(s | z) of tokens (…): rows of the table, computed once per call."""
        rows = table_log_prob(*self.factors(), self.never_predicted, tokens.flatten())
        return rows.view(*tokens.shape, self.count)

    def capture_internals(self) -> dict[str, Capture]:
        """Internal activations."""
        return {}


class CosineMixtureStates(MixtureStates):
    """Cosine components P(s | z) = softmax_s(β_z cos(e_s, v_z)): states on the unit sphere.

    Each state has its own scale β_z > 0, initially √W.
    """

    def __init__(
        self, count: int, width: int, vocabulary: Vocabulary, *, tied: nn.Embedding | None = None
    ) -> None:
        super().__init__(count, width, vocabulary, tied=tied)
        self.log_scales = nn.Parameter(torch.full((count,), math.log(width) / 2))

    def factors(self) -> tuple[Tensor, Tensor]:
        scaled = scale_to_radius(self.vectors) * self.log_scales.exp()[:, None]
        return unit_vectors(self.weight), scaled

    def capture_internals(self) -> dict[str, Capture]:
        return {
            "scales": Capture(
                values=self.log_scales.exp(),
                axes=("state",),
                caption="β of each state: the higher, the fewer tokens the state gives mass to.",
                bounds=NON_NEGATIVE,
            )
        }


class WeightedStates(Emission):
    """Mixture p(s | h) = Σ_z w_z(h) P(s | z), where the hidden state is the K log-weights.

    Hidden (…, K). log_prob gathers K numbers for each target; the table of V · K is computed once
    per batch, so that no (batch, time, K, V) is ever built. Cost V · K · W for the table, K per
    target.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"states"})

    def __init__(self, states: MixtureStates) -> None:
        super().__init__()
        self.states = states

    def log_weights(self, hidden: Tensor) -> Tensor:
        """(…, K) log-weights of the states, normalised."""
        return hidden

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return torch.logsumexp(self.log_weights(hidden) + self.states.log_prob(targets), dim=-1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        # As a product of probabilities, in double precision against underflow.
        weights = self.log_weights(hidden).double().exp()
        mixed = weights @ self.states.log_table().double().exp().t()
        # log 0 has no gradient, so -inf is filled in afterwards.
        never = self.states.never_predicted
        return mixed.masked_fill(never.isinf(), 1.0).log().to(hidden.dtype) + never

    def log_prob_by_source(self, sources: Tensor, targets: Tensor) -> Tensor:
        weights = self.log_weights(sources).double().exp()
        component_probs = self.states.log_prob(targets).double().exp()
        return (component_probs @ weights.transpose(1, 2)).log().to(sources.dtype)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        weights = self.log_weights(hidden.values).exp()
        return {
            **self.states.capture_internals(),
            "mixture use": usage_capture(weights, STATE_USAGE),
        }


class MixtureEmission(WeightedStates):
    """Mixture p(s | h) = Σ_z P(z | h) P(s | z), P(z | h) = softmax_z(c_z · h + b_z).

    `dropout` is applied to the hidden state. Hidden (…, W).
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(self, width: int, states: MixtureStates, *, dropout: float = 0.0) -> None:
        super().__init__(states)
        self.choose = Linear(width, states.count)
        self.dropout = nn.Dropout(dropout)

    def log_weights(self, hidden: Tensor) -> Tensor:
        return F.log_softmax(self.choose(self.dropout(hidden)), dim=-1)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        choices = self.choose(self.dropout(hidden))
        return mixture_log_prob(choices, self.states.log_prob(targets))


class RotatedMixture(Emission):
    """Mixture of fixed states and a softmax of R h, with K + 1 components.

        p(s | h) = Σ_{z<K} P(z | h) P(s | z) + P(K | h) softmax_s(e_s · R h)

    A fixed state retains nothing of h but its index, the last component all of h. R is any matrix,
    and the output vectors e are those of the states. `dropout` is applied to the hidden state.
    Hidden (…, W); cost that of a mixture and of a softmax, N · W · V.
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(self, width: int, states: MixtureStates, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.states = states
        self.choose = Linear(width, states.count + 1)
        self.rotate = Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(…, K + 1) log-weights, the rotation's last, and (…, W) R h."""
        dropped = self.dropout(hidden)
        return F.log_softmax(self.choose(dropped), dim=-1), self.rotate(dropped)

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        log_weights, rotated = self._parts(hidden)
        outputs, never = self.states.factors()[0], self.states.never_predicted
        last = linear_log_prob(rotated, outputs, never, targets)
        log_probs = torch.cat([self.states.log_prob(targets), last[:, None]], dim=1)
        return torch.logsumexp(log_weights + log_probs, dim=1)

    def log_probs(self, hidden: Tensor) -> Tensor:
        log_weights, rotated = self._parts(hidden)
        outputs, never = self.states.factors()[0], self.states.never_predicted
        rotation_probs = torch.softmax(F.linear(rotated, outputs, never).double(), dim=-1)
        weights = log_weights.double().exp()
        mixed = weights[..., :-1] @ self.states.log_table().double().exp().t()
        mixed = mixed + weights[..., -1:] * rotation_probs
        return mixed.masked_fill(never.isinf(), 1.0).log().to(hidden.dtype) + never

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        weights = self._parts(hidden.values)[0].exp()
        return {
            **self.states.capture_internals(),
            "mixture use": usage_capture(
                weights,
                "Share of all predictions that each state carries; the last is the rotation, and a "
                "state near zero is unused.",
            ),
            "share of the rotation": Capture(
                values=weights[..., -1],
                axes=("batch", "time"),
                caption="The probability that each prediction rotates the previous word's vector "
                "instead of choosing a fixed state.",
                bounds=UNIT_INTERVAL,
            ),
        }


ROWS_AT_ONCE = 512
"""Rows of (N, V) held at once in scoring."""


class ProductOfMixtures(Emission):
    """Product of experts p(s | h) = Π_g f_g(s | h) / Z(h), Z(h) = Σ_s Π_g f_g(s | h); f_g mixtures.

    A product of experts (Hinton 2002) with K^G joint states at the cost of G · K. No f_g exceeds
    one, so Z ≤ 1 and Π_g f_g is a lower bound of p, which `log_bound` gives without building any
    (N, V); the exact log-probability costs G · N · K · V. Hidden (…, W).
    """

    input_kinds: ClassVar[frozenset[str]] = frozenset({"vectors", "components", "sources"})

    def __init__(self, factors: Sequence[MixtureEmission]) -> None:
        super().__init__()
        self.factors = nn.ModuleList(factors)

    def _mixtures(self) -> list[MixtureEmission]:
        return [factor for factor in self.factors if isinstance(factor, MixtureEmission)]

    def log_bound(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N,) Σ_g log f_g(target | h), never above the log-probability."""
        log_probs = [factor.log_prob(hidden, targets) for factor in self._mixtures()]
        return torch.stack(log_probs).sum(0)

    def log_products(self, hidden: Tensor) -> Tensor:
        """(…, V) Σ_g log f_g(s | h), before the normaliser."""
        first, *others = self._mixtures()
        total = first.log_probs(hidden)
        for factor in others:
            total = total + factor.log_probs(hidden)
        return total

    def log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        # In blocks of rows, so that memory does not grow with the text.
        blocks = [self.log_products(rows).logsumexp(-1) for rows in hidden.split(ROWS_AT_ONCE)]
        return self.log_bound(hidden, targets) - torch.cat(blocks)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(self.log_products(hidden), dim=-1)

    def capture_internals(self, hidden: HiddenStates) -> dict[str, Capture]:
        use = [f.log_weights(hidden.values).exp().flatten(0, -2).mean(0) for f in self._mixtures()]
        return {
            "mixture use": Capture(
                values=torch.stack(use),
                axes=("choice", "state"),
                caption="For each factor of the product, the share of all predictions that each of "
                "its states carries.",
                sums_to_one="state",
                titles={"choice": "factor"},
            ),
            "looseness": Capture(
                values=-torch.logsumexp(self.log_products(hidden.values), dim=-1),
                axes=("batch", "time"),
                caption="Nats by which the bound lies below the log-probability of each token.",
                unit="nats",
            ),
        }
