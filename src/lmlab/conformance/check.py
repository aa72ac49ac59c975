"""Conformance check: a named property of a system, whom it applies to, and how it is tested.

Nothing here imports torch, so that pages and listings can name checks and exemptions quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lmlab.core.card import Card

if TYPE_CHECKING:
    from lmlab.conformance.system_under_test import SystemUnderTest

Law = Literal[
    "matches its card",
    "is a distribution",
    "does not use masked inputs",
    "does not depend on the batch",
    "learns",
    "survives saving and resuming",
    "samples what it scores",
    "steps as it scores",
    "shows what it declares",
]
"""What the checks of a group have in common."""

EXEMPTIONS: dict[str, str] = {
    "distribution": "its probabilities sum to one over an enumerable space",
    "masked-inputs": "no prediction uses an input that is masked from it",
    "input-dependence": "some input changes some prediction",
    "batch": "a score does not depend on the other sequences in the batch",
    "sample": "its samples follow the distribution that it scores",
    "fill": "its fills follow the distribution that it scores",
    "source": "the same checks hold given a source, and the source changes the scores",
}
"""Names for `exempt` of a card, and the property that each exempts from; the other properties have
no exemptions."""


class DoesNotApply(Exception):
    """A check does not apply to a system, as its run shows; the message says why."""


class Failure(AssertionError):
    """A property that does not hold: one sentence, and where, as data.

    `where` names positions, texts, tokens or parameters; `expected` and `measured` are the numbers
    there, where there are such.
    """

    def __init__(
        self,
        sentence: str,
        *,
        where: dict[str, int | str] | None = None,
        expected: float | None = None,
        measured: float | None = None,
    ) -> None:
        super().__init__(sentence)
        self.where = where or {}
        self.expected = expected
        self.measured = measured


Run = Callable[["SystemUnderTest"], None]
"""Raises a `Failure` where the property does not hold, `DoesNotApply` where it has no meaning."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One property that systems must have."""

    name: str
    property: str
    """The property in one sentence."""
    law: Law
    run: Run
    protocol: str = ""
    """The protocol that it needs; '' if it applies to all systems."""
    conditional: bool = False
    """Whether it applies only to systems conditioned on a source."""
    exemptions: tuple[str, ...] = ()
    """Names in a card's `exempt`, any of which exempts the system from this check."""
    relaxed_by: tuple[str, ...] = ()
    """Names in a card's `exempt` with which it asks for less."""

    def not_applicable(self, card: Card) -> str | None:
        """Why the check does not apply to the system of a card; None if it does."""
        if self.protocol and self.protocol not in card.protocols:
            return f"the card does not name the protocol {self.protocol}"
        if self.conditional and not card.conditional:
            return "it is not conditioned on a source"
        return None

    def exemption(self, card: Card) -> str | None:
        """The reason for which the card exempts its system; None if it does not."""
        return next((card.exempt[name] for name in self.exemptions if name in card.exempt), None)


def check(
    name: str,
    property: str,
    *,
    law: Law,
    protocol: str = "",
    conditional: bool = False,
    exemptions: tuple[str, ...] = (),
    relaxed_by: tuple[str, ...] = (),
) -> Callable[[Run], Check]:
    """Make a check of the function that tests it."""

    def decorate(run: Run) -> Check:
        return Check(
            name=name,
            property=property,
            law=law,
            run=run,
            protocol=protocol,
            conditional=conditional,
            exemptions=exemptions,
            relaxed_by=relaxed_by,
        )

    return decorate


Outcome = Literal["passed", "failed", "exempt", "does not apply"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of one check of one system."""

    check: str
    law: str
    property: str
    outcome: Outcome
    message: str = ""
    """What failed and where; why the system is exempt; why the check does not apply."""
    where: Mapping[str, int | str] = field(default_factory=dict)
    """Of a failure: position, text, token, parameter …, by name."""
    expected: float | None = None
    """Of a failure: the number expected there, where there is one."""
    measured: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ConformanceReport:
    """The outcomes of all checks of one system."""

    system: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return self.of("failed")

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def of(self, outcome: Outcome) -> tuple[CheckResult, ...]:
        """The results with an outcome."""
        return tuple(result for result in self.results if result.outcome == outcome)

    def summary(self) -> str:
        """The counts in one sentence."""
        passed, failed, exempt = (self.of(name) for name in ("passed", "failed", "exempt"))
        applied = len(passed) + len(failed)
        outcome = f"{len(failed)} of {applied} checks failed" if failed else f"passes all {applied}"
        outcome += "" if failed else " checks"
        exempted = f", {len(exempt)} exempt" if exempt else ""
        return f"{self.system}: {outcome}{exempted} ({self.seconds:.1f} s)"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        results = [asdict(result) for result in self.results]
        return {"system": self.system, "passed": self.passed, "results": results}
