"""Continued training (`--base RUN` of the same system): its weights and tokenizer on other text.

What decides the scores is taken over: settings of the system, size, tokenizer, weights, documents
and knowledge base. What decides how it is trained (budget, schedule, optimiser, batches) is new,
and the optimiser's state is empty. Statistics of the training text (noise distributions,
references) are those of the new one. The new run records the old one, and what that continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.training.base_models import BaseModel, base_record, check_same_weights
from lmlab.training.config import TOKENIZER_SETTINGS
from lmlab.training.external_memory import ExternalMemory, load_external_memory
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, load_run
from lmlab.training.run_records import BaseRecord
from lmlab.training.system_building import build_from_config

MANY_UNKNOWN = 0.05
"""Share of unknown tokens in the new text from which a warning is given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ContinuedRun:
    """A run of the same system, whose training continues on other text."""

    description: BaseRecord
    """Its entry in config.json."""
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    """The source tokenizer, where it is a different one."""
    base: BaseModel | None
    """The model that it is built on itself, as residual-ebm on a language model."""
    memories: ExternalMemory
    memory_specs: Mapping[str, str | None]
    """The sources of the memories, as it records them."""
    vocabulary: Vocabulary
    weights: Mapping[str, Tensor] | None
    """None where a checkpoint of the new run has its own."""

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """A UserError where the corpus layout differs from that of its own text."""
        if self.vocabulary != vocabulary:
            raise UserError(
                f"the base {self.description.path} was trained on text with another layout "
                "(contiguous or in sentences) than this corpus; give a corpus like its own."
            )

    def load_weights(self, system: System) -> None:
        """Copy all weights and buffers; a UserError where the settings given do not fit them."""
        if self.weights is None:
            return
        try:
            system.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = str(error).split("\n\t")[-1].strip()
            raise UserError(
                f"these settings do not fit the weights of the base {self.description.path} "
                f"({reason}); remove those of the system from --set."
            ) from error

    def restore_parameters(self, system: System) -> None:
        """Copy the parameters again, which a system may have initialised from the new text."""
        for name, parameter in system.named_parameters():
            if self.weights is not None and name in self.weights:
                parameter.data.copy_(self.weights[name])

    def sentence(self) -> str:
        """What is continued, for the first line of the output."""
        return (
            f"--base: continues the training of {self.description.path} "
            f"({self.description.history()})"
        )

    def unknown_warning(self, tokens: NDArray[np.generic]) -> str:
        """A warning where its tokenizer knows little of the new text; empty otherwise."""
        unknown = self.vocabulary.unknown
        share = 0.0 if unknown is None or not len(tokens) else float(np.mean(tokens == unknown))
        if share < MANY_UNKNOWN:
            return ""
        return (
            f"warning: {share:.0%} of the training tokens are unknown to the tokenizer of "
            f"{self.description.path}, which can't be extended"
        )


def resolve_continued(
    card: Card, path: str | Path | None, resumed: RunConfig | None, run: RunFolder
) -> ContinuedRun | None:
    """The run of the same system that `--base` names, or that the resumed run continues; or None.

    A run of another system is none where the card has bases of other systems, else a UserError.
    """
    if resumed is not None:
        return _resumed(path, resumed, run)
    if path is None or card.initialised_by_own_runs:
        return None
    config = RunFolder(Path(path)).read_config()
    if config.system != card.name:
        if "base" in card.needs:
            return None
        raise UserError(
            f"--base {path} is a run of {config.system}, and {card.name} continues only runs of "
            f"its own; train {config.system} with it, or remove it."
        )
    _check_fitting(card, config)
    return _load(path)


def check_continued(
    continued: ContinuedRun | None, settings: Mapping[str, object], **options: object
) -> None:
    """A UserError for an option or setting that a continued training takes from its base."""
    if continued is None:
        return
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    given += [f"--set {name}" for name in TOKENIZER_SETTINGS if name in settings]
    if given:
        raise UserError(
            f"{given[0]} does not apply: what it decides is taken from the base "
            f"{continued.description.path}, whose training continues; remove it."
        )


def _resumed(path: str | Path | None, resumed: RunConfig, run: RunFolder) -> ContinuedRun | None:
    """That of a resumed run; its folder is not needed once there is a checkpoint."""
    description = resumed.continued_from
    if description is None:
        return None
    if path is None and run.load_checkpoint(lambda _: None) is not None:
        return ContinuedRun(
            description=description,
            tokenizer=Tokenizer.load(run.tokenizer),
            source_tokenizer=(
                Tokenizer.load(run.source_tokenizer) if run.source_tokenizer.exists() else None
            ),
            base=_own_base(resumed, Tokenizer.load(run.tokenizer)),
            memories=load_external_memory(resumed.memories, run.memory),
            memory_specs=_memory_specs(resumed),
            vocabulary=resumed.vocabulary,
            weights=None,
        )
    continued = _load(description.path if path is None else path)
    check_same_weights(continued.description, description, run, role="base")
    return continued


def _load(path: str | Path) -> ContinuedRun:
    model = load_run(path)
    return ContinuedRun(
        description=base_record(model, path),
        tokenizer=model.tokenizer,
        source_tokenizer=model.source_tokenizer,
        base=_own_base(model.config, model.tokenizer),
        memories=load_external_memory(model.config.memories, RunFolder(model.path).memory),
        memory_specs=_memory_specs(model.config),
        vocabulary=model.config.vocabulary,
        weights=model.system.state_dict(),
    )


def _memory_specs(config: RunConfig) -> dict[str, str | None]:
    return {name: memory.spec for name, memory in config.memories.items()}


def _own_base(config: RunConfig, tokenizer: Tokenizer) -> BaseModel | None:
    """The base of a run, untrained: its weights are among those of the run."""
    if config.base is None:
        return None
    system = build_from_config(config.base, config.vocabulary)
    return BaseModel(system=system, tokenizer=tokenizer, description=config.base)


def _check_fitting(card: Card, config: RunConfig) -> None:
    """A UserError for systems that are estimated from counts of the whole text at once."""
    if config.system_config.get("fitting", card.fitting) == "counting":
        raise UserError(
            f"{card.name} is estimated from the counts of one text, which a run does not keep, so "
            "it can't be trained further; train it anew on both texts, in one folder."
        )
