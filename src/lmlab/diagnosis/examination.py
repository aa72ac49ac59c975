"""Diagnosis of a training run: runs all checks of `checks/`, baselines, reference band, summary."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from lmlab.core.compute_options import ComputeOptions, computing_with, current_compute
from lmlab.core.devices import find_device
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of
from lmlab.data.corpus import Corpus
from lmlab.diagnosis import checks as package
from lmlab.diagnosis.causality import CausalityReport
from lmlab.diagnosis.causality_probe import examine_causality
from lmlab.diagnosis.findings import (
    Baseline,
    Examination,
    Finding,
    SkippedCheck,
    TrainingHistory,
    leak_finding,
)
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence
from lmlab.diagnosis.text_report import compute_key_figures, describe_outcome, summarise_checks
from lmlab.interop.load_model import is_hub_checkpoint, load_model
from lmlab.training.run_folder import TrainedModel

Check = Callable[[RunEvidence], Finding | None]


@cache
def all_checks() -> dict[str, Check]:
    """Every public function of every file in `checks/`, by its name in words.

    Defining the function registers it. It takes a `RunEvidence` and returns a `Finding`, or None if
    all is well. It raises `MissingEvidence` if it can't be run, `NotApplicable` if it has no
    meaning for this run.
    """
    checks: dict[str, Check] = {}
    for module_name in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        module = importlib.import_module(f"{package.__name__}.{module_name}")
        for name, value in vars(module).items():
            defined_here = inspect.isfunction(value) and value.__module__ == module.__name__
            if defined_here and not name.startswith("_"):
                words = name.replace("_", " ")
                assert words not in checks, f"two checks are called {words}"
                checks[words] = value
    return checks


def examine(
    run: Path | str | TrainedModel,
    *,
    data: str | Path | Corpus | None = None,
    text: str | None = None,
) -> Examination:
    """Diagnose a run by its folder or model, or a model from elsewhere by its causality alone."""
    if not isinstance(run, TrainedModel):
        if not is_hub_checkpoint(Path(run)):
            return examine_run(run, data=data, text=text)
        run = load_model(run)
    if run.stored:
        with computing_with(ComputeOptions(device=str(device_of(run.system)))):
            return examine_run(run.path, data=data, text=text)
    if data is not None:
        raise UserError(f"data= applies to runs, and {run.name} was not trained here; remove it.")
    return examine_model(run, text=text)


def examine_run(
    run: Path | str, *, data: str | Path | Corpus | None = None, text: str | None = None
) -> Examination:
    """Diagnose a run of any system: answers "is this normal?".

    `data` gives the corpus's location if it has moved; causality is examined on the beginning of
    `text`. Nothing is modified. Cost: reading the
    corpus once, and a few thousand tokens through the model.
    """
    find_device(current_compute().device)  # report a missing one before anything else
    evidence = RunEvidence(run, data=data, text=text)
    findings: list[Finding] = []
    skipped: list[SkippedCheck] = []
    inapplicable: list[SkippedCheck] = []
    completed: list[str] = []
    for name, check in all_checks().items():
        try:
            finding = check(evidence)
        except NotApplicable as reason:
            inapplicable.append(SkippedCheck(check=name, reason=str(reason)))
            continue
        except MissingEvidence as reason:
            skipped.append(SkippedCheck(check=name, reason=str(reason)))
            continue
        completed.append(name)
        if finding is not None:
            findings.append(finding)
    findings.sort(key=lambda item: item.severity != "serious")
    outcome = describe_outcome(evidence)
    return Examination(
        run=str(evidence.folder.path),
        system=evidence.card.name,
        corpus=evidence.config.corpus.spec,
        kind=evidence.card.kind,
        unit=evidence.unit,
        losses_comparable=evidence.losses_comparable,
        outcome=outcome,
        verdict=f"{outcome}. {summarise_checks(findings, len(completed), skipped, inapplicable)}",
        key_figures=compute_key_figures(evidence),
        history=_history(evidence),
        levels=tuple(_levels(evidence)),
        reference_band=evidence.reference_band,
        findings=tuple(findings),
        skipped=tuple(skipped),
        not_applicable=tuple(inapplicable),
        checks=tuple(completed),
        causality=_causality(evidence),
    )


def examine_model(model: TrainedModel, *, text: str | None = None) -> Examination:
    """Diagnose a model that was not trained here: its causality, on the beginning of `text`.

    There is no training history to examine.
    """
    report = examine_causality(model, text=text)
    finding = leak_finding(report)
    findings = () if finding is None else (finding,)
    outcome = f"{model.name} was not trained here: its causality alone is examined"
    return Examination(
        run=str(model.path),
        system=model.card.name,
        corpus="",
        kind=report.kind,
        unit=model.system.loss_unit,
        losses_comparable=model.system.loss_is_comparable,
        outcome=outcome,
        verdict=f"{outcome}. {summarise_checks(findings, 1, (), ())}",
        key_figures={},
        history=TrainingHistory(),
        levels=(),
        reference_band=None,
        findings=findings,
        skipped=(),
        not_applicable=(),
        checks=("causality",),
        causality=report,
    )


def _causality(evidence: RunEvidence) -> CausalityReport | None:
    try:
        return evidence.causality
    except (MissingEvidence, NotApplicable):
        return None


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
