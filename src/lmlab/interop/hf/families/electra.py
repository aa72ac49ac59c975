"""Hugging Face ELECTRA (Clark et al. 2020): generator and discriminator, two checkpoints.

The folder is the discriminator's (ElectraForPreTraining), its subfolder `generator` the generator's
(ElectraForMaskedLM). If one is missing, or the folder is the generator's own, `networks` records
which one the run has, and what needs the other is refused. They share their embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lmlab.core.registry import system_module
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.bert_like import (
    ENCODER_FIXED,
    ENCODER_REQUIRED,
    ENCODER_SETTINGS,
    LENGTH,
    MASKED_LM_OWN_SETTINGS,
    SEGMENTS,
    MaskedLMFamily,
    embedding_pairs,
    encoder_layer_pairs,
    segment_filler,
    with_defaults,
)
from lmlab.interop.hf.checkpoint_files import read_config, read_weights
from lmlab.interop.hf.family import CheckpointSpec
from lmlab.interop.hf.weight_mapping import (
    WeightPair,
    linear_pairs,
    read_whole_number,
    resolve_settings,
    weight_pair,
)

GENERATOR = "generator"
"""The subfolder, and the prefix of the generator's weights while both are in one table."""
GENERATOR_SIZES = ("width", "layers", "heads", "ffn_width")
"""Settings that the generator has separately, with the prefix `generator_`."""
DEFAULTS = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
GENERATOR_HEAD = "generator_predictions."
NETWORKS_KEY = "networks"
"""Our setting of that name, while one config covers both folders; exported in neither."""
DISCRIMINATOR_WEIGHTS = r"^(electra\.(encoder|embeddings_project)|discriminator_predictions)\."
GENERATOR_WEIGHTS = r"^generator/(electra\.(encoder|embeddings_project)|generator_)"


