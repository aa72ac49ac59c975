"""The command that repeats a run, from its config.json."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmlab.core.registry import find_system
from lmlab.training.config import BUDGETS
from lmlab.training.plans import make_plan


def command_of(config: Mapping[str, Any], out: Path) -> str | None:
    """`lmlab train …` with everything that differs from the defaults, ready for a shell.

    None for a model that came from elsewhere (an ARPA file), which no training of ours repeats.
    """
    if not config["corpus"]["spec"]:
        return None
    plan = make_plan(
        find_system(config["system"]), config["size"], config["recipe"], {}, {}, config["seed"]
    )
    words = ["lmlab", "train", config["system"], "--data", config["corpus"]["spec"]]
    words += ["--out", str(out), "--size", config["size"], "--tokenizer", config["tokenizer"]]
    words += ["--recipe", config["recipe"]] if config["recipe"] else []
    usual = asdict(plan.system_config) | asdict(plan.training)
    for name, value in {**config["system_config"], **config["training"]}.items():
        if name not in (*BUDGETS, "seed") and value != usual.get(name):
            words += ["--set", f"{name}={_written(value)}"]
    budget = {name: config["training"].get(name) for name in BUDGETS}
    if any(value != usual[name] for name, value in budget.items()):
        for name, value in budget.items():
            words += [] if value is None else [f"--{name}", _written(value)]
    return shlex.join([*words, "--seed", str(config["seed"])])


def _written(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(_written, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
