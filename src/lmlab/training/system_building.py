"""Building untrained models: from a config.json, at size tiny, or by name with settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from lmlab.core.errors import UserError
from lmlab.core.memory_budget import memory_budget
from lmlab.core.recorded_systems import recorded_system
from lmlab.core.registry import find_system, system_module
from lmlab.core.system import System
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.sampled_losses import SampledLossConfig, apply_sampled_loss
from lmlab.training.config import apply_settings
from lmlab.training.external_memory import ExternalMemory, tiny_external_memory
from lmlab.training.run_config import RunConfig
from lmlab.training.run_records import BaseRecord


def build_from_config(
    config: RunConfig | BaseRecord,
    vocabulary: Vocabulary,
    memories: ExternalMemory | None = None,
    tokenizer: TokenizerProtocol | None = None,
) -> System:
    """Build the system of a run or of a base, with its own base where it has one; untrained.

    The texts of its memories are encoded by the tokenizer.
    """
    if isinstance(config, BaseRecord):  # a run's own system is checked as its config.json is read
        recorded_system(config.system, config.plugin, config.path)
    system = build_system(
        config.system,
        config.system_config,
        vocabulary,
        seed=0,
        base=None if config.base is None else build_from_config(config.base, vocabulary),
        source=config.source_vocabulary,
        memories=memories,
        components=[build_from_config(part, vocabulary) for part in config.components],
    )
    if tokenizer is not None and memories is not None and memories.given():
        system.setup_tokenizer(tokenizer)
    return system


def build_tiny(name: str, vocabulary: Vocabulary, *, seed: int = 0) -> System:
    """Build a system at size tiny, on the base or of the components of its card; untrained."""
    card, config = find_system(name), asdict(system_module(name).SIZES["tiny"])
    base = build_tiny(card.base, vocabulary, seed=seed) if card.base else None
    components = [build_tiny(part, vocabulary, seed=seed) for part in card.components]
    memories = tiny_external_memory(card)
    return build_system(
        name, config, vocabulary, seed=seed, base=base, memories=memories, components=components
    )


def build_system(
    name: str,
    config: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    seed: int,
    base: System | None = None,
    encoder: System | None = None,
    source: Vocabulary | None = None,
    memories: ExternalMemory | None = None,
    components: Sequence[System] = (),
) -> System:
    """Build a system of the zoo; `seed` decides its initial weights, torch's own is unchanged.

    `base` is a trained system to build on, where one is needed; it is not changed. `encoder` is one
    whose weights initialise the system's own encoder; they are copied. `source` is the source
    vocabulary, where it differs; `memories` the external memory, where it is used. `components`
    are the trained systems that a mixture is made of; they are copied.
    """
    module = system_module(name)
    if source is not None and "source" not in inspect.signature(module.build).parameters:
        raise UserError(
            f"--source-tokenizer does not apply to {name}, which has one vocabulary for "
            "sources and targets; remove it."
        )
    try:
        settings = apply_settings(module.Config(), as_tuples(config))
    except TypeError as error:
        raise UserError(f"these settings are not those of {name} ({error}).") from error
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        optional: dict[str, Any] = {"base": base, "encoder": encoder, "source": source}
        arguments: dict[str, Any] = {
            key: value for key, value in optional.items() if value is not None
        }
        arguments |= {} if memories is None else memories.given()
        arguments |= {"components": components} if components else {}
        with memory_budget(f"{name} with these settings"):
            system: System = module.build(settings, vocabulary, **arguments)
    if isinstance(settings, SampledLossConfig):
        apply_sampled_loss(settings, system)
    return system


def as_tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with tuples for lists: JSON has no tuples, and configs no lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in config.items()}