class Electra(MaskedLMFamily):
    model_type = "electra"
    systems = ("electra",)
    settings = (*with_defaults(ENCODER_SETTINGS, DEFAULTS), LENGTH, SEGMENTS)
    derived_settings = frozenset(
        {"embedding_width", "networks", *(f"generator_{name}" for name in GENERATOR_SIZES)}
    )
    # The generator's head uses gelu whatever the layers use; ours are the same.
    fixed = {**ENCODER_FIXED, "activation": "gelu"}
    required = {**ENCODER_REQUIRED, "hidden_act": "gelu"}
    own_settings = MASKED_LM_OWN_SETTINGS | {"discriminator_weight", "detected"}
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    prefix = "electra."
    output_bias = f"{GENERATOR}/generator_lm_head.bias"
    heads = ("discriminator_predictions.", GENERATOR_HEAD, "generator_lm_head.", f"{GENERATOR}/")
    missing_allowed = {
        DISCRIMINATOR_WEIGHTS: "detector, so the run neither detects nor encodes",
        GENERATOR_WEIGHTS: "generator, so the run neither scores nor fills",
    }

    def pairs(self, shape: CheckpointSpec) -> Iterator[WeightPair]:
        yield from embedding_pairs(shape, "backbone.embedding", "electra.embeddings")
        yield from _network(shape, "backbone", "electra")
        yield from linear_pairs("emission.dense", "discriminator_predictions.dense")
        yield from linear_pairs("emission.score", "discriminator_predictions.dense_prediction")
        generator, key, hf_key = (generator_shape(shape), "objective.generator", f"{GENERATOR}/")
        yield from _network(generator, f"{key}.backbone", f"{hf_key}electra")
        yield from linear_pairs(f"{key}.emission.transform.dense", f"{hf_key}{GENERATOR_HEAD}dense")
        yield from linear_pairs(
            f"{key}.emission.transform.norm", f"{hf_key}{GENERATOR_HEAD}LayerNorm"
        )
        bias = f"{hf_key}generator_lm_head.bias"
        yield weight_pair(f"{key}.emission.bias", bias, shape.token_row_transform)

    def our_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        shared = [pair.ours for pair in embedding_pairs(shape, "backbone.embedding", "")]
        copies = {f"objective.generator.{name}": name for name in shared}
        tokens = "backbone.embedding.tokens.weight"
        return {**copies, "objective.generator.emission.weight": tokens}

    def their_tied_names(self, shape: CheckpointSpec) -> Mapping[str, str]:
        base = "electra.embeddings"
        shared = [name for pair in embedding_pairs(shape, "", base) for name in pair.theirs]
        copies = {f"{GENERATOR}/{name}": name for name in shared}
        return {**copies, f"{GENERATOR}/generator_lm_head.weight": f"{base}.word_embeddings.weight"}

    def filler_weights(self, shape: CheckpointSpec) -> Mapping[str, Tensor]:
        return segment_filler(shape, "electra.embeddings")

    def architecture(self, settings: Mapping[str, Any]) -> str:
        return "ElectraForPreTraining"

    def import_settings(
        self, config: Mapping[str, Any], names: frozenset[str], tokenizer: Tokenizer
    ) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "embedding_width": read_whole_number(config, "embedding_size", 128),
            "networks": _networks(names),
        }
        small = config.get(GENERATOR)
        if small is not None:
            sizes = {entry.ours: entry.read_from(small) for entry in self.settings}
            settings |= {f"generator_{name}": sizes[name] for name in GENERATOR_SIZES}
        return settings

    def export_config(self, shape: CheckpointSpec) -> dict[str, Any]:
        settings, small = shape.settings, generator_shape(shape).settings
        sizes = {
            entry.theirs: small[entry.ours]
            for entry in self.settings
            if entry.ours in GENERATOR_SIZES
        }
        return {
            NETWORKS_KEY: settings["networks"],
            "embedding_size": settings["embedding_width"] or settings["width"],
            GENERATOR: {**sizes, "architectures": ["ElectraForMaskedLM"]},
        }

    def read_checkpoint_parts(
        self, folder: Path, config: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        weights = read_weights(folder)
        config = {name: value for name, value in config.items() if name != GENERATOR}
        if any(name.startswith(GENERATOR_HEAD) for name in weights):
            return {**config, GENERATOR: config}, self._generator(weights)
        generator_folder = folder / GENERATOR
        if not generator_folder.is_dir():
            return config, weights
        both = self._generator(read_weights(generator_folder)) | weights
        return {**config, GENERATOR: read_config(generator_folder)}, both

    def _generator(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The generator's weights, with a prefix that separates them from the discriminator's."""
        return {
            f"{GENERATOR}/{new}": weights[name]
            for name, new in self.canonical_names(weights).items()
        }

    def parts(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor]
    ) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Tensor]]]:
        main = {n: value for n, value in config.items() if n not in (GENERATOR, NETWORKS_KEY)}
        large = {name: value for name, value in weights.items() if GENERATOR not in name}
        shared = {n: value for n, value in large.items() if n.startswith("electra.embeddings.")}
        generator_weights = {
            n.removeprefix(f"{GENERATOR}/"): weights[n] for n in weights if n not in large
        }
        generator = ({**main, **config[GENERATOR]}, {**shared, **generator_weights})
        # A network without weights of its own is not exported.
        if config[NETWORKS_KEY] == GENERATOR:
            return {"": generator}
        return {"": (main, large)} | (
            {} if config[NETWORKS_KEY] == "detector" else {GENERATOR: generator}
        )


def _networks(names: frozenset[str]) -> str:
    """Which networks have weights among these names, as spelled in the table."""
    has = [
        any(re.search(pattern, name) for name in names)
        for pattern in (DISCRIMINATOR_WEIGHTS, GENERATOR_WEIGHTS)
    ]
    return {(True, False): "detector", (False, True): GENERATOR}.get((has[0], has[1]), "both")


def _network(shape: CheckpointSpec, key: str, hf_key: str) -> Iterator[WeightPair]:
    """The layers, and the embedding projection before them if there is one."""
    width = shape.settings["width"]
    if (shape.settings["embedding_width"] or width) != width:
        yield from linear_pairs(f"{key}.embedding.projection", f"{hf_key}.embeddings_project")
    yield from encoder_layer_pairs(shape, f"{key}.stack.blocks", f"{hf_key}.encoder.layer")


def generator_shape(shape: CheckpointSpec) -> CheckpointSpec:
    """The specification of the generator, which has its own sizes."""
    config = system_module(Electra.systems[0]).Config(**shape.settings)
    return replace(shape, settings=resolve_settings(asdict(config.generator)))


FAMILY = Electra()
