"""Three ways from the energies of places to that of a text with a template and blanks (000).

    甲甲的首都是乙乙:  的首都是 is the template, 甲甲 and 乙乙 are blanks, filled with candidates.

Where no template is told, as when whole texts are scored, every place is a blank, and the three
are one and the same sum. Training has no template either: the place that is corrupted is the blank
and the rest of the text its template, in the text itself and in what was made of it.
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
    """1. Template and blanks together: E = Σ_t e_t, every place seeing every other."""

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return FullMask()

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return real


@dataclass(frozen=True)
class BlanksPooling:
    """2. E = Σ_{t blank} e_t: the template is seen, and sees, but its energy is masked out."""

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return FullMask()

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return blanks & real


@dataclass(frozen=True)
class IsolatedTemplatePooling:
    """3. E = Σ_t e_t, where the template sees only itself, so that its energy stands still.

    Its forward pass does not depend on the candidates, and what it adds is a number c(template):
    that one is trained, and is to the conditional p(blanks | template) what NCE's learned
    normaliser is (Gutmann and Hyvärinen 2010).
    """

    def attention_mask(self, blanks: Tensor) -> AttentionMask:
        return ExplicitMask(blanks[:, :, None] | ~blanks[:, None, :])

    def energy_mask(self, blanks: Tensor, real: Tensor) -> Tensor:
        return real
