"""Scoring methods and options: masked-LM (PLL, logits, k-mask), or own exact, bound or energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import MAX_NAMES_LISTED, Energy, Fill, LMHead, Logits, LogProbs, require
from lmlab.core.registry import catalogue
from lmlab.core.score import LOOKING_AHEAD, Convention, ScoreKind, ScorerKind
from lmlab.core.system_protocols import SystemInfo
from lmlab.objectives.masking.pseudo_likelihood import scored_positions
from lmlab.scoring.pseudo_log_likelihood import MASKED_METHODS as MASKED
from lmlab.scoring.pseudo_log_likelihood import (
    METHOD_ALIASES,
    UNNORMALISED,
    masked_score_kind,
    masked_token_scores,
)

KIND_METHODS: dict[str, ScoreKind] = {"exact": "exact", "bound": "bound", "energy": "unnormalised"}
"""Methods that use the system's own score, and the kind they require."""
METHOD_NAMES = (*MASKED, *METHOD_ALIASES, *KIND_METHODS)

METHOD_ORDERS = {
    "simple": "each token at its position, none masked",
    "raw": "each token given all the others of its window",
    "norm": "each token given all the others of its window",
    "within-word": "each token given all the others of its window but the later ones of its word",
    "k-mask": "the tokens at some positions, each given all the others but those",
    "raw-k-mask": "the tokens at some positions, each given all the others but those",
    "energy": "the text as a whole",
}


OWN_ORDERS: dict[ScorerKind, str] = {
    "masked": METHOD_ORDERS["norm"],
    "energy": METHOD_ORDERS["energy"],
    "look-ahead": LOOKING_AHEAD,
}
"""The order of a system's own score by its kind of scorer, if it is not that of the layout."""


