"""Checkpoint family interface and registry: maps a Hugging Face model type to our settings."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from torch import Tensor

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.plugins import HF_FAMILIES, Plugin, load_plugins, plugins
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.checkpoint_files import read_weights
from lmlab.interop.hf.weight_mapping import (
    ConfigField,
    NameTable,
    ResizeRows,
    WeightPair,
    to_json_value,
    to_set_value,
)
from lmlab.training.config import apply_settings


def families() -> dict[str, CheckpointFamily]:
    """All families by model type: lmlab's own and those of plug-ins."""
    return {**_own_families(), **_plugin_families(plugins(HF_FAMILIES))}


@cache
def _plugin_families(entries: tuple[Plugin, ...]) -> dict[str, CheckpointFamily]:
    """The families of plug-ins, whose entry points are named by the model type."""

    def checked(plugin: Plugin, module: Any) -> CheckpointFamily:
        family = getattr(module, "FAMILY", module)
        if not isinstance(family, CheckpointFamily) or family.model_type != plugin.name:
            raise plugin.error(
                f"{plugin.target} must declare FAMILY, a CheckpointFamily with the model_type "
                f"{plugin.name!r}"
            )
        return family

    return load_plugins("family of checkpoints", entries, _own_families(), checked)


@cache
def _own_families() -> dict[str, CheckpointFamily]:
    folder = Path(__file__).parent / "families"
    names = sorted(module.name for module in iter_modules([str(folder)]) if module.name[0] != "_")
    by_name = {name: import_module(f"lmlab.interop.hf.families.{name}").FAMILY for name in names}
    assert all(name == family.model_type for name, family in by_name.items())
    return by_name


def family_of_checkpoint(model_type: object, requested: str | None) -> CheckpointFamily:
    """The family of a config.json's model_type; must be the requested one, if any."""
    if requested is not None and requested not in families():
        raise unknown_name("family of checkpoints", requested, families())
    if not isinstance(model_type, str) or model_type not in families():
        raise UserError(
            f"the checkpoint's model_type must be one of {', '.join(families())}, got "
            f"{model_type!r}."
        )
    if requested is not None and requested != model_type:
        raise UserError(f"expected a checkpoint of {requested}, got one of {model_type}.")
    return families()[model_type]


def family_of_system(
    name: str, settings: Mapping[str, Any], *, model_type: object = None
) -> CheckpointFamily:
    """The family that a system with these settings is exported as.

    Of several that can express them, the one of `model_type` (that of an imported checkpoint), else
    the first. If none can, the first one's error says why.
    """
    own = [family for family in families().values() if name in family.systems]
    if not own:
        exportable = sorted({system for family in families().values() for system in family.systems})
        raise UserError(
            f"{name} can't be stored in the Hub's format; systems that can: "
            f"{', '.join(exportable)}."
        )
    able = [family for family in own if family.inexpressible_setting(settings) is None]
    same = [family for family in able if family.model_type == model_type]
    return (same or able or own)[0]


SAMPLED_LOSS_SETTINGS = frozenset({"noise", "noise_samples", "noise_shared", "log_z"})
"""Settings of noise-contrastive estimation and other sampled losses."""
LMLAB_CONFIG_KEY = "lmlab"
"""Key in config.json of our settings that it has no entry for; transformers preserves it unused."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """What a name table depends on."""

    settings: Mapping[str, Any]
    """Our settings."""
    vocabulary: Vocabulary
    """The tokenizer's vocabulary."""
    rows: int
    """Number of token embeddings in the checkpoint."""
    extra: int = 0
    """Token embeddings of ours beyond the tokenizer's: a system's own special tokens."""
    swapped_ids: tuple[int, int] | None = None
    """Two tokens whose ids are swapped in the checkpoint."""

    @property
    def layers(self) -> int:
        return int(self.settings["layers"])

    @property
    def token_row_transform(self) -> ResizeRows:
        """Mapping of tensors with one row per token."""
        size = self.vocabulary.size + self.extra
        return ResizeRows(ours=size, theirs=self.rows, swapped_ids=self.swapped_ids)


