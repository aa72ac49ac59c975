"""Hidden Markov models (neural, tabular): exact infilling, state posteriors, EM (Baum-Welch).

Posteriors and expected counts are gradients of a log-likelihood (Eisner 2016), so only the forward
recursion is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from lmlab.backbones.hmm_forward import HMMForward
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.parts import Predictions
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.hmm_emission import HMMEmission
from lmlab.inference.forward_algorithm import forward_filter
from lmlab.inference.semirings import structure_marginals
from lmlab.layers.hmm_parameters import HMMParameters, HMMTables, TabularHMMParameters
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken


def state_posterior(tables: HMMTables, batch: Batch, masked: Tensor | None = None) -> Tensor:
    """(B, T - 1, K) p(z | all unmasked tokens) for the positions 1 to T - 1.

    Zero beyond a row's length. Cost T · K² per row: a masked token may come from any block.
    """
    known = batch.targets_mask() if masked is None else batch.targets_mask() & ~masked
    potentials = _emission_potentials(tables, batch.tokens[:, 1:], known[:, 1:])
    (posterior,) = structure_marginals(lambda p: _log_likelihood(tables, p), potentials)
    # A gradient of sums may round below zero, where a probability has no logarithm.
    return posterior.clamp(min=0) * batch.targets_mask()[:, 1:, None]


def fill_masked_tokens(tables: HMMTables, batch: Batch, masked: Tensor) -> Categorical:
    """p(token | all unmasked tokens), in row-major order over the masked positions (B, T)."""
    if (masked & ~batch.targets_mask()).any():
        raise UserError(
            "only positions after the first token and before the padding can be masked; remove "
            "the other masks."
        )
    states = state_posterior(tables, batch, masked)[masked[:, 1:]]
    probs = states.double() @ tables.dense_emission().double().exp().t()
    return Categorical(probs.log().to(states.dtype))


def expected_counts(
    markov: HMMParameters, log_likelihood: Callable[[], Tensor]
) -> dict[str, Tensor]:
    """E-step: expected counts of each start, transition and emission.

    They are the gradient of the log-likelihood with respect to the log tables.
    """
    tables = markov.tables()
    names = ("start", "transition", "emission")
    with torch.enable_grad():
        leaves = {name: getattr(tables, name).detach().requires_grad_() for name in names}
        with markov.shared(replace(tables, **leaves)):
            total = log_likelihood().sum()
        counts = torch.autograd.grad(total, list(leaves.values()))
    return dict(zip(names, counts, strict=True))


def _emission_potentials(tables: HMMTables, tokens: Tensor, known: Tensor) -> Tensor:
    """(B, T, K) log P(token | state), -inf outside of its block; 0 where it is unknown."""
    shape = (*tokens.shape, len(tables.start) // tables.states_per_block, tables.states_per_block)
    potentials = tables.emission.new_full(shape, -torch.inf)
    index = tables.block[tokens][..., None, None].expand(*tokens.shape, 1, tables.states_per_block)
    potentials = potentials.scatter(2, index, F.embedding(tokens, tables.emission)[:, :, None])
    return torch.where(known[..., None], potentials.flatten(2), 0.0)


def _log_likelihood(tables: HMMTables, potentials: Tensor) -> Tensor:
    """(B, T) terms whose sum over t is log Σ_z P(z) Π_t exp(potential of z_t)."""
    first = tables.start.expand(len(potentials), 1, -1)
    one_block = potentials.new_zeros(potentials.shape[:2], dtype=torch.long)
    later = forward_filter(
        first[:, 0], potentials[:, :-1], one_block[:, :-1], tables.transition
    ).view(len(potentials), -1, first.shape[-1])
    return torch.logsumexp(torch.cat([first, later], dim=1) + potentials, dim=-1)


HMM_RECIPES = {
    # Chiu and Rush's (2020) model, scaled to about an hour on one core.
    "ptb": {
        "states": 1024,
        "blocks": 8,
        "width": 256,
        "state_dropout": 0.5,
        "dropout": 0.1,
        "learning_rate": 3e-3,
        "schedule": "cosine",
        "warmup_steps": 100,
        "weight_decay": 0.01,
        "tokens_per_batch": 2048,
        "epochs": 40,
    }
}


class HiddenMarkovModel(AutoregressiveLM):
    """Hidden Markov model: forward filter and blocked emission, tables computed once per batch."""

    backbone: HMMForward
    fill_score_kind = "exact"

    def __init__(
        self, markov: HMMParameters, vocabulary: Vocabulary, *, fitting: str = "gradient"
    ) -> None:
        super().__init__(
            vocabulary=vocabulary,
            backbone=HMMForward(markov),
            emission=HMMEmission(markov),
            objective=NextToken(),
            fitting=fitting,
        )

    @property
    def markov(self) -> HMMParameters:
        return self.backbone.markov

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        with self.markov.shared():
            return super().target_log_probs(view, state)

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: Generator | None = None
    ) -> Categorical:
        """Posterior states given all other positions (forward-backward), then their emission."""
        return fill_masked_tokens(self.markov.tables(), batch, masked)

    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        posterior = Capture(
            values=state_posterior(self.markov.tables(), batch),
            axes=("batch", "time", "state"),
            caption="P(state | the whole text) at each token, by forward-backward.",
            sums_to_one="state",
        )
        return {**super().capture_internals(batch), "state posterior": posterior}


class TabularHiddenMarkovModel(HiddenMarkovModel):
    """HMM with free probability tables, fitted by EM (Baum-Welch: Baum et al. 1970)."""

    def __init__(self, markov: TabularHMMParameters, vocabulary: Vocabulary) -> None:
        super().__init__(markov, vocabulary, fitting="em")
        self.free = markov

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        return expected_counts(self.markov, lambda: self.log_prob(batch).totals)

    def maximise(self, counts: dict[str, Tensor]) -> None:
        self.free.set_from_counts(counts)
