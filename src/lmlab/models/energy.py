"""Systems that are energies outright: p(text | its length) ∝ exp(-E(text)), candidates fed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.attention_mask import (
    ExplicitMask,
)
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.parts import Backbone, HiddenStates, Predictions, prediction_mask
from lmlab.core.protocols import LogProbs
from lmlab.core.state import State
from lmlab.core.system import Assembly
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.emission_interfaces import EnergyEmission
from lmlab.objectives.objective_interfaces import DATA_LABEL, EnergyObjective

MAX_TOKENS_AT_ONCE = 16384
"""Tokens of texts with candidates that are read together while a place is filled in."""


class EnergyModelBase(Assembly):
    """E(x) = Σ_t e(h_t, x_t) + c over the places that its objective's pooling counts.

    `length` is the greatest number of tokens that it can read, where there is one.

    c is learned: it lets a text be judged by the sign of E, as a classifier's bias does, and is no
    part of p(text | length). The judgement, with k made up for each of the data, is

        log odds that x is data = -E(x) - log k.
    """

    emission: EnergyEmission
    objective: EnergyObjective
    validation_metric = "loss"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: EnergyEmission,
        objective: EnergyObjective,
        length: int | None = None,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.length = length
        self.constant = nn.Parameter(torch.zeros(()))

    def check_length(self, tokens: int) -> None:
        """Energies of pieces are no energy of the whole, so a long text is not read in windows."""
        if self.length is not None and tokens > self.length:
            raise UserError(
                f"this system was built for texts of at most {self.length} tokens, <s> and </s> "
                f"counted, and one of {tokens} came; give --set length={tokens} to train, or "
                "shorter texts."
            )

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        """Log-probabilities of what each row is, data or made up."""
        places = prediction_mask(view)
        assert view.targets is not None and bool((places.sum(1) == 1).all()), "one target a row"
        counted = self.objective.pooling.energy_mask(places, _real(view))
        energies = self._by_place(view, hidden, counted).sum(1) + self.constant
        odds = -energies - math.log(self.objective.negatives)
        told = F.logsigmoid(torch.where(view.targets[places] == DATA_LABEL, odds, -odds))
        return Predictions(log_probs=told, target_mask=places)

    def position_energies(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B, T) the energy of each place, 0 where it does not count; their sum and c are E.

        `blanks` (B, T): the places that are not of the template; all of a text, unless told.
        """
        self.check_length(int(batch.lengths.max()))
        blanks = batch.mask() if blanks is None else blanks
        pooling = self.objective.pooling
        view = View(
            inputs=batch.tokens,
            lengths=batch.lengths,
            attention_mask=pooling.attention_mask(blanks),
        )
        return self._by_place(view, self.hidden(view), pooling.energy_mask(blanks, batch.mask()))

    def _by_place(self, view: View, hidden: HiddenStates, counted: Tensor) -> Tensor:
        energies = self.emission.energies(hidden.values, view.inputs)
        return energies.masked_fill(~counted, 0.0)


class EnergyBasedModel(EnergyModelBase):
    """p(x | length) ∝ exp(-E(x)): the energy is all there is (LogProb unnormalised, Energy, Fill).

    Texts of one length compare, those of two lengths do not.
    """

    def energy(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) E of each text; of a template's blanks (B, T) where they are told. Cost: a pass."""
        return self.position_energies(batch, blanks).sum(1) + self.constant

    def log_prob(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs:
        """-E by place: a token's share is no log-probability, but says where a text goes wrong.

        What belongs to the context at place 0, and c, is the sequence's own term.
        """
        places = -self.position_energies(batch)
        return LogProbs(
            per_token=places[:, 1:], per_sequence=places[:, 0] - self.constant, kind="unnormalised"
        )

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) p(x_t | rest) = softmax_v -E(rest with v at t), by feeding every candidate.

        The place is the blank and the rest its template; where energies are pooled over all, that
        is the conditional of p(x | length). Other masked places of the row are seen by none and
        count for nothing. The end symbol is a candidate only at a text's last place. Cost: V
        passes for each masked place (000's table: O(V)), some thousand tokens at a time.
        """
        rows, places = masked.nonzero(as_tuple=True)
        candidates = self._candidates(batch.tokens.device)
        count, asked = len(candidates), torch.arange(len(rows) * len(candidates))
        energies = []
        for here in asked.to(rows.device).split(
            max(1, MAX_TOKENS_AT_ONCE // batch.tokens.shape[1])
        ):
            which, token = here // count, candidates[here % count]
            copies = batch.select(rows[which])
            energies.append(self._filled(copies, masked[rows[which]], places[which], token))
        found = torch.cat(energies)  # of the model's own type, single or double
        scores = found.new_full((len(rows), self.vocabulary.size), -math.inf)
        scores[:, candidates] = -found.view(len(rows), count)
        if self.vocabulary.end is not None:
            inner = places + 1 < batch.lengths[rows]
            scores[inner, self.vocabulary.end] = -math.inf
        return Categorical(F.log_softmax(scores, dim=-1))

    def _candidates(self, device: torch.device) -> Tensor:
        never = set(self.vocabulary.unpredictable)
        return torch.tensor([i for i in range(self.vocabulary.size) if i not in never]).to(device)

    def _filled(self, copies: Batch, masked: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
        """(N,) energies of texts (N, T) with a token at a place each, other masked ones unseen."""
        each = torch.arange(len(places), device=places.device)
        blanks = torch.zeros_like(masked)
        blanks[each, places] = True
        unknown, pooling = masked & ~blanks, self.objective.pooling
        shown = copies.tokens.masked_fill(unknown, self.vocabulary.pad)
        shown[each, places] = tokens
        view = View(
            inputs=shown, lengths=copies.lengths, attention_mask=pooling.attention_mask(blanks)
        )
        if bool(unknown.any()):
            sight = view.attention_mask.mask(copies.lengths, shown.shape[1]) & ~unknown[:, None]
            view = replace(view, attention_mask=ExplicitMask(sight))
        counted = pooling.energy_mask(blanks, copies.mask()) & ~unknown
        return self._by_place(view, self.hidden(view), counted).sum(1)


def _real(view: View) -> Tensor:
    """(B, T) the places of a view that hold a token."""
    return torch.arange(view.inputs.shape[1], device=view.lengths.device) < view.lengths[:, None]
