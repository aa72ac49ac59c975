"""Energy pooling: from per-position energies to the energy of a text with a template and blanks.

    甲甲的首都是乙乙:  的首都是 is the template, 甲甲 and 乙乙 are blanks, filled with candidates.

Without a template, as when whole texts are scored, every position is a blank, and the three
poolings are the same sum. In training the corrupted position is the blank and the rest of the text
its template, in the data and in its corruptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmlab.core.attention_mask import (
    AttentionMask,
    ExplicitMask,
    FullMask,
)


@dataclass(frozen=True)
class AllPositionsPooling:
    """Sum over template and blanks: E = Σ_t e_t, with full attention."""

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return FullMask()

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return real


@dataclass(frozen=True)
class BlanksPooling:
    """Sum over blanks: E = Σ_{t blank} e_t; the template takes part in attention only."""

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return FullMask()

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return blanks & real


@dataclass(frozen=True)
class IsolatedTemplatePooling:
    """Isolated template: E = Σ_t e_t, the template attends only to itself and is constant.

    Its forward pass does not depend on the candidates, and it contributes a learned constant
    c(template), which plays the role of NCE's learned normaliser for p(blanks | template) (Gutmann
    and Hyvärinen 2010).
    """

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return ExplicitMask(blanks[:, :, None] | ~blanks[:, None, :])

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return real
