"""Runs that another is trained from: `--base`, `--encoder`, `--teacher`, `--predecessor`.

A base is used frozen; an encoder initialises the system's own and is trained further. The weights
are saved with the new system, and the description of the old one in config.json; so the new run no
longer needs the old one's folder once it has a checkpoint. A teacher and a predecessor are needed
as long as the new run is trained, and never after it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.manifest import hash_file
from lmlab.core.registry import system_module
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel, load_run
from lmlab.training.run_records import BaseRecord
from lmlab.training.system_building import build_from_config

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseModel:
    """A system to build on, with its tokenizer, which the new run takes over."""

    system: System
    tokenizer: Tokenizer
    description: BaseRecord
    """Its entry in config.json: enough to rebuild it, and a hash of its weights."""
    role: str = "base"
    """The option that named it: base, encoder, teacher or predecessor."""
    source_tokenizer: Tokenizer | None = None
    """Its source tokenizer, where it is a different one."""

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """A UserError where the corpus layout differs from that of the base."""
        if self.system.vocabulary != vocabulary:
            raise UserError(
                f"the {self.role} {self.description.path} was trained on text with another "
                "layout (contiguous or in sentences) than this corpus; give a corpus like "
                "its own."
            )

    def check_tokenizer(self, tokenizer: Tokenizer, sources: Tokenizer | None = None) -> None:
        """A UserError where its tokenizer is not that of the new run; a teacher's, those."""
        pairs = [(self.tokenizer, tokenizer)]
        if self.role in NEEDED_IN_TRAINING:
            pairs.append((self.source_tokenizer or self.tokenizer, sources or tokenizer))
        if any(own.fingerprint() != given.fingerprint() for own, given in pairs):
            raise UserError(
                f"the {self.role} {self.description.path} was trained with a different "
                "tokenizer than the new run; train it with the same one (--tokenizer "
                "RUN/tokenizer.json)."
            )

    def sentence(self) -> str:
        """What it is to the new run, for the first line of the output."""
        path, history = self.description.path, self.description.history()
        return f"--{self.role}: {_VERBS[self.role]} {path} ({history})"

    def settings_for(self, config: DataclassInstance) -> dict[str, Any]:
        """Its settings that a system's config has too; for a base, only those that the config
        declares as inherited."""
        names = {spec.name for spec in fields(config)}
        if self.role == "base":
            names &= getattr(config, "inherited_from_base", frozenset())
        system_config = self.description.system_config.items()
        return {k: tuple(v) if isinstance(v, list) else v for k, v in system_config if k in names}


NEEDED_IN_TRAINING = ("teacher", "predecessor")
"""Roles whose weights are no part of the new run's checkpoints."""
_VERBS = {
    "base": "builds on",
    "encoder": "initialises the encoder from",
    "teacher": "learns the predictions of",
    "predecessor": "replaces the layers of",
}


def resolve_base(
    card: Card, role: str, path: str | Path | None, resumed: RunConfig | None, run: RunFolder
) -> BaseModel | None:
    """The run given in a role, or that of the resumed run; or None."""
    description = None if resumed is None else resumed.base_of_role(role)
    if description is None:
        if path is not None and resumed is not None:
            raise UserError(
                f"the run {run.path} was started without --{role}; resume it without, or "
                "choose another --out."
            )
        if path is None and _is_required(card, role):
            example = f" (lmlab train {card.base} …)" if card.base else ""
            raise UserError(
                f"{card.name} needs a trained base model; train one first{example} and give "
                f"its folder by --{role}."
            )
        return None if path is None else load_base_model(path, role)
    needed = role in NEEDED_IN_TRAINING
    if path is None and not needed and run.load_checkpoint(lambda _: None) is not None:
        # The checkpoint holds the base's weights; its folder may be gone.
        tokenizer = Tokenizer.load(run.tokenizer)
        vocabulary = resumed.vocabulary if resumed else tokenizer.vocabulary
        system = build_from_config(description, vocabulary)
        return BaseModel(system=system, tokenizer=tokenizer, description=description, role=role)
    path = description.path if path is None else path
    if needed and not Path(path).exists():
        raise UserError(
            f"the {role} {path} of the run {run.path} is gone, and is needed to train it further; "
            f"restore it, or give its new folder by --{role}."
        )
    base = load_base_model(path, role)
    check_same_weights(base.description, description, run, role=role)
    return base


def check_same_weights(
    given: BaseRecord, recorded: BaseRecord, run: RunFolder, *, role: str
) -> None:
    """A UserError where a run is resumed with other weights of its base than it was started."""
    if given.weights != recorded.weights:
        needed = role in NEEDED_IN_TRAINING
        advice = "restore that version" if needed else f"resume it without --{role}"
        raise UserError(
            f"the run {run.path} was started from an earlier version of the {role} "
            f"{recorded.path}, and {given.path} has other weights; {advice}, or choose another "
            "--out."
        )


def load_base_model(path: str | Path, role: str = "base") -> BaseModel:
    """Load a run in a role, with its own base if it has one."""
    model = load_run(path)
    return BaseModel(
        system=model.system,
        tokenizer=model.tokenizer,
        description=base_record(model, path),
        role=role,
        source_tokenizer=model.source_tokenizer,
    )


def base_record(model: TrainedModel, path: str | Path) -> BaseRecord:
    """The entry of a run in the config.json of one that is built on it or continues it."""
    config = model.config
    return BaseRecord(
        path=str(path),
        system=config.system,
        size=config.size,
        system_config=config.system_config,
        corpus=config.corpus,
        base=config.base,
        encoder=config.encoder,
        continued_from=config.continued_from,
        components=config.components,
        teacher=config.teacher,
        predecessor=config.predecessor,
        source_vocabulary=config.source_vocabulary,
        plugin=config.plugin,
        imported=None if config.imported is None else config.imported.source,
        finetuned=None if config.task is None else f"{config.task.name} on {config.task.data}",
        weights=hash_file(RunFolder(model.path).weights),
    )


def _is_required(card: Card, role: str) -> bool:
    """Whether the system can't be built without one: the parameter of `build` has no default."""
    if role not in card.needs:
        return False
    parameter = inspect.signature(system_module(card.name).build).parameters[role]
    return parameter.default is inspect.Parameter.empty
