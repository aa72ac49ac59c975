"""Loading fine-tuned runs: for predictions, or as the start of another fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lmlab.core.compute_options import current_compute
from lmlab.core.errors import UserError
from lmlab.core.registry import find_system
from lmlab.layers.model_placement import place_model
from lmlab.tasks.finetuned_model import FinetunedModel
from lmlab.tasks.task_registry import find_task
from lmlab.training.external_memory import load_external_memory
from lmlab.training.run_folder import RunFolder, TrainedModel, load_run, load_source_tokenizer
from lmlab.training.stored_model_guard import stored_model_guard
from lmlab.training.system_building import build_from_config


def load_task(path: Path | str) -> FinetunedModel:
    """The fine-tuned model of a run's folder, whatever its task.

    `predict(rows)` gives bare answers, `predict_with_details(rows)` their evidence too. The device
    and the precision are those of `current_compute`.
    """
    run = RunFolder(Path(path))
    config = run.read_config()
    if config.task is None:
        raise UserError(f"{run.path} was not fine-tuned to any task; see lmlab finetune --help.")
    run.verify()
    if not run.tokenizer.exists():
        raise UserError(f"the run {run.path} has lost its tokenizer.json.")
    with stored_model_guard(run.path, run.weights):
        model = find_task(config.task.name).load(run, config)
    place_model(model.system, current_compute())
    return model


def is_task_run(path: Path | str) -> bool:
    """Whether a run was fine-tuned with a task head, so that it is no longer a language model."""
    return RunFolder(Path(path)).read_config().task_head


def load_pretrained(path: Path | str) -> TrainedModel:
    """The base model of a further fine-tuning; of a fine-tuned run, without its head.

    For training in stages: short texts before long ones, large general data before a small specific
    set. The head is dropped, as the next task may have another; so are MemRecall's judge and
    CogQA's graph network.
    """
    run = RunFolder(Path(path))
    if not is_task_run(path):
        return load_run(path)
    config = run.read_config()
    finetuned = load_task(path)
    # Rebuilt, since a frozen fine-tuning has disabled the gradients of its parameters.
    memories = load_external_memory(config.memories, run.memory)
    vocabulary, tokenizer = finetuned.base.vocabulary, finetuned.tokenizer
    system = build_from_config(config, vocabulary, memories, tokenizer)
    system.load_state_dict(finetuned.base.state_dict())
    return TrainedModel(
        system=system.eval(),
        tokenizer=tokenizer,
        source_tokenizer=load_source_tokenizer(config, run),
        layout=config.layout,
        config=replace(config, task=None),
        card=find_system(config.system),
        path=run.path,
    )
