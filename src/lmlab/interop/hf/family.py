"""A family of checkpoints: its settings and weights in our words and in theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.checkpoint_files import read_weights
from lmlab.interop.hf.config_fields import (
    ConfigField,
    to_json_value,
    to_set_value,
)
from lmlab.interop.hf.weight_mapping import (
    NameTable,
    ResizeRows,
    WeightPair,
)
from lmlab.training.config import apply_settings

SAMPLED_LOSS_SETTINGS = frozenset({"noise", "noise_samples", "noise_shared", "log_z"})
"""Settings of noise-contrastive estimation and its like."""
LMLAB_CONFIG_KEY = "lmlab"
"""The entry of config.json under which settings go out that it has no word for; transformers keeps
it, and makes nothing of it."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """What a name table depends on."""

    settings: Mapping[str, Any]
    """Ours."""
    vocabulary: Vocabulary
    """The tokeniser's."""
    rows: int
    """Token vectors that the checkpoint has."""
    extra: int = 0
    """Token vectors of ours beyond the tokeniser's: a system's own symbols."""
    swapped_ids: tuple[int, int] | None = None
    """Two tokens whose ids are exchanged in the checkpoint."""

    @property
    def layers(self) -> int:
        return int(self.settings["layers"])

    @property
    def token_row_transform(self) -> ResizeRows:
        """The way of whatever has a row for each token."""
        size = self.vocabulary.size + self.extra
        return ResizeRows(ours=size, theirs=self.rows, swapped_ids=self.swapped_ids)


