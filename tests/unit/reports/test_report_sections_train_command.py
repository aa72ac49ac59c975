"""The train command of a run reproduces its configuration."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.run_configs import corpus_record, run_config

from lmlab.core.registry import find_system
from lmlab.reports.report_sections import train_command
from lmlab.training.run_config import RunConfig
from lmlab.training.run_records import unknown_corpus
from lmlab.training.training_plan import make_training_plan


def config_of(system: str, size: str, recipe: str | None, **settings: Any) -> RunConfig:
    budget = {name: settings.pop(name, None) for name in ("epochs", "steps", "minutes")}
    plan = make_training_plan(find_system(system), size, recipe, settings, budget, 7)
    return run_config(
        system,
        size=size,
        recipe=recipe,
        seed=7,
        corpus=corpus_record("my corpus.txt"),
        system_config=asdict(plan.system_config),
        training=plan.training,
    )


def parsed(command: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """Options and settings of a command line."""
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["lmlab", "train"]
    pairs = list(zip(words[3::2], words[4::2], strict=True))
    settings = dict(value.split("=", 1) for name, value in pairs if name == "--set")
    return {name: value for name, value in pairs if name != "--set"}, settings


@pytest.mark.parametrize(
    "config",
    [
        config_of("lstm", "tiny", None),
        config_of("gru", "small", "notes", steps=30),
        config_of("rnn", "base", None, activation="linear", radius=0.9, minutes=1.5),
        config_of("lstm", "small", "multi30k", tied=False, learning_rate=0.01, epochs=3),
        config_of("ngram", "small", None, order=2),
    ],
)
def test_train_command_reproduces_the_training_plan(config: RunConfig) -> None:
    options, settings = parsed(train_command(config, Path("runs/my run")))
    budget = {
        name: float(options[f"--{name}"]) if name == "minutes" else int(options[f"--{name}"])
        for name in ("epochs", "steps", "minutes")
        if f"--{name}" in options
    }
    card = find_system(config.system)
    plan = make_training_plan(
        card, options["--size"], options.get("--recipe"), settings, budget, int(options["--seed"])
    )
    assert asdict(plan.system_config) == config.system_config
    assert plan.training == config.training
    assert options["--data"] == "my corpus.txt"
    assert options["--out"] == "runs/my run"
    assert options["--tokenizer"] == "word"


def test_train_command_omits_defaults() -> None:
    command = train_command(config_of("lstm", "tiny", None), Path("x"))
    assert command is not None
    assert "--set" not in command
    assert "--epochs" not in command


def test_imported_model_has_no_train_command() -> None:
    config = replace(config_of("ngram", "small", None), corpus=unknown_corpus())
    assert train_command(config, Path("x")) is None