class CheckpointFamily(ABC):
    """One model type of the Hub; each file of `families/` defines one and is named after it."""

    model_type: ClassVar[str]
    systems: ClassVar[tuple[str, ...]]
    """Systems exported as this family; a checkpoint is imported as the first."""
    settings: ClassVar[tuple[ConfigField, ...]]
    derived_settings: ClassVar[frozenset[str]] = frozenset()
    """Further settings that `import_settings` and `export_config` translate."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Settings common to all checkpoints of the family, where not our default."""
    own_settings: ClassVar[frozenset[str]] = frozenset({"clip_distance", "buckets", "max_distance"})
    """Our settings without an entry in their config.json: they affect training, scoring, or parts
    that the family does not have. They are exported under `LMLAB_CONFIG_KEY`.
    """
    dropped_settings: ClassVar[frozenset[str]] = SAMPLED_LOSS_SETTINGS
    """Our settings that are not exported: how a softmax was trained is not part of a checkpoint."""
    required: ClassVar[Mapping[str, Any]] = {}
    """Their settings that we support at one value only; absent means that value."""
    prefix: ClassVar[str] = ""
    """Prefix of all weight names except the heads'; base models lack it."""
    heads: ClassVar[tuple[str, ...]] = ("cls.", "lm_head.", "lm_loss.", "predictions.")
    """Prefixes of weight names that never have `prefix`."""
    ignored_weights: ClassVar[tuple[str, ...]] = (r"(^|\.)position_ids$",)
    """Patterns of irrelevant weights: masks and version numbers stored by old releases."""
    optional_weights: ClassVar[Mapping[str, str]] = {}
    """Pattern of their weights that we do not use → description for a note."""
    missing_allowed: ClassVar[Mapping[str, str]] = {}
    """Pattern of weights that may be missing, all together → description for a note."""
    data_buffers: ClassVar[frozenset[str]] = frozenset()
    """Our buffers that no checkpoint has: training statistics of the data."""
    missing_weights_hint: ClassVar[str] = (
        "use a model saved whole, with its language modelling head"
    )
    """What to do if weights are missing."""
    encoder: ClassVar[CheckpointFamily | None] = None
    """The family of its encoders saved without a head, if lmlab supports them."""
    pad: ClassVar[int | None] = None
    """The required padding id, if hard-coded in transformers."""
    output_bias: ClassVar[str | None] = None
    """Name of their output bias over tokens, (…, V); None if the architecture has none."""
    predicts_tokens: ClassVar[bool] = True
    """Whether it has a softmax over tokens."""
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")
    """The model inputs that transformers' tokenizer returns."""

    # Defined by each family.

    @abstractmethod
    def pairs(self, shape: CheckpointSpec) -> Iterable[WeightPair]:
        """Pairs of our weights and theirs."""

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        """Our further names of tied weights."""
        return {"emission.weight": "backbone.embedding.tokens.weight"}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        """Their further names of tied weights."""
        return {}

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        """Weights that theirs requires and ours lacks, with neutral values."""
        return {}

    def defaults(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        """Default values of weights that a checkpoint may lack."""
        return {}

    def check_ignored(self, shape: CheckpointSpec, weights: Mapping[str, Tensor]) -> None:
        """Raise a UserError if ignored weights are not what they are assumed to be."""
        return

    @abstractmethod
    def architecture(self, settings: Mapping[str, Any]) -> str:
        """The transformers class that has all these weights."""

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        """Further entries of their config.json."""
        return {}

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Further settings, which depend on several of theirs or on which weights exist."""
        return {}

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Raise a UserError if a tokenizer lacks what the family needs."""
        if vocabulary.start is None and vocabulary.end is None:
            raise UserError(
                "the tokenizer has no start or end token that lmlab recognises (<s>, [CLS], "
                "<bos>, </s>, [SEP], <eos>, <|endoftext|>), and a text needs one."
            )

    def extra(self, settings: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[str, ...]:
        """Spellings of the special tokens that our system appends to the tokenizer's."""
        return ()

    def input_template(self, settings: Mapping[str, Any]) -> str:
        """Input template of their network, made of start, text and end."""
        return "start text end"

    def family_for_weights(self, names: Iterable[str]) -> CheckpointFamily:
        """The family of a checkpoint with these weights: this one, or its headless encoder's."""
        return self

    def import_notes(self, config: Mapping[str, Any]) -> list[str]:
        """Notes on what a checkpoint specifies and our runs do not do."""
        return []

    def read_checkpoint_parts(
        self, folder: Path, config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Read config and weights of a checkpoint, if it is not simply the folder's content."""
        return config, read_weights(folder)

    def parts(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor]
    ) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]]:
        """Subfolder of the checkpoint → the config and the weights written there."""
        return {"": (config, weights)}

    # Derived from the definitions above.

    def our_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """All our settings of a checkpoint."""
        for key, value in self.required.items():
            if config.get(key) not in (None, value):
                raise UserError(
                    f"{key} in the checkpoint's config.json must be {value!r} for "
                    f"{self.model_type}, got {config[key]!r}."
                )
        translated = {entry.ours: entry.read_from(config) for entry in self.settings}
        try:
            values = {**self.fixed, **translated, **self.import_settings(config, names, tokenizer)}
            settings = system_module(self.systems[0]).Config(**values)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(
                f"the checkpoint's config.json is invalid for {self.model_type} ({error})."
            ) from error
        return asdict(apply_settings(settings, self._lmlab_settings(config)))

    def their_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        """Their config.json for our settings, or a UserError if it can't express one."""
        self._check_expressible(shape.settings)
        entries = {entry.theirs: entry.write(shape.settings[entry.ours]) for entry in self.settings}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(shape.settings)],
            **self.required,
            **entries,
            "vocab_size": shape.rows,
            **special_token_ids(shape),
            "dtype": "float32",
            **self.export_config(shape),
        }

    def unexpressed_settings(
        self,
        settings: Mapping[str, Any],
        config: Mapping[str, Any],
        names: frozenset[str],
        tokenizer: Tokenizer,
    ) -> dict[str, Any]:
        """Our settings that would not survive a round trip through config.json, as --set values."""
        restored = self.our_settings(config, names, tokenizer)
        return {
            name: to_set_value(settings[name])
            for name in sorted(self.own_settings & restored.keys() & settings.keys())
            if to_json_value(restored[name]) != to_json_value(settings[name])
        }

    def _lmlab_settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """The settings that our export stored in config.json; empty in other checkpoints."""
        stored = config.get(LMLAB_CONFIG_KEY, {})
        strings = isinstance(stored, dict) and all(isinstance(v, str) for v in stored.values())
        if not strings or not stored.keys() <= self.own_settings:
            raise UserError(
                f"{LMLAB_CONFIG_KEY} in the checkpoint's config.json must be an object of --set "
                f"settings, of {', '.join(sorted(self.own_settings))}, got {stored!r}; remove it."
            )
        return dict(stored)

    def expressible_settings(self) -> set[str]:
        """Our settings that their config.json can express."""
        return {entry.ours for entry in self.settings} | self.derived_settings

    def table(self, shape: CheckpointSpec) -> NameTable:
        """The name table of all weights."""
        return NameTable(
            tuple(self.pairs(shape)), self.our_tied_names(shape), self.their_tied_names(shape)
        )

    def canonical_names(self, names: Iterable[str]) -> dict[str, str]:
        """Checkpoint names as spelled in the table: old names and missing prefixes fixed."""
        spelled = {name: _current_name(name) for name in names}
        if not self.prefix or any(name.startswith(self.prefix) for name in spelled.values()):
            return spelled
        return {
            name: new if new.startswith(self.heads) else f"{self.prefix}{new}"
            for name, new in spelled.items()
        }

    def is_ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored_weights)

    def inexpressible_setting(self, settings: Mapping[str, Any]) -> str | None:
        """The first of our settings that their config.json can't express at its value, if any."""
        neutral = self._neutral_settings()
        ignored = self.expressible_settings() | self.own_settings | self.dropped_settings
        for name, value in settings.items():
            if name not in ignored and to_json_value(value) != to_json_value(neutral[name]):
                return name
        return None

    def _neutral_settings(self) -> dict[str, Any]:
        """The values that our settings have in every checkpoint of the family, if inexpressible."""
        return asdict(system_module(self.systems[0]).Config()) | dict(self.fixed)

    def _check_expressible(self, settings: Mapping[str, Any]) -> None:
        name = self.inexpressible_setting(settings)
        if name is not None:
            value, usual = settings[name], self._neutral_settings()[name]
            raise UserError(
                f"the run has {name}={to_json_value(value)!r}, which a {self.model_type} "
                f"checkpoint can't express (it always means {to_json_value(usual)!r}); it can't be "
                f"exported."
            )


def special_token_ids(shape: CheckpointSpec) -> dict[str, int | None]:
    """The ids of the special tokens, by transformers' names."""
    vocabulary = shape.vocabulary
    pad = vocabulary.pad if vocabulary.pad < shape.rows else None
    start = vocabulary.end if vocabulary.start is None else vocabulary.start
    return {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": vocabulary.end}


def layer_names(shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[tuple[str, str]]:
    """Each layer's name on both sides."""
    for layer in range(shape.layers):
        yield f"{key}.{layer}", f"{hf_key}.{layer}"


def _current_name(name: str) -> str:
    """Early checkpoints call a norm's weight gamma and its bias beta."""
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
