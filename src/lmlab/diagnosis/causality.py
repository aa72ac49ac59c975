"""Causality report: which predictions change with a later token, padding or a batch neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from unicodedata import east_asian_width

from lmlab.core.score import ScoreKind

Verdict = Literal["causal", "bidirectional", "leaks", "unstable"]
"""
- causal: no prediction depends on what it must not see
- bidirectional: predictions depend on tokens to their right, as the kind of score says
- leaks: predictions depend on what they must not see
- unstable: the same input gives different predictions, so that effects can't be measured
"""
Cause = Literal["later token", "predicted token", "padding", "neighbour"]
Effects = tuple[tuple[float | None, ...], ...]
"""Rows of sources, columns of predictions: the largest change of a log-probability in nats, None
where it is not defined."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """An effect of something that a prediction must not depend on."""

    cause: Cause
    source: str
    """What was changed."""
    predicted: str
    """The token whose prediction changed."""
    source_position: int
    """Position of the changed token, 1 for the first after the start; else the index of the row."""
    predicted_position: int
    nats: float
    """Largest change of a log-probability."""


@dataclass(frozen=True, kw_only=True)
class CausalityReport:
    """Effects on the predictions of one probe text, by what was changed."""

    model: str
    kind: ScoreKind
    """Kind of its scores: see `lmlab.core.score`."""
    left_to_right: bool
    """Whether its predictions must not depend on later tokens."""
    whole_distribution: bool
    """Whether effects are on all tokens' log-probabilities; else on those of the text's tokens."""
    tokens: tuple[str, ...]
    """The probe's tokens after the start token: sources of `token_effects`."""
    predictions: tuple[str, ...]
    """What is predicted: the tokens, and `WHOLE_TEXT` if a term of the score belongs to none."""
    token_effects: Effects
    """Effects of other tokens at each position."""
    paddings: tuple[str, ...]
    padding_effects: Effects
    """Effects of padding after the text."""
    neighbours: tuple[str, ...]
    neighbour_effects: Effects
    """Effects of a second text in the batch, by its presence and by its tokens."""
    noise: float
    """Largest difference between two predictions of the same input, in nats."""
    tolerance: float
    """Effects up to here may be rounding: see `causality_probe.rounding_tolerance`."""
    batched_by_length: bool = False
    """Whether texts are never padded in use, because the module's scores change with padding."""

    @property
    def leaks(self) -> tuple[Leak, ...]:
        """All effects above the tolerance on predictions that must not change, largest first."""
        return tuple(sorted(self._leaks(), key=lambda leak: -leak.nats))

    def _leaks(self) -> Iterator[Leak]:
        tables: tuple[tuple[Cause, tuple[str, ...], Effects], ...] = (
            ("later token", self.tokens, self.token_effects),
            ("padding", self.paddings, self.padding_effects),
            ("neighbour", self.neighbours, self.neighbour_effects),
        )
        for cause, sources, effects in tables:
            for row, values in enumerate(effects):
                for column, nats in enumerate(values):
                    if nats is None or nats <= self.tolerance:
                        continue
                    by_token = cause == "later token"
                    if by_token and not self.must_ignore(row, column):
                        continue
                    yield Leak(
                        cause="predicted token" if by_token and row == column else cause,
                        source=sources[row],
                        predicted=self.predictions[column],
                        source_position=row + 1,
                        predicted_position=column + 1,
                        nats=nats,
                    )

    def must_ignore(self, source: int, prediction: int) -> bool:
        """Whether a prediction must not depend on the token at an index."""
        return self.left_to_right and prediction <= source and prediction < len(self.tokens)

    @property
    def looks_ahead(self) -> float:
        """Largest effect of a token on the prediction of an earlier one, allowed or not."""
        later = [
            nats
            for row, values in enumerate(self.token_effects)
            for nats in values[:row]
            if nats is not None
        ]
        return max(later, default=0.0)

    @property
    def verdict(self) -> Verdict:
        if self.noise > self.tolerance:
            return "unstable"
        if self.leaks:
            return "leaks"
        if self.looks_ahead > self.tolerance:
            return "bidirectional"
        return "causal"

    @property
    def summary(self) -> tuple[str, ...]:
        """The verdict in sentences, a leak of each cause by its largest effect."""
        return tuple(_verdict_sentences(self))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict, and what it rests on."""
        return (*self.summary, *_remarks(self))

    def as_dict(self) -> dict[str, Any]:
        """All fields and the verdict as plain values, for JSON."""
        return {
            "verdict": self.verdict,
            "sentences": list(self.sentences),
            "leaks": [asdict(leak) for leak in self.leaks],
            **asdict(self),
        }


WHOLE_TEXT = "(whole text)"
"""The term of a score that belongs to no token."""
CAUSE_NAMES: dict[Cause, str] = {
    "later token": "tokens to the right of the predicted one",
    "predicted token": "the very token that is predicted",
    "padding": "padding after the text",
    "neighbour": "another text in the batch",
}


def _verdict_sentences(report: CausalityReport) -> Iterator[str]:
    if report.verdict == "unstable":
        yield (
            f"the same input gives predictions that differ by {report.noise:.2g} nats, so effects "
            "can't be measured: is something random in evaluation mode?"
        )
    elif report.verdict == "leaks":
        for cause, name in CAUSE_NAMES.items():
            found = [leak for leak in report.leaks if leak.cause == cause]
            if found:
                yield _leak_sentence(name, found)
    elif report.verdict == "bidirectional":
        yield (
            f"bidirectional, as scores of kind {report.kind} say: predictions depend on tokens to "
            f"their right, by up to {report.looks_ahead:.2g} nats"
        )
        yield "neither padding nor another text in the batch changes a prediction"
    else:
        yield (
            "no prediction changes when a later token, padding or another text in the batch does"
        )


def _leak_sentence(name: str, leaks: list[Leak]) -> str:
    worst = leaks[0]
    by_token = worst.cause in ("later token", "predicted token")
    source = f"{worst.source!r}, position {worst.source_position}," if by_token else worst.source
    pairs = "1 pair" if len(leaks) == 1 else f"{len(leaks)} pairs"
    return (
        f"predictions depend on {name}, by up to {worst.nats:.2g} nats ({source} on "
        f"{worst.predicted!r}, position {worst.predicted_position}; {pairs} of source and "
        "prediction)"
    )


def _remarks(report: CausalityReport) -> Iterator[str]:
    if report.batched_by_length:
        yield "lmlab batches texts of equal length for this model, so its scores have no padding"
    effects = "all tokens" if report.whole_distribution else "the text's own tokens"
    yield (
        f"measured on the log-probabilities of {effects}; smaller effects than "
        f"{report.tolerance:.1g} nats can't be told from rounding"
    )


NO_EFFECT, SEEN, LEAKED, UNDEFINED = "·", "+", "!", " "
"""Cells of the matrix as text."""
LEGEND = f"(predicted position; {SEEN} depends on it, {LEAKED} leak, {NO_EFFECT} does not)"
MAX_NAME = 22
"""Characters of a row's name."""


