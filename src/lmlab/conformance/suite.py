"""The conformance suite: all checks, and running them on a system."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import torch

from lmlab.conformance.assertions import assert_that
from lmlab.conformance.check import (
    EXEMPTIONS,
    Check,
    CheckResult,
    ConformanceReport,
    DoesNotApply,
    Failure,
    Law,
    check,
)
from lmlab.conformance.checks import (
    declarations,
    distribution,
    fill,
    independence,
    joint_fill,
    learning,
)
from lmlab.conformance.system_under_test import STEPS, SystemUnderTest, Workspace, one_thread
from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.registry import RegisteredSystem, registered_system
from lmlab.core.system_files import resolve_system
from lmlab.core.system_origin import PackageOrigin

MODULES = (declarations, distribution, fill, joint_fill, independence, learning)
"""The checks, by the law that they belong to."""

TRAINING = CheckResult(
    check="training",
    law="learns",
    property=f"It trains for {STEPS} steps at size tiny, and its run can be loaded.",
    outcome="passed",
)
"""What every other check starts from, so it has no name to select it by."""
NOT_TRAINED = "its tiny training failed"
INEXACT_KINDS = ("bound", "estimate")
"""Kinds of scores that may be so near to the probabilities that samples do not tell them apart."""


@check(
    "exemptions",
    "Every exemption on the card names a property, and the system lacks it.",
    law="matches its card",
)
def exemptions_are_needed(tested: SystemUnderTest) -> None:
    """An exempted check, when it is run all the same, fails."""
    for name, reason in tested.card.exempt.items():
        assert_that(
            name in EXEMPTIONS,
            f"the card names the exemption {name!r}, expected one of {', '.join(EXEMPTIONS)}",
            exemption=name,
        )
        if name == "sample" and tested.card.kind in INEXACT_KINDS:
            continue
        others = {other: why for other, why in tested.card.exempt.items() if other != name}
        without = replace(tested, card=replace(tested.card, exempt=others))
        concerned = [
            check
            for check in CHECKS.values()
            if name in (*check.exemptions, *check.relaxed_by)
            and not check.not_applicable(without.card)
            and not check.exemption(without.card)
        ]
        results = [run_check(check, without) for check in concerned]
        passing = [result.check for result in results if result.outcome == "passed"]
        assert_that(
            len(passing) < len(concerned),
            f"the card exempts the system from {name!r} ({reason}), and without that "
            f"{' and '.join(passing) or 'no check'} passes; remove the exemption",
            exemption=name,
        )


def _all_checks() -> dict[str, Check]:
    own = [exemptions_are_needed]
    parts = [value for module in MODULES for value in vars(module).values()]
    checks = [*(part for part in parts if isinstance(part, Check)), *own]
    laws = get_args(Law)
    ordered = sorted(checks, key=lambda check: laws.index(check.law))
    return {check.name: check for check in ordered}


CHECKS: dict[str, Check] = _all_checks()
"""All checks by name, law by law."""


def find_checks(names: Sequence[str]) -> list[Check]:
    """The checks of these names; all if there are none."""
    if isinstance(names, str):
        raise UserError(
            f"checks must be a list of names, got the text {names!r}; put it in a list."
        )
    for name in names:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS, "lmlab conformance --list")
    return [check for name, check in CHECKS.items() if not names or name in names]


def applicable_checks(card: Card) -> list[Check]:
    """The checks that apply to the system of a card, without those it is exempt from."""
    return [
        check
        for check in CHECKS.values()
        if not check.not_applicable(card) and not check.exemption(card)
    ]


def run_isolated(check: Check, tested: SystemUnderTest) -> None:
    """Run a check in one thread and from one random state, whatever ran before it."""
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(0)
        check.run(tested)


def run_check(check: Check, tested: SystemUnderTest) -> CheckResult:
    """The result of one check; an error that the system raises is a failure too."""
    result = CheckResult(check=check.name, law=check.law, property=check.property, outcome="passed")
    if (why := check.not_applicable(tested.card)) is not None:
        return replace(result, outcome="does not apply", message=why)
    if (why := check.exemption(tested.card)) is not None:
        return replace(result, outcome="exempt", message=why)
    began = time.perf_counter()
    try:
        run_isolated(check, tested)
    except DoesNotApply as reason:
        result = replace(result, outcome="does not apply", message=str(reason))
    except Exception as error:
        result = _failed(result, error, tested.card)
    return replace(result, seconds=time.perf_counter() - began)


def _failed(result: CheckResult, error: Exception, card: Card) -> CheckResult:
    if isinstance(error, Failure):
        return replace(
            result,
            outcome="failed",
            message=str(error),
            where=error.where,
            expected=error.expected,
            measured=error.measured,
        )
    if isinstance(error, UserError):
        return replace(result, outcome="failed", message=str(error))
    frame = _frame_of_system(error, registered_system(card.name))
    place: dict[str, int | str] = {"file": frame.filename, "line": frame.lineno or 0}
    message = f"{type(error).__name__} in {frame.name} ({frame.filename}:{frame.lineno}): {error}"
    return replace(result, outcome="failed", message=message, where=place)


def _frame_of_system(error: Exception, system: RegisteredSystem) -> traceback.FrameSummary:
    """The last frame in a system's own file or package; the last of all if none is there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = system.file.parent if isinstance(system.origin, PackageOrigin) else system.file
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(own)]
    return (inside or frames)[-1]


Progress = Callable[[int, int], None]
"""Called with the number of checks done and of all; the training counts as one."""


def check_conformance(
    system: str | Path | ModuleType,
    *,
    checks: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ConformanceReport:
    """Run the conformance suite on a system, given by its name, its file or its module.

    `checks` are the names of some checks; by default all are run. `settings` are the system's, over
    those of size tiny.
    """
    card, chosen = resolve_system(system), find_checks(checks)
    report = progress or (lambda done, of: None)
    total = len(chosen) + 1
    with tempfile.TemporaryDirectory(prefix="lmlab-conformance-") as folder:
        report(0, total)
        began = time.perf_counter()
        try:
            tested = Workspace(Path(folder), settings or {}).system(card.name)
        except Exception as error:
            if settings and isinstance(error, UserError):
                raise  # a setting of the caller's
            training = replace(_failed(TRAINING, error, card), seconds=time.perf_counter() - began)
            skipped = tuple(_not_trained(check) for check in chosen)
            return ConformanceReport(system=card.name, results=(training, *skipped))
        results = [replace(TRAINING, seconds=time.perf_counter() - began)]
        for check in chosen:
            report(len(results), total)
            results.append(run_check(check, tested))
        report(total, total)
    return ConformanceReport(system=card.name, results=tuple(results))


def _not_trained(check: Check) -> CheckResult:
    return CheckResult(
        check=check.name,
        law=check.law,
        property=check.property,
        outcome="does not apply",
        message=NOT_TRAINED,
    )
