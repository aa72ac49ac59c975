"""`lmlab demo`: five small systems on two synthetic languages with known entropy, and a report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.cli.output import print
from lmlab.core.errors import UserError

if TYPE_CHECKING:
    from lmlab.reports.report_sections import ReportSection

RUNS_FOLDER = Path("runs") / "demo"
REPORT_FILE = Path("report.html")


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """One training run of the demo."""

    corpus: str
    system: str
    settings: Mapping[str, Any] = field(default_factory=dict)


GRADIENT_SETTINGS = {
    "tokens_per_batch": 512,
    "learning_rate": 1e-2,
    "schedule": "cosine",
    "dropout": 0.1,
}
"""Small batches and a high learning rate, to fit a minute on one core."""
EPOCHS = {"capitals": 12, "grammar": 8}
"""The capitals must be memorised, which takes longer."""
DEMO_RUNS = tuple(
    DemoRun(corpus=corpus, system=system, settings=settings)
    for corpus, epochs in EPOCHS.items()
    for system, settings in (
        ("independent", {}),
        ("ngram", {}),
        ("window", GRADIENT_SETTINGS | {"epochs": epochs}),
        ("gru", GRADIENT_SETTINGS | {"epochs": epochs}),
        ("lstm", GRADIENT_SETTINGS | {"epochs": epochs}),
    )
)


def demo() -> None:
    """Train five small systems on two built-in corpora and write report.html (some minutes)."""
    path = run_demo(DEMO_RUNS)
    print(f"The report is at {path.resolve()}; open it in a browser.")


def run_demo(plan: Sequence[DemoRun], *, runs: Path = RUNS_FOLDER, out: Path = REPORT_FILE) -> Path:
    """Train the plan into `runs`, replacing earlier demo runs; return the report's path."""
    import torch

    from lmlab.reports.html_report import write_report
    from lmlab.training.train import train

    torch.set_num_threads(1)  # for such small matrices a second thread costs more than it gives
    for demo_run in plan:
        folder = runs / demo_run.corpus / demo_run.system
        clear_demo_run(folder)
        print(f"{demo_run.corpus}: {demo_run.system}", file=sys.stderr)
        result = train(
            demo_run.system, data=demo_run.corpus, out=folder, settings=demo_run.settings
        )
        if result.reason == "interrupted":
            raise KeyboardInterrupt
    corpora = dict.fromkeys(item.corpus for item in plan)
    sections = [_report_section(corpus, plan, runs) for corpus in corpora]
    return write_report(out, sections, title="Language models on one yardstick")


def clear_demo_run(folder: Path) -> None:
    """Remove the run of an earlier demo; leave anything else alone."""
    if not folder.exists():
        return
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is not a run, so the demo does not replace it; move it away.")
    shutil.rmtree(folder)


def _report_section(corpus: str, plan: Sequence[DemoRun], runs: Path) -> ReportSection:
    from lmlab.data.corpus import open_corpus
    from lmlab.reports.report_sections import make_report_section
    from lmlab.scoring.model_comparison import compare_models
    from lmlab.training.run_folder import load_run

    models = [
        load_run(runs / corpus / demo_run.system) for demo_run in plan if demo_run.corpus == corpus
    ]
    return make_report_section(compare_models(models, open_corpus(corpus)), models)