@dataclass(frozen=True, kw_only=True)
class EffectMatrix:
    """One matrix of the report."""

    title: str
    sources: tuple[str, ...]
    effects: Effects
    is_leak: Callable[[int, int], bool]
    """Whether an effect of a row on a column is a leak."""


def effect_matrices(report: CausalityReport) -> tuple[EffectMatrix, ...]:
    """Effects of tokens, of padding and of a neighbour."""
    return (
        EffectMatrix(
            title="another token at a position",
            sources=numbered_tokens(report.tokens),
            effects=report.token_effects,
            is_leak=report.must_ignore,
        ),
        EffectMatrix(
            title="padding after the text",
            sources=report.paddings,
            effects=report.padding_effects,
            is_leak=lambda row, column: True,
        ),
        EffectMatrix(
            title="a second text in the batch",
            sources=report.neighbours,
            effects=report.neighbour_effects,
            is_leak=lambda row, column: True,
        ),
    )


def numbered_tokens(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens with their positions from 1; blank and unprintable ones quoted."""
    shown = [token if token.isprintable() and token.strip() else repr(token) for token in tokens]
    return tuple(f"{position} {token}" for position, token in enumerate(shown, start=1))


def matrix_lines(report: CausalityReport) -> Iterator[str]:
    """The matrices as lines of text, a character a cell; sources without effect are left out.

    All tokens of the text itself are shown.
    """
    tokens, *others = effect_matrices(report)
    width = max(_width(_short(name)) for name in (*tokens.sources, *others[0].sources))
    numbers = [str(position) for position in range(1, len(report.predictions) + 1)]
    yield f"  {'':{width}}  {' '.join(f'{number:>2}' for number in numbers)}   {LEGEND}"
    for matrix in (tokens, *others):
        for row, name in enumerate(matrix.sources):
            effects = matrix.effects[row]
            cells = [_symbol(report, matrix, row, column) for column in range(len(effects))]
            if matrix is tokens or LEAKED in cells:
                filler = " " * (width - _width(_short(name)))
                yield f"  {_short(name)}{filler}  {' '.join(f'{cell:>2}' for cell in cells)}"


def _symbol(report: CausalityReport, matrix: EffectMatrix, row: int, column: int) -> str:
    nats = matrix.effects[row][column]
    if nats is None:
        return UNDEFINED
    if nats <= report.tolerance:
        return NO_EFFECT
    return LEAKED if matrix.is_leak(row, column) else SEEN


def _width(name: str) -> int:
    """Columns of a terminal."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in name)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
