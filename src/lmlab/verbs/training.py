"""Verbs that train: train, finetune (and predict), demo."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from lmlab.core.compute_options import PrecisionName, computing_with, given_compute
from lmlab.core.errors import UserError
from lmlab.core.options import Argument, as_keywords, takes
from lmlab.core.untrusted_input import check_path
from lmlab.tasks.finetune_options import FinetuneOptions
from lmlab.training.train_options import TrainOptions

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.data.tokenizers import Tokenizer
    from lmlab.reports.report_sections import ReportSection
    from lmlab.tasks.confidence_intervals import TaskMetrics
    from lmlab.tasks.finetune_job import FinetuneResult
    from lmlab.tasks.finetuned_model import FinetunedModel, TaskAnswer
    from lmlab.training.loop import ValidationMetric
    from lmlab.training.train import TrainingResult


@takes(TrainOptions)
def train(
    system: Annotated[
        str | Path | ModuleType,
        Argument("A system of lmlab systems, or a Python file.", metavar="SYSTEM"),
    ],
    options: TrainOptions,
) -> TrainingResult:
    """Train a system on a corpus; the run's folder holds all that is needed to use or repeat it.

    With `resume`, a training that was stopped continues bit-exactly; see
    `lmlab.training.train.train`. Checkpoints are selected by loss, or by BLEU (`select_by`).

    >>> result = lmlab.train("ngram", data="capitals", out="runs/trained", quiet=True)
    >>> result.reason, result.loss > 0
    ('budget', True)
    """
    from lmlab.core.system_files import resolve_system

    resolve_system(system)  # report a wrong name before the slow import of torch
    check_path(options.out, "out")
    from lmlab.training.train import train as train_system

    if options.metric is None:
        options = replace(options, metric=_bleu)
    return train_system(system, **as_keywords(options))


def _bleu(corpus: Corpus, tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> ValidationMetric:
    """Validation BLEU; what it needs is imported only if weights are selected by it."""
    from lmlab.sampling.translation_evaluation import ValidationBleu

    return ValidationBleu(corpus, tokenizer, source_tokenizer)


@takes(FinetuneOptions)
def finetune(
    run: Annotated[str | Path, Argument("The folder of a trained run.", metavar="RUN")],
    options: FinetuneOptions,
) -> FinetuneResult:
    """Fine-tune a trained run on a task: only a new head (--frozen), or all parameters.

    A run that was fine-tuned before starts from its weights with a new head. See
    `lmlab.tasks.finetune.finetune`.
    """
    check_path(run, "a run")
    check_path(options.out, "out")
    from lmlab.tasks.finetune import finetune as finetune_run

    return finetune_run(run, **as_keywords(options))


def load_task(
    run: str | Path,
    *,
    device: str | None = None,
    precision: PrecisionName | None = None,
    threads: int | None = None,
) -> FinetunedModel:
    """Load a fine-tuned run, whatever its task: `predict(rows)` gives its answers.

    `device`, `precision` and `threads` are those of `lmlab.load`.
    """
    from lmlab.tasks.loading import load_task as load

    with computing_with(given_compute(device, precision, threads)):
        return load(run)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answers to rows, and their metrics if the rows hold the right ones."""

    answers: Sequence[TaskAnswer]
    metrics: TaskMetrics | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        metrics = None if self.metrics is None else asdict(self.metrics)
        return {"answers": [answer.as_dict() for answer in self.answers], "metrics": metrics}


def predict(
    run: str | Path | FinetunedModel, rows: Sequence[Mapping[str, Any] | str]
) -> Prediction:
    """Predict with a fine-tuned run: an answer for each row or text; empty lines stay.

    A row is a mapping with the task's fields, or a text for a task whose rows have one.

    >>> _ = lmlab.train("gpt", data="grammar", out="runs/gpt", size="tiny", steps=2, quiet=True)
    >>> rows = [{"text": text, "label": str(len(text.split()))} for text in ("a b", "a b c") * 12]
    >>> _ = open("rows.jsonl", "w").write("\\n".join(map(json.dumps, rows)))
    >>> _ = lmlab.finetune("runs/gpt", task="classify", data="rows.jsonl", out="runs/task",
    ...                    epochs=1, quiet=True)
    >>> prediction = lmlab.predict("runs/task", ["a b", {"text": "b c d"}])
    >>> {answer.answer for answer in prediction.answers} <= {"2", "3"}, prediction.metrics
    (True, None)
    """
    model = load_task(run) if isinstance(run, (str, Path)) else run
    task = model.task
    if task.text_field is None and any(isinstance(row, str) for row in rows):
        raise UserError(f"a row of {task.name} has several texts; give mappings with its fields.")
    full = [task.row_from_text(row) if isinstance(row, str) else dict(row) for row in rows]
    model.check(full)
    answers = model.predict_with_details(full)
    metrics = model.metrics(full, [item.answer for item in answers])
    return Prediction(answers=answers, metrics=metrics)


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


def demo(*, runs: str | Path = RUNS_FOLDER, out: str | Path = REPORT_FILE) -> Path:
    """Train five small systems on two built-in corpora and write report.html (some minutes).

    The runs are below `runs`, the path of the report is returned.
    """
    return run_demo(DEMO_RUNS, runs=Path(runs), out=Path(out))


def run_demo(plan: Sequence[DemoRun], *, runs: Path = RUNS_FOLDER, out: Path = REPORT_FILE) -> Path:
    """Train the plan into `runs`, replacing earlier demo runs; return the report's path."""
    import torch

    from lmlab.reports.html_report import write_report

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
