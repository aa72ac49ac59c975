"""The options that repeat a run, from its config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError

TRAINED_TOKENIZERS = ("word", "char", "bpe", "wordpiece")
"""Kinds that are trained on the corpus; others are files."""
NOT_SETTINGS = ("seed",)


def run_options(config: Mapping[str, Any], names: Collection[str], path: Path) -> dict[str, Any]:
    """The options among `names` by which a run was made; its folder is not one of them.

    A fine-tuned run gives the options of `finetune`, any other one those of `train`.
    """
    task = _object(config, "task")
    if "task" in names:
        if not task:
            raise UserError(f"{path} is that of a run that was not fine-tuned; give its options.")
        options = _finetuning(config, task)
    elif task:
        raise UserError(f"{path} is that of a fine-tuned run; give it to lmlab finetune.")
    else:
        options = _training(config)
    return {name: value for name, value in options.items() if name in names and value is not None}


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    corpus, memories = _object(config, "corpus"), _object(config, "memories")
    roles = ("base", "encoder", "teacher", "predecessor")
    origins = {role: _object(config, role).get("path") for role in roles}
    continued = _object(config, "continued_from").get("path")
    options: dict[str, Any] = {
        "system": config.get("system"),
        "recipe": config.get("recipe"),
        "data": corpus.get("spec") or None,
        "data_seed": corpus.get("seed"),
        "errors": corpus.get("errors"),
        "seed": config.get("seed"),
        "settings": {**_object(config, "system_config"), **_training_settings(config)},
    }
    if continued:  # the size, the tokenizer and the memories are those of that run
        return options | {"base": continued, "teacher": origins["teacher"]}
    specs = {name: _object(memories, name).get("spec") or None for name in memories}
    taken_over = any(origins[role] for role in ("base", "teacher", "predecessor"))
    tokenizers = {
        name: kind
        for name in ("tokenizer", "source_tokenizer")
        if (kind := config.get(name)) in TRAINED_TOKENIZERS and not taken_over
    }
    size = None if origins["predecessor"] else config.get("size")
    return options | {"size": size} | origins | specs | tokenizers


def _finetuning(config: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "run": task.get("run"),
        "task": task.get("name"),
        "data": task.get("data"),
        "frozen": task.get("frozen"),
        "long": task.get("long"),
        "judge": task.get("judge"),
        "errors": _object(config, "rows").get("errors"),
        "seed": config.get("seed"),
        "settings": {
            **_object(task, "settings"),
            **_object(task, "long_settings"),
            **_training_settings(config),
        },
    }


def _training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    training = _object(config, "training")
    return {name: value for name, value in training.items() if name not in NOT_SETTINGS}


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}
