"""Fine-tuning: a pretrained run trained on a downstream task, its head alone or as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.seeds import check_seed
from lmlab.data.length_ratio import within_length_ratio
from lmlab.data.lines import ReadingReport
from lmlab.tasks.finetune_job import FinetuneJob, FinetuneResult
from lmlab.tasks.finetune_settings import check_settings_apply, split_settings
from lmlab.tasks.loading import load_pretrained
from lmlab.tasks.task import Splits
from lmlab.tasks.task_registry import find_task
from lmlab.tasks.task_rows import count_unknown_words, split_seed
from lmlab.training.config import TrainingConfig, apply_settings, replace_budgets, with_budget
from lmlab.training.distributed import exclusive_output
from lmlab.training.run_folder import RunFolder
from lmlab.training.train import check_validation_split, resumes

FINETUNE_DEFAULTS = TrainingConfig(
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=20,
    tokens_per_batch=1024,
    epochs=10,
)
"""The default training settings of a fine-tuning."""


@exclusive_output
def finetune(
    run: Path | str,
    *,
    task: str,
    data: str | Path,
    out: Path | str,
    frozen: bool = False,
    long: str | None = None,
    judge: str | None = None,
    examples: int | None = None,
    settings: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    resume: bool = False,
    errors: str = "strict",
    quiet: bool = False,
) -> FinetuneResult:
    """Fine-tune the trained `run` on the rows of `data`, into the folder `out`.

    A fine-tuned `run` is used without its head.

    `frozen` trains the head alone (feature extraction), else all parameters are trained. `examples`
    limits the rows of the training split. `data` is a file of JSON lines, a folder with one for
    each split, or a built-in set; a task's `fields` are those of a row. `resume` continues an
    interrupted fine-tuning.

    `long` is the strategy for texts beyond the window: head, tail, head-tail, windows, pooling or
    memrecall (CogLTX); by default memrecall if the model is built for it, else truncation. `judge`
    is the supervision of MemRecall's judge, labels (`relevant` of the rows, the default if present)
    or interventions.
    """
    check_seed(seed)
    kind, folder = find_task(task), RunFolder(Path(out))
    kind.check_options(frozen=frozen, long=long, judge=judge)
    of_task, of_training = split_settings(settings or {}, kind)
    see = f"lmlab settings --task {task}"
    config = apply_settings(FINETUNE_DEFAULTS, replace_budgets(of_training), see)
    config = replace(config, seed=seed)
    check_settings_apply(config, kind)
    config = with_budget(config, beside=of_training, epochs=epochs, steps=steps, minutes=minutes)
    before = folder.resumed_config() if resumes(folder, resume) else None
    model = load_pretrained(run)
    report, rows_seed = ReadingReport(), split_seed(model.config, data)
    splits = kind.read_rows(data, seed=rows_seed, errors=errors, report=report)
    check_validation_split(config, selects="validation" in splits)
    report.uneven_pairs = _drop_uneven(splits, config.max_length_ratio)
    finetuned = kind.from_rows(splits["train"], model)
    _limit_training_rows(splits, examples)  # afterwards: few rows need not have all labels
    if sentence := count_unknown_words(splits["train"], finetuned, model.tokenizer).warning():
        warnings.warn(sentence, LmlabWarning, stacklevel=2)
    job = FinetuneJob(
        folder=folder,
        config=config,
        settings=of_task,
        data=str(data),
        run=str(run),
        split_seed=rows_seed,
        report=report,
        errors=errors,
        frozen=frozen,
        long=long,
        judge=judge,
        quiet=quiet,
        before=before,
    )
    return finetuned.fit(model, splits, job)


def _drop_uneven(splits: Splits, most: float | None) -> int:
    """Drop training pairs beyond the maximum length ratio, and count them."""
    rows = splits["train"]
    if most is None:
        return 0
    splits["train"] = [
        row for row in rows if within_length_ratio(str(row["target"]), str(row["source"]), most)
    ]
    if not splits["train"]:
        raise UserError(
            f"max_length_ratio must leave training rows, got {most:g}, which leaves none; "
            "try a larger one."
        )
    return len(rows) - len(splits["train"])


def _limit_training_rows(splits: Splits, examples: int | None) -> None:
    """Keep the first `examples` training rows."""
    if examples is None:
        return
    count = len(splits["train"])
    if not 1 <= examples <= count:
        raise UserError(f"examples must be from 1 to {count}, the training rows, got {examples}.")
    splits["train"] = splits["train"][:examples]
