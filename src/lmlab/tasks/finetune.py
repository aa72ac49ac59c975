"""Fine-tuning: a pretrained run trained on a downstream task, its head alone or as a whole."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lmlab.core.errors import LmlabWarning, UserError
from lmlab.core.options import takes
from lmlab.core.tracking_options import check_trackers
from lmlab.core.untrusted_input import check_seed
from lmlab.data.corpus import Corpus, Layout, Split, open_corpus
from lmlab.data.length_ratio import within_length_ratio
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import Example
from lmlab.tasks.finetune_job import FinetuneJob, FinetuneResult
from lmlab.tasks.finetune_options import FINETUNE_EPOCHS, FinetuneOptions
from lmlab.tasks.finetune_settings import check_settings_apply, split_settings
from lmlab.tasks.loading import load_pretrained
from lmlab.tasks.task import Row, Splits
from lmlab.tasks.task_registry import find_task
from lmlab.tasks.task_rows import count_unknown_words, is_corpus, read_splits, split_seed
from lmlab.training.config import TrainingConfig, apply_settings, replace_budgets, with_budget
from lmlab.training.distributed import exclusive_output, on_chosen_device
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.train import check_validation_split, resumes


def evaluation_corpus(
    models: Sequence[TrainedModel],
    data: str | None,
    trained_on: Callable[[Sequence[TrainedModel]], Corpus],
) -> Corpus:
    """The corpus that translators are evaluated on: `data`, or what all of them were trained on.

    That is a run's fine-tuning corpus, for other runs what they were `trained_on`. The original
    split is reproduced, or the test split would contain training data.
    """
    tuned = [model for model in models if _was_finetuned_on(model.config, data)]
    if not tuned:
        return trained_on(models)
    corpora = [_finetuning_corpus(model) for model in tuned]
    others = [m for m in models if _was_trained_on(m.config, data) and m not in tuned]
    corpora += [trained_on(others)] if others else []
    if len({corpus.fingerprint() for corpus in corpora}) > 1:
        raise UserError(
            "these runs were trained on different pairs, or on different splits of the same ones; "
            "give --data to evaluate them on, or evaluate them one by one."
        )
    return corpora[0]


def _was_finetuned_on(config: RunConfig, data: str | None) -> bool:
    """Whether a run was fine-tuned for generation, on that data or on any."""
    task = config.task if config.tuned_to_generate else None
    return task is not None and data in (None, task.data)


def _was_trained_on(config: RunConfig, data: str | None) -> bool:
    """Whether a run was trained here, on that data or on any."""
    return bool(config.corpus.fingerprint) and data in (None, config.corpus.spec)


def _finetuning_corpus(model: TrainedModel) -> Corpus:
    task, rows_record = model.config.task, model.config.rows
    assert task is not None, "it was fine-tuned"
    split_options = {} if rows_record is None else asdict(rows_record)
    data = task.data
    try:
        if is_corpus(data):
            return open_corpus(data, **split_options)
        splits = read_splits(data, find_task(task.name), **split_options)
    except UserError as error:
        raise UserError(
            f"the data that {model.name} was fine-tuned on can't be read here "
            f"({str(error).rstrip('.')}); give its path by --data."
        ) from error
    return Corpus(
        name=data,
        splits={name: _pairs_split(name, rows) for name, rows in splits.items() if rows},
        layout=Layout(kind="pairs"),
    )


def _pairs_split(name: str, rows: Sequence[Row]) -> Split:
    content = hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=16)
    pairs = [Example(str(row["target"]), condition=str(row["source"])) for row in rows]
    return Split.from_list(pairs, identity=f"rows:{content.hexdigest()}", name=name)


FINETUNE_DEFAULTS = TrainingConfig(
    learning_rate=1e-3,
    schedule="cosine",
    warmup_steps=20,
    tokens_per_batch=1024,
    epochs=FINETUNE_EPOCHS,
)
"""The default training settings of a fine-tuning."""


@on_chosen_device
@exclusive_output
@takes(FinetuneOptions)
def finetune(run: Path | str, options: FinetuneOptions) -> FinetuneResult:
    """Fine-tune the trained `run` on the rows of `data`, into the folder `out`.

    A fine-tuned `run` is used without its head. A task's `fields` are those of a row. `resume`
    continues an interrupted fine-tuning. `long` is the strategy for texts beyond the window, by
    default memrecall if the model is built for it, else truncation.
    """
    check_seed(options.seed)
    track = check_trackers(options.track)
    task_type, folder = find_task(options.task), RunFolder(Path(options.out))
    task_type.check_options(frozen=options.frozen, long=options.long, judge=options.judge)
    settings = dict(options.settings or {}) | options.training_settings()
    of_task, of_training = split_settings(settings, task_type)
    see = f"lmlab settings --task {options.task}"
    config = apply_settings(FINETUNE_DEFAULTS, replace_budgets(of_training), see)
    config = replace(config, seed=options.seed)
    check_settings_apply(config, task_type)
    if config.distributed == "fsdp":
        raise UserError("--distributed fsdp applies to lmlab train; remove it.")
    config = with_budget(
        config,
        keep=of_training,
        epochs=options.epochs,
        steps=options.steps,
        minutes=options.minutes,
    )
    before = folder.resumed_config() if resumes(folder, options.resume) else None
    model = load_pretrained(run)
    report, rows_seed = ReadingReport(), split_seed(model.config, options.data)
    splits = task_type.read_rows(options.data, seed=rows_seed, errors=options.errors, report=report)
    check_validation_split(config, selects="validation" in splits)
    report.uneven_pairs = _drop_by_length_ratio(splits, config.max_length_ratio)
    finetuned = task_type.from_rows(splits["train"], model)
    _limit_training_rows(splits, options.examples)  # afterwards: few rows need not have all labels
    if sentence := count_unknown_words(splits["train"], finetuned, model.tokenizer).warning():
        warnings.warn(sentence, LmlabWarning, stacklevel=2)
    job = FinetuneJob(
        folder=folder,
        config=config,
        settings=of_task,
        data=str(options.data),
        run=str(run),
        split_seed=rows_seed,
        report=report,
        errors=options.errors,
        frozen=options.frozen,
        long=options.long,
        judge=options.judge,
        quiet=options.quiet,
        track=track,
        before=before,
    )
    return finetuned.fit(model, splits, job)


def _drop_by_length_ratio(splits: Splits, max_ratio: float | None) -> int:
    """Drop training pairs beyond the maximum length ratio, and count them."""
    rows = splits["train"]
    if max_ratio is None:
        return 0
    splits["train"] = [
        row
        for row in rows
        if within_length_ratio(str(row["target"]), str(row["source"]), max_ratio)
    ]
    if not splits["train"]:
        raise UserError(
            f"max_length_ratio must leave training rows, got {max_ratio:g}, which leaves none; "
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
