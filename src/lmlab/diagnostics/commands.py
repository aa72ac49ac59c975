"""The command that repeats a run, from its config.json."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmlab.core.registry import find_system
from lmlab.data.corpus import open_corpus
from lmlab.training.config import BUDGETS
from lmlab.training.train import make_plan


def command_of(config: Mapping[str, Any], out: Path) -> str:
    """`lmlab train …` with everything that differs from the defaults, ready for a shell."""
    plan = make_plan(
        find_system(config["system"]), config["size"], config["recipe"], {}, {}, config["seed"]
    )
    words = ["lmlab", "train", config["system"], "--data", config["corpus"]["spec"]]
    words += ["--out", str(out), "--size", config["size"]]
    words += ["--recipe", config["recipe"]] if config["recipe"] else []
    if config["tokenizer"] != _own_tokenizer(config):
        words += ["--tokenizer", config["tokenizer"]]
    usual = asdict(plan.system_config) | asdict(plan.training)
    for name, value in {**config["system_config"], **config["training"]}.items():
        if name not in (*BUDGETS, "seed") and value != usual.get(name):
            words += ["--set", f"{name}={_written(value)}"]
    for name in BUDGETS:
        if config["training"].get(name) is not None:
            words += [f"--{name}", _written(config["training"][name])]
    return shlex.join([*words, "--seed", str(config["seed"])])


def _own_tokenizer(config: Mapping[str, Any]) -> str | None:
    """The tokeniser that the corpus asks for; None where it is no longer there to be asked."""
    from lmlab.core.errors import UserError

    try:
        return open_corpus(config["corpus"]["spec"], seed=config["corpus"]["seed"]).tokenizer
    except UserError:
        return None


def _written(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_written, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
