"""By which method a text is scored: the system's own, one for masked models, or one of a kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import (
    MAX_NAMES_LISTED,
    Energy,
    Fill,
    LMHead,
    Logits,
    LogProbs,
    Step,
    require,
)
from lmlab.core.registry import catalogue
from lmlab.core.score import Convention
from lmlab.core.score_kind import ScoreKind
from lmlab.models.residual_energy import ResidualEnergyModel
from lmlab.objectives.masking.pseudo_likelihood import scored_positions
from lmlab.scoring.pseudo_log_likelihood import MASKED_METHODS as MASKED
from lmlab.scoring.pseudo_log_likelihood import (
    METHOD_ALIASES,
    UNNORMALISED,
    masked_score_kind,
    masked_token_scores,
)

KIND_METHODS: dict[str, ScoreKind] = {"exact": "exact", "bound": "bound", "energy": "unnormalised"}
"""Methods that are the system's own score, and what kind it must then be."""
METHOD_NAMES = (*MASKED, *METHOD_ALIASES, *KIND_METHODS)

METHOD_ORDERS = {
    "simple": "each token at its place, all of them seen",
    "raw": "each token given all the others of its window",
    "norm": "each token given all the others of its window",
    "within-word": "each token given all the others of its window but the later ones of its word",
    "k-mask": "the tokens at some places, each given all the others but those",
    "raw-k-mask": "the tokens at some places, each given all the others but those",
    "energy": "the text as a whole",
}


@dataclass(frozen=True, kw_only=True)
class ScoringMethod:
    """A way to score a text."""

    name: str
    """One of `METHOD_NAMES`; `pll` becomes `norm` and `pll-within-word` becomes `within-word`."""
    head: LMHead = "own"
    """own: scores as the model takes them; none: inner products with token embeddings."""
    positions: tuple[int, ...] = ()
    """For k-mask: places of the tokens that are hidden together; the first token is 1."""
    mean: bool = False
    """Whether all tokens have a score, hidden or not, and the figure is their mean."""

    def __post_init__(self) -> None:
        if self.name not in METHOD_NAMES:
            raise unknown_name("method of scoring", self.name, METHOD_NAMES)
        object.__setattr__(self, "name", METHOD_ALIASES.get(self.name, self.name))
        if self.head not in ("own", "none"):
            raise unknown_name("head", self.head, ("own", "none"))
        if self.head == "none" and not self.masked:
            raise UserError(f"the method {self.name} has no head to leave out.")
        if "k-mask" in self.name and not self.positions:
            raise UserError(
                f"{self.name} hides some tokens together; say by positions which, as 1,2,7,8."
            )
        if self.positions and "k-mask" not in self.name:
            raise UserError(f"the method {self.name} has no use for positions; leave them out.")
        if any(position < 1 for position in self.positions):
            raise UserError(f"positions count from 1, and {min(self.positions)} came.")
        check_unique_positions(self.positions)

    @property
    def masked(self) -> bool:
        """Whether it is one for masked models."""
        return self.name in MASKED

    @property
    def needs_whole_text(self) -> bool:
        """Whether a text must be seen whole: windows of it would be something else."""
        return bool(self.positions) or self.name == "energy"

    @property
    def kind(self) -> ScoreKind:
        """What its scores are."""
        return masked_score_kind(self.name) if self.masked else KIND_METHODS[self.name]

    def check(self, system: Any) -> None:
        """A UserError where a system can't be scored so; the error names those that can."""
        needed: type = Energy
        if self.masked:
            needed = Logits if self.name in UNNORMALISED or self.head == "none" else Fill
        if self.masked or self.name == "energy":
            require(system, needed, f"the method {self.name}")

    def check_kind(self, found: ScoreKind) -> None:
        """A UserError where the system's own score is of another kind than was asked for."""
        if found == self.kind:
            return
        able = [card.name for card in catalogue().values() if card.kind == self.kind]
        more = f" and {len(able) - MAX_NAMES_LISTED} more" if len(able) > MAX_NAMES_LISTED else ""
        raise UserError(
            f"the method {self.name} needs a system whose own score is {self.kind}, and this one's "
            f"is {found}; those that have such a score: {', '.join(able[:MAX_NAMES_LISTED])}{more} "
            "(lmlab systems)."
        )

    def scored_positions(self, batch: Batch, system: Any) -> Tensor:
        """(B, T) the places that get a score: all tokens but the end, or those of `positions`."""
        ordinary = scored_positions(batch, system.vocabulary)
        return ordinary & self._hidden(batch) if self.positions and not self.mean else ordinary

    def scores(
        self, system: Any, batch: Batch, scored: Tensor, *, words: Tensor | None, tokens: int
    ) -> Tensor:
        """(B, T) the scores at the places `scored` (B, T), by passes of at most `tokens` tokens."""
        return masked_token_scores(
            system,
            batch,
            method=self.name,
            head=self.head,
            scored=scored,
            masked=self._hidden(batch) if self.positions else None,
            words=words,
            tokens_at_once=tokens,
        )

    def energies(self, system: Any, batch: Batch) -> LogProbs:
        """Minus the energy of each text, which belongs to none of its tokens."""
        energies: Tensor = system.energy(batch)
        nothing = energies.new_zeros(len(batch), batch.tokens.shape[1] - 1)
        return LogProbs(
            per_token=nothing, per_sequence=-energies, kind=self.kind, whole_text_only=True
        )

    def convention(self, own: Convention) -> Convention:
        """The conventions of a score by this method, given those of the system's own."""
        return replace(
            own,
            # A masked model is given how long a text is.
            end=own.end and not self.masked,
            order=METHOD_ORDERS.get(self.name, own.order),
            method=self.name,
            head=self.head,
            positions=self.positions,
        )

    def _hidden(self, batch: Batch) -> Tensor:
        """(B, T) the places of `positions`: those of the batch, whose place 0 is context."""
        hidden = torch.zeros_like(batch.tokens, dtype=torch.bool)
        hidden[:, list(self.positions)] = True
        return hidden


