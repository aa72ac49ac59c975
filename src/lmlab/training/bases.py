"""Base runs: a trained system that another one is built on, `--base RUN`.

The base's weights are saved with the system that stands on it, and its description in config.json;
so the new run needs the base's folder no more once it has a checkpoint.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.runs import RunFolder, build_described, load_run


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """A system to build on, with its tokeniser, which the new run takes over."""

    system: System
    tokenizer: Tokenizer
    description: dict[str, Any]
    """What config.json tells of it: enough to build it again, and which weights it had."""

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """A UserError where the corpus is laid out otherwise than the base's was."""
        if self.system.vocabulary != vocabulary:
            raise UserError(
                f"the base {self.description['path']} was trained on text laid out otherwise "
                "(contiguous or in sentences) than this corpus; give a corpus like its own."
            )


def find_base(
    card: Card, given: str | Path | None, before: Mapping[str, Any] | None, run: RunFolder
) -> Base | None:
    """The base that is given, or that of the run that is resumed; None where there is none."""
    described = None if before is None else before.get("base")
    if described is None:
        if given is None and _must_have(card):
            example = f" (lmlab train {card.base} …)" if card.base else ""
            raise UserError(
                f"{card.name} is built on a trained system; train one first{example} and give its "
                "folder by --base."
            )
        return None if given is None else load_base(given)
    if given is None and run.load_checkpoint(lambda _: None) is not None:
        # The checkpoint holds the base's weights; its folder may be gone.
        tokenizer = Tokenizer.load(run.tokenizer)
        vocabulary = Vocabulary(**before["vocabulary"]) if before else tokenizer.vocabulary
        system = build_described(described, vocabulary)
        return Base(system=system, tokenizer=tokenizer, description=dict(described))
    base = load_base(described["path"] if given is None else given)
    if base.description["weights"] != described["weights"]:
        raise UserError(
            f"the run {run.path} was begun on the base {described['path']} as it was then, and "
            f"{base.description['path']} has other weights; resume it without --base, or choose "
            "another --out."
        )
    return base


def load_base(path: str | Path) -> Base:
    """A run as a base; a base of its own comes along."""
    model = load_run(path)
    told = ("system", "size", "system_config", "corpus")
    description = {name: model.config[name] for name in told}
    if "base" in model.config:
        description["base"] = model.config["base"]
    with RunFolder(model.path).weights.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return Base(
        system=model.system,
        tokenizer=model.tokenizer,
        description={"path": str(path), **description, "weights": weights},
    )


def _must_have(card: Card) -> bool:
    """Whether the system can't be built without a base: its `build` gives none of its own."""
    if "base" not in card.needs:
        return False
    parameter = inspect.signature(system_module(card.name).build).parameters["base"]
    return parameter.default is inspect.Parameter.empty
