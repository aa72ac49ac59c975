"""Diagnose a run: all checks of `checks/`, baselines, reference band and a summary."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from lmlab.data.corpus import Corpus
from lmlab.diagnosis import checks as room
from lmlab.diagnosis.findings import Baseline, Examination, Finding, SkippedCheck
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence
from lmlab.diagnosis.text_report import compute_key_figures, describe_outcome, summarise_checks
from lmlab.diagnosis.training_history import TrainingHistory

Check = Callable[[RunEvidence], Finding | None]


@cache
def all_checks() -> dict[str, Check]:
    """Every public function of every file in `checks/`, by its name in words.

    Defining the function registers it. It takes a `RunEvidence` and returns a `Finding`, or None if
    all is well. It raises `MissingEvidence` if it can't be run, `NotApplicable` if it has no
    meaning for this run.
    """
    found: dict[str, Check] = {}
    for module_info in sorted(pkgutil.iter_modules(room.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{room.__name__}.{module_info.name}")
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and not name.startswith("_"):
                words = name.replace("_", " ")
                assert words not in found, f"two checks are called {words}"
                found[words] = value
    return found


def examine_run(run: Path | str, *, data: str | Path | Corpus | None = None) -> Examination:
    """Diagnose a run of any system: answers "is this normal?".

    `data` gives the corpus's location if it has moved. Nothing is modified. Cost: reading the
    corpus once, and a few thousand tokens through the model.
    """
    evidence = RunEvidence(run, data=data)
    findings: list[Finding] = []
    skipped: list[SkippedCheck] = []
    inapplicable: list[SkippedCheck] = []
    made: list[str] = []
    for name, check in all_checks().items():
        try:
            found = check(evidence)
        except NotApplicable as why:
            inapplicable.append(SkippedCheck(check=name, reason=str(why)))
            continue
        except MissingEvidence as why:
            skipped.append(SkippedCheck(check=name, reason=str(why)))
            continue
        made.append(name)
        findings += [] if found is None else [found]
    findings.sort(key=lambda finding: finding.severity != "serious")
    reached = describe_outcome(evidence)
    return Examination(
        run=str(evidence.folder.path),
        system=evidence.card.name,
        corpus=str(evidence.config["corpus"]["spec"]),
        kind=evidence.card.kind,
        unit=evidence.unit,
        losses_comparable=evidence.losses_comparable,
        outcome=reached,
        verdict=f"{reached}. {summarise_checks(findings, len(made), skipped, inapplicable)}",
        key_figures=compute_key_figures(evidence),
        history=_history(evidence),
        levels=tuple(_levels(evidence)),
        reference_band=evidence.reference_band,
        findings=tuple(findings),
        skipped=tuple(skipped),
        not_applicable=tuple(inapplicable),
        checks=tuple(made),
    )


def _history(evidence: RunEvidence) -> TrainingHistory:
    try:
        return evidence.history
    except MissingEvidence:
        return TrainingHistory()


def _levels(evidence: RunEvidence) -> Iterator[Baseline]:
    try:
        yield from evidence.levels.values()
    except (MissingEvidence, NotApplicable):
        return