def check_unique_positions(positions: Sequence[int]) -> None:
    """A UserError where a position is named twice."""
    for position in positions:
        if positions.count(position) > 1:
            raise UserError(f"each position is named once, and {position} came twice.")


def is_masked(system: Any, method: ScoringMethod | None) -> bool:
    """Whether a token is scored given what stands on both of its sides.

    So it is by the methods for masked models, and by the own score of a system that only fills in.
    """
    if method is not None and method.masked:
        return True
    return isinstance(system, Fill) and not isinstance(system, (Step, Energy))


def own_convention(system: Any, found: Convention) -> Convention:
    """The conventions of the score that a system defines itself, given those of its layout.

    A masked model's is `norm`; an energy is one of texts of a length, unless a base that it
    stands on says how long texts are. Windows that are shorter than what is read at once, or
    remembered, leave nothing of that to tell.
    """
    window = math.inf if found.window is None else found.window
    stretch, memory = (
        getattr(system, "segment_length", None),
        getattr(system, "memory_length", None),
    )
    if memory is not None and window > (stretch or memory + 1):
        found = replace(found, segment_length=stretch, memory=memory)
    if isinstance(system, Energy):
        ended = found.end and isinstance(system, ResidualEnergyModel)
        return replace(found, end=ended, order=METHOD_ORDERS["energy"])
    if is_masked(system, None):
        return replace(found, end=False, order=METHOD_ORDERS["norm"])
    return found


def make_scoring_method(
    name: str | ScoringMethod | None,
    *,
    head: str = "own",
    positions: Sequence[int] = (),
    mean: bool = False,
) -> ScoringMethod | None:
    """The method of that name with its options; None for the system's own score."""
    if isinstance(name, ScoringMethod):
        return name
    if name is not None:
        return ScoringMethod(name=name, head=head, positions=tuple(positions), mean=mean)  # type: ignore[arg-type]
    if head != "own" or positions:
        option = "a head" if head != "own" else "positions"
        raise UserError(f"{option} can be chosen where a method for masked models is named.")
    return None