@dataclass(frozen=True, kw_only=True)
class ScoringMethod:
    """A scoring method with its options."""

    name: str
    """One of `METHOD_NAMES`; `pll` becomes `norm` and `pll-within-word` becomes `within-word`."""
    head: LMHead = "own"
    """own: the model's LM head; none: inner products with token embeddings."""
    positions: tuple[int, ...] = ()
    """For k-mask: positions of the tokens masked together; the first token is 1."""
    mean: bool = False
    """Whether all tokens are scored, masked or not, and the figure is their mean."""

    def __post_init__(self) -> None:
        if self.name not in METHOD_NAMES:
            raise unknown_name("scoring method", self.name, METHOD_NAMES)
        object.__setattr__(self, "name", METHOD_ALIASES.get(self.name, self.name))
        if self.head not in ("own", "none"):
            raise unknown_name("head", self.head, ("own", "none"))
        if self.head == "none" and not self.masked:
            raise UserError(f"the method {self.name} has no head to leave out.")
        if "k-mask" in self.name and not self.positions:
            raise UserError(
                f"{self.name} masks several tokens together; give their positions, such as 1,2,7,8."
            )
        if self.positions and "k-mask" not in self.name:
            raise UserError(f"positions do not apply to the method {self.name}; remove them.")
        if any(position < 1 for position in self.positions):
            raise UserError(f"positions must be 1 or more, got {min(self.positions)}.")
        check_unique_positions(self.positions)

    @property
    def masked(self) -> bool:
        """Whether it is a method for masked models."""
        return self.name in MASKED

    @property
    def needs_whole_text(self) -> bool:
        """Whether a text must be scored whole: windows would change the score."""
        return bool(self.positions) or self.name == "energy"

    @property
    def kind(self) -> ScoreKind:
        """The kind of its scores."""
        return masked_score_kind(self.name) if self.masked else KIND_METHODS[self.name]

    def check(self, system: object) -> None:
        """A UserError where the method does not apply to a system; it names those that do."""
        needed: type = Energy
        if self.masked:
            needed = Logits if self.name in UNNORMALISED or self.head == "none" else Fill
        if self.masked or self.name == "energy":
            require(system, needed, f"the method {self.name}")

    def check_kind(self, kind: ScoreKind) -> None:
        """A UserError where the system's own score is not of the required kind."""
        if kind == self.kind:
            return
        names = [card.name for card in catalogue().values() if card.kind == self.kind]
        more = f" and {len(names) - MAX_NAMES_LISTED} more" if len(names) > MAX_NAMES_LISTED else ""
        raise UserError(
            f"the method {self.name} needs a system whose own score is {self.kind}, and this one's "
            f"is {kind}; those that have such a score: {', '.join(names[:MAX_NAMES_LISTED])}{more} "
            "(lmlab systems)."
        )

    def scored_positions(self, batch: Batch, system: SystemInfo) -> Tensor:
        """Mask (B, T) of the positions to score: `positions`, or all tokens but the end."""
        ordinary = scored_positions(batch, system.vocabulary)
        return (
            ordinary & self._masked_positions(batch)
            if self.positions and not self.mean
            else ordinary
        )

    def scores(
        self, system: SystemInfo, batch: Batch, scored: Tensor, *, words: Tensor | None, tokens: int
    ) -> Tensor:
        """Scores (B, T) at the positions `scored` (B, T), by passes of at most `tokens` tokens."""
        return masked_token_scores(
            system,
            batch,
            method=self.name,
            head=self.head,
            scored=scored,
            masked=self._masked_positions(batch) if self.positions else None,
            words=words,
            tokens_at_once=tokens,
        )

    def energies(self, system: Energy, batch: Batch) -> LogProbs:
        """Minus the energy of each text, which is not divided among tokens."""
        energies = system.energy(batch)
        zeros = energies.new_zeros(len(batch), batch.tokens.shape[1] - 1)
        return LogProbs(
            per_token=zeros, per_sequence=-energies, kind=self.kind, whole_text_only=True
        )

    def convention(self, own: Convention) -> Convention:
        """The convention of a score by this method, given that of the system's own."""
        return replace(
            own,
            # A masked model is conditioned on the length.
            end=own.end and not self.masked,
            order=METHOD_ORDERS.get(self.name, own.order),
            method=self.name,
            head=self.head,
            positions=self.positions,
        )

    def _masked_positions(self, batch: Batch) -> Tensor:
        """Mask (B, T) of `positions`: indices into the batch, whose position 0 is context."""
        masked = torch.zeros_like(batch.tokens, dtype=torch.bool)
        masked[:, list(self.positions)] = True
        return masked


def check_unique_positions(positions: Sequence[int]) -> None:
    """A UserError where a position is named twice."""
    for position in positions:
        if positions.count(position) > 1:
            raise UserError(f"positions must be distinct, got {position} twice.")


def is_masked(system: SystemInfo, method: ScoringMethod | None) -> bool:
    """Whether a token is scored given context on both sides, by the method or the system's own."""
    return system.scorer_kind == "masked" or (method is not None and method.masked)


def own_convention(system: SystemInfo, convention: Convention) -> Convention:
    """The convention of the score a system defines itself, given that of its layout.

    A masked model's is `norm`. Windows shorter than the segment or memory length make those
    irrelevant.
    """
    window = math.inf if convention.window is None else convention.window
    segment_length, memory = system.segment_length, system.memory_length
    if memory is not None and window > (segment_length or memory + 1):
        convention = replace(convention, segment_length=segment_length, memory=memory)
    order = OWN_ORDERS.get(system.scorer_kind, convention.order)
    return replace(convention, end=convention.end and system.scores_end, order=order)


def make_scoring_method(
    name: str | ScoringMethod | None,
    *,
    head: str = "own",
    positions: Sequence[int] = (),
    mean: bool = False,
) -> ScoringMethod | None:
    """The scoring method of a name with its options; None for the system's own score."""
    if isinstance(name, ScoringMethod):
        return name
    if name is not None:
        return ScoringMethod(name=name, head=head, positions=tuple(positions), mean=mean)  # type: ignore[arg-type]
    if head != "own" or positions:
        option = "a head" if head != "own" else "positions"
        raise UserError(f"{option} applies only to a method for masked models; name one.")
    return None
