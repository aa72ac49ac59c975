"""Energy-based LMs p(text | length) ∝ exp(-E(text)): base, unnormalised scores, mask filling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.assembly import ComposedSystem
from lmlab.core.attention_mask import ExplicitMask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone, HiddenStates, Predictions, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScorerKind
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import EnergyEmission
from lmlab.objectives.objective_interfaces import DATA_LABEL, EnergyObjective

MAX_TOKENS_AT_ONCE = 16384
"""Maximum number of tokens per batch when all candidates of a position are evaluated."""


class EnergyModelBase(ComposedSystem):
    """Base class of energy models: E(x) = Σ_t e(h_t, x_t) + c, summed by the objective's pooling.

    c is learned: it is the bias of the classifier that the sign of E defines (NCE), and no part of
    p(text | length). With k noise samples for each data sample, the classifier is

        log odds that x is data = -E(x) - log k.
    """

    emission: EnergyEmission
    objective: EnergyObjective
    validation_metric = "loss"
    scorer_kind: ClassVar[ScorerKind] = "energy"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: EnergyEmission,
        objective: EnergyObjective,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.constant = nn.Parameter(torch.zeros(()))

    @property
    def window(self) -> int | None:
        """None: energies of chunks do not add up to that of the text, so there are no windows."""
        return None

    def check_length(self, tokens: int) -> None:
        longest = self.backbone.max_positions
        if longest is not None and tokens > longest:
            raise UserError(
                f"a text may have at most {longest} tokens, including <s> and </s>, got "
                f"{tokens}; train with --set length={tokens}, or give shorter texts."
            )

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of the class of each row, data or noise."""
        target_mask = prediction_mask(view)
        assert view.targets is not None and bool((target_mask.sum(1) == 1).all()), (
            "one target a row"
        )
        position = torch.arange(view.inputs.shape[1], device=view.lengths.device)
        counted = self.objective.pooling.energy_mask(target_mask, position < view.lengths[:, None])
        energies = self._energies(view, hidden, counted).sum(1) + self.constant
        log_odds = -energies - math.log(self.objective.negatives)
        log_probs = F.logsigmoid(
            torch.where(view.targets[target_mask] == DATA_LABEL, log_odds, -log_odds)
        )
        return Predictions(log_probs=log_probs, target_mask=target_mask)

    def position_energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B, T) the energy of each position, 0 where it does not count; E is their sum plus c.

        `blanks` (B, T): the positions that are not of the template; by default all of a text.
        """
        self.check_length(int(batch.lengths.max()))
        blanks = batch.mask() if blanks is None else blanks
        pooling = self.objective.pooling
        view = View(
            inputs=batch.tokens,
            lengths=batch.lengths,
            attention_mask=pooling.attention_mask(blanks),
        )
        return self._energies(view, self.hidden(view), pooling.energy_mask(blanks, batch.mask()))

    def _energies(self, view: View, hidden: HiddenStates, counted: Tensor) -> Tensor:
        energies = self.emission.energies(hidden.values, view.inputs)
        return energies.masked_fill(~counted, 0.0)


class EnergyBasedModel(EnergyModelBase):
    """Energy-based model p(x | length) ∝ exp(-E(x)): LogProb (unnormalised), Energy, Fill.

    Texts of one length are comparable, those of different lengths are not.
    """

    def energy(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) E of each text; of a template's `blanks` (B, T) where given. Cost: one pass."""
        return self.position_energies(batch, blanks).sum(1) + self.constant

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """-E by position: a token's share is not a log-probability, but localises errors.

        What belongs to the context at position 0, and c, is the sequence's own term.
        """
        scores = -self.position_energies(batch)
        return LogProbs(
            per_token=scores[:, 1:], per_sequence=scores[:, 0] - self.constant, kind="unnormalised"
        )

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) p(x_t | rest) = softmax_v -E(rest with v at t), by evaluating every candidate.

        The position is the blank and the rest its template; if energies are pooled over all
        positions, that is the conditional of p(x | length). Other masked positions of the row are
        attended to by none and do not count. The end token is a candidate only at the last
        position. Cost: V passes for each masked position, in batches of some thousand tokens.
        """
        rows, positions = masked.nonzero(as_tuple=True)
        never = set(self.vocabulary.unpredictable)
        possible = [i for i in range(self.vocabulary.size) if i not in never]
        candidates = torch.tensor(possible).to(batch.tokens.device)
        count, queries = len(candidates), torch.arange(len(rows) * len(candidates))
        energies = []
        for chunk in queries.to(rows.device).split(
            max(1, MAX_TOKENS_AT_ONCE // batch.tokens.shape[1])
        ):
            query, token = chunk // count, candidates[chunk % count]
            copies = batch.select(rows[query])
            energies.append(self._refilled(copies, masked[rows[query]], positions[query], token))
        all_energies = torch.cat(energies)  # of the model's own dtype, single or double
        scores = all_energies.new_full((len(rows), self.vocabulary.size), -math.inf)
        scores[:, candidates] = -all_energies.view(len(rows), count)
        if self.vocabulary.end is not None:
            before_end = positions + 1 < batch.lengths[rows]
            scores[before_end, self.vocabulary.end] = -math.inf
        return Categorical(F.log_softmax(scores, dim=-1))

    def _refilled(self, copies: Batch, masked: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
        """(N,) energies of texts (N, T), one token substituted in each."""
        rows = torch.arange(len(positions), device=positions.device)
        blanks = torch.zeros_like(masked)
        blanks[rows, positions] = True
        unknown, pooling = masked & ~blanks, self.objective.pooling
        inputs = copies.tokens.masked_fill(unknown, self.vocabulary.pad)
        inputs[rows, positions] = tokens
        view = View(
            inputs=inputs, lengths=copies.lengths, attention_mask=pooling.attention_mask(blanks)
        )
        if bool(unknown.any()):
            visible = view.attention_mask.mask(copies.lengths, inputs.shape[1]) & ~unknown[:, None]
            view = replace(view, attention_mask=ExplicitMask(visible))
        counted = pooling.energy_mask(blanks, copies.mask()) & ~unknown
        return self._energies(view, self.hidden(view), counted).sum(1)
