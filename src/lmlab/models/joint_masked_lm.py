"""Masked language model with one joint distribution over all masked tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.joint_distribution import (
    PaddedJointDistribution,
    RankedFilling,
    most_probable_fillings,
)
from lmlab.core.parts import Predictions, prediction_mask
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.emissions.emission_interfaces import JointEmission
from lmlab.models.masked_lm import MaskedLM


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedPositions:
    """Indices of the masked positions of each row: gathers from (B, T) and pads back."""

    masked: Tensor
    """(B, T) bool."""
    lengths: Tensor
    """(B,) number of masked positions per row."""
    index: Tensor
    """(B, n) their indices in reading order; other positions follow as padding."""

    @classmethod
    def from_mask(cls, masked: Tensor) -> MaskedPositions:
        """From a mask (B, T); n is the largest number in a row, at least one."""
        lengths = masked.sum(1)
        max_count = max(1, int(lengths.max())) if len(masked) else 1
        index = (~masked).long().argsort(dim=1, stable=True)[:, :max_count]
        return cls(masked=masked, lengths=lengths, index=index)

    @property
    def is_real(self) -> Tensor:
        """(B, n) bool: false at padding."""
        number = torch.arange(self.index.shape[1], device=self.index.device)
        return number < self.lengths[:, None]

    def gather(self, values: Tensor) -> Tensor:
        """(B, n, …) the entries of (B, T, …) at masked positions."""
        row = torch.arange(len(values), device=values.device)[:, None]
        return values[row, self.index]

    def pad(self, packed: Tensor) -> Tensor:
        """(B, n, …) from the (N, …) of all masked positions in reading order; 0 at padding."""
        padded = packed.new_zeros(*self.index.shape, *packed.shape[1:])
        return padded.index_put(self.is_real.nonzero(as_tuple=True), packed)


@dataclass(frozen=True, eq=False)
class PackedJointDistribution:
    """`JointDistribution` over the (N,) tokens of all masks in reading order, from a TokenJoint."""

    blanks: MaskedPositions
    padded: PaddedJointDistribution

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) joint log-probability of the given tokens (N,) of each row."""
        return self.padded.log_prob(self.blanks.pad(tokens))

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens sampled jointly for all masked positions."""
        return self.padded.sample(generator=generator)[self.blanks.is_real]

    def best(self) -> Tensor:
        """(N,) the jointly most probable tokens of each row; warns where this is not proven."""
        return most_probable_fillings(self, len(self.blanks.masked), self.blanks.masked.device)

    def ranked(self, row: int, count: int) -> list[RankedFilling]:
        """The most probable fillings of one row, best first."""
        return self.padded.ranked(row, count)


class JointMaskedLM(MaskedLM):
    """Masked language model with a joint emission over several masked tokens."""

    emission: JointEmission

    def joint_fill(self, batch: Batch, masked: Tensor) -> PackedJointDistribution:
        """The joint distribution of the tokens at the true entries of `masked` (B, T)."""
        blanks, hidden = self._hidden_at_masks(batch, masked)
        return PackedJointDistribution(blanks, self.emission.joint(hidden, blanks.lengths))

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) marginals of the joint at each masked position, in reading order."""
        blanks, hidden = self._hidden_at_masks(batch, masked)
        joint = self.emission.joint(hidden, blanks.lengths)
        return Categorical(joint.marginals(generator=generator)[blanks.is_real])

    def _hidden_at_masks(self, batch: Batch, masked: Tensor) -> tuple[MaskedPositions, Tensor]:
        """The masked positions and their hidden states (B, n, W)."""
        blanks = MaskedPositions.from_mask(masked)
        return blanks, blanks.pad(self.hidden_at(self.objective.fill_view(batch, masked), masked))

    def marginals_at(self, batch: Batch, masked: Tensor, target_mask: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `target_mask` (B, T), each as `fill` gives it.

        At a target that is not masked the token is visible, and the emission is used alone.
        """
        hidden = self.hidden(self.objective.fill_view(batch, masked)).values
        blanks = MaskedPositions.from_mask(masked)
        joint = self.emission.joint(blanks.gather(hidden), blanks.lengths)
        tokens = blanks.gather(batch.tokens)
        log_probs = joint.marginals().gather(-1, tokens[..., None])[..., 0]
        dense = torch.zeros(masked.shape, dtype=log_probs.dtype, device=log_probs.device)
        dense = dense.masked_scatter(masked, log_probs[blanks.is_real])
        visible = target_mask & ~masked
        visible_log_probs = self.emission.log_prob(hidden[visible], batch.tokens[visible])
        return dense.masked_scatter(visible, visible_log_probs.to(dense))[target_mask]

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Chain rule: each target given those before it; they sum to the joint log-probability."""
        blanks, hidden, tokens = self._hidden_at_targets(view)
        prefix = self.emission.joint(hidden, blanks.lengths).prefix_log_probs(tokens)
        before = torch.cat([torch.zeros_like(prefix[:, :1]), prefix[:, :-1]], 1)
        return Predictions(log_probs=(prefix - before)[blanks.is_real], target_mask=blanks.masked)

    def joint_loss(self, view: View, *, generator: torch.Generator | None = None) -> Tensor:
        """(B,) joint loss of the targets of each row."""
        blanks, hidden, tokens = self._hidden_at_targets(view)
        losses = self.emission.joint_loss(hidden, blanks.lengths, tokens, generator=generator)
        # A row without masks has zero loss.
        return torch.where(blanks.lengths > 0, losses, 0.0)

    def _hidden_at_targets(self, view: View) -> tuple[MaskedPositions, Tensor, Tensor]:
        """A view's targets as masked positions, with hidden states (B, n, W) and tokens (B, n)."""
        assert view.targets is not None
        blanks = MaskedPositions.from_mask(prediction_mask(view))
        hidden = blanks.pad(self.hidden_at(view, blanks.masked))
        return blanks, hidden, blanks.pad(view.targets[blanks.masked])