class CheckpointFamily:
    """One model type of the Hub. A file of `families/` has one, and its name is the model type."""

    model_type: ClassVar[str]
    systems: ClassVar[tuple[str, ...]]
    """Systems that are written as this family; the first is what a checkpoint becomes."""
    settings: ClassVar[tuple[ConfigField, ...]]
    derived_settings: ClassVar[frozenset[str]] = frozenset()
    """Further settings of ours that `import_settings` and `export_config` translate."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Settings of ours that all checkpoints of the family have, where not our own default."""
    own_settings: ClassVar[frozenset[str]] = frozenset({"clip_distance", "buckets", "max_distance"})
    """Settings of ours that their config.json has no word for: they concern training, what a score
    asks, or parts that the family does not have. They go out under a word of ours,
    `LMLAB_CONFIG_KEY`."""
    dropped_settings: ClassVar[frozenset[str]] = SAMPLED_LOSS_SETTINGS
    """Settings of ours that do not go out: what trained a softmax is no part of a checkpoint."""
    required: ClassVar[Mapping[str, Any]] = {}
    """Settings of theirs that we know at one value only; silence means that value."""
    prefix: ClassVar[str] = ""
    """What stands before the names of all weights but the heads'; bare models lack it."""
    heads: ClassVar[tuple[str, ...]] = ("cls.", "lm_head.", "lm_loss.", "predictions.")
    """How the names of weights begin that never have the prefix."""
    ignored_weights: ClassVar[tuple[str, ...]] = (r"(^|\.)position_ids$",)
    """Patterns of their weights that say nothing: masks and numbers kept by old versions."""
    optional_weights: ClassVar[Mapping[str, str]] = {}
    """Pattern of their weights that ours has no place for → what they are, for a note."""
    missing_allowed: ClassVar[Mapping[str, str]] = {}
    """Pattern of weights that may be missing, all together → what they are, for a note."""
    data_buffers: ClassVar[frozenset[str]] = frozenset()
    """State of ours that is no weight, and no checkpoint has: what a training keeps of its data."""
    missing_weights_hint: ClassVar[str] = (
        "a model saved whole, with its language modelling head, is needed"
    )
    """What to do where weights are missing."""
    encoder: ClassVar[CheckpointFamily | None] = None
    """The family of its encoders that were saved without a head, where lmlab reads those."""
    pad: ClassVar[int | None] = None
    """The id that padding must have, where their code knows of one only."""
    output_bias: ClassVar[str | None] = None
    """Their bias of the softmax over tokens, (…, V); None where the architecture has none."""
    predicts_tokens: ClassVar[bool] = True
    """Whether it has a softmax over tokens."""
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")
    """What transformers' tokeniser gives its model."""

    # What a family tells.

    def pairs(self, shape: CheckpointSpec) -> Iterable[WeightPair]:
        """Our weights beside theirs."""
        raise TypeError(f"{type(self).__name__} does not define pairs")

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        """Our further names of weights that are shared."""
        return {"emission.weight": "backbone.embedding.tokens.weight"}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        """Theirs."""
        return {}

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        """Weights of theirs that ours has no need of, with values that say so."""
        return {}

    def defaults(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        """Weights of theirs that a checkpoint need not have, and what they are then."""
        return {}

    def check_ignored(self, shape: CheckpointSpec, weights: Mapping[str, Tensor]) -> None:
        """A UserError where weights that are left out are not what they are taken for."""

    def architecture(self, settings: Mapping[str, Any]) -> str:
        """The class of transformers that has all these weights."""
        raise TypeError(f"{type(self).__name__} does not define architecture")

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        """Further entries of their config.json."""
        return {}

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """Further settings of ours, which depend on several of theirs or on which weights exist."""
        return {}

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        """A UserError where a tokeniser lacks what the family needs."""
        if vocabulary.start is None and vocabulary.end is None:
            raise UserError(
                "the tokeniser has no start and no end symbol that lmlab knows (<s>, [CLS], <bos>, "
                "</s>, [SEP], <eos>, <|endoftext|>), so no text could begin."
            )

    def extra(self, settings: Mapping[str, Any], vocabulary: Vocabulary) -> tuple[str, ...]:
        """Spellings of the symbols that our system appends to the tokeniser's."""
        return ()

    def input_template(self, settings: Mapping[str, Any]) -> str:
        """What stands around a text that their network reads: of start, text and end."""
        return "start text end"

    def family_for_weights(self, names: Iterable[str]) -> CheckpointFamily:
        """The family of a checkpoint with these weights: itself, or that of encoders alone."""
        return self

    def import_notes(self, config: Mapping[str, Any]) -> list[str]:
        """Sentences on what a checkpoint asks for and a run of ours does not do."""
        return []

    def read_checkpoint_parts(
        self, folder: Path, config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """The config and the weights of a checkpoint, where it is not simply what a folder has."""
        return config, read_weights(folder)

    def parts(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor]
    ) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]]:
        """Folder within the checkpoint's → the config and the weights that are written there."""
        return {"": (config, weights)}

    # What follows from it.

    def our_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        """All settings of ours that a checkpoint means."""
        for key, value in self.required.items():
            if config.get(key) not in (None, value):
                raise UserError(
                    f"the checkpoint's config.json sets {key} to {config[key]!r}, and lmlab knows "
                    f"{self.model_type} only with {value!r}."
                )
        told = {each.ours: each.read_from(config) for each in self.settings}
        try:
            found = {**self.fixed, **told, **self.import_settings(config, names, tokenizer)}
            settings = system_module(self.systems[0]).Config(**found)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(
                f"the checkpoint's config.json makes no sense for {self.model_type} ({error})."
            ) from error
        return asdict(apply_settings(settings, self._lmlab_settings(config)))

    def their_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        """Their config.json of our settings, or a UserError where it can't say one of them."""
        self._check_expressible(shape.settings)
        told = {each.theirs: each.write(shape.settings[each.ours]) for each in self.settings}
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture(shape.settings)],
            **self.required,
            **told,
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
        """Our settings that config.json, read again, would not give, each as --set takes it."""
        read = self.our_settings(config, names, tokenizer)
        return {
            name: to_set_value(settings[name])
            for name in sorted(self.own_settings & read.keys() & settings.keys())
            if to_json_value(read[name]) != to_json_value(settings[name])
        }

    def _lmlab_settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """What an export of ours wrote beside their settings; nothing in other checkpoints."""
        told = config.get(LMLAB_CONFIG_KEY, {})
        strings = isinstance(told, dict) and all(isinstance(each, str) for each in told.values())
        if not strings or not told.keys() <= self.own_settings:
            raise UserError(
                f"the checkpoint's config.json has {LMLAB_CONFIG_KEY}={told!r}, and an object "
                f"of settings "
                f"as --set takes them was expected, of {', '.join(sorted(self.own_settings))}; "
                f"remove it."
            )
        return dict(told)

    def expressible_settings(self) -> set[str]:
        """Settings of ours that their config.json tells."""
        return {each.ours for each in self.settings} | self.derived_settings

    def table(self, shape: CheckpointSpec) -> NameTable:
        """The names of all weights, of both sides."""
        return NameTable(
            tuple(self.pairs(shape)), self.our_tied_names(shape), self.their_tied_names(shape)
        )

    def canonical_names(self, names: Iterable[str]) -> dict[str, str]:
        """The names of a checkpoint as the table spells them: old words and bare models mended."""
        spelled = {name: _modern(name) for name in names}
        if not self.prefix or any(name.startswith(self.prefix) for name in spelled.values()):
            return spelled
        return {
            name: new if new.startswith(self.heads) else f"{self.prefix}{new}"
            for name, new in spelled.items()
        }

    def is_ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.ignored_weights)

    def _check_expressible(self, settings: Mapping[str, Any]) -> None:
        neutral = asdict(system_module(self.systems[0]).Config()) | dict(self.fixed)
        for name, value in settings.items():
            if name in self.expressible_settings() | self.own_settings | self.dropped_settings:
                continue
            usual = neutral[name]
            if to_json_value(value) != to_json_value(usual):
                raise UserError(
                    f"the run has {name}={to_json_value(value)!r}, which a {self.model_type} "
                    f"checkpoint "
                    f"can't express (it always means {to_json_value(usual)!r}); it can't be "
                    f"exported."
                )


def special_token_ids(shape: CheckpointSpec) -> dict[str, int | None]:
    """The ids of the symbols, under their names."""
    vocabulary = shape.vocabulary
    pad = vocabulary.pad if vocabulary.pad < shape.rows else None
    start = vocabulary.end if vocabulary.start is None else vocabulary.start
    return {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": vocabulary.end}


def layer_names(shape: CheckpointSpec, ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    """Each layer's name on both sides."""
    for layer in range(shape.layers):
        yield f"{ours}.{layer}", f"{theirs}.{layer}"


def _modern(name: str) -> str:
    """The first checkpoints spell a norm's weight gamma and its bias beta."""
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name))
