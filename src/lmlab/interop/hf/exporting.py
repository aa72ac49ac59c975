"""Runs as folders in the Hub's format, which transformers loads and which give the same logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmlab.interop.hf.catalogue import family_of_system
from lmlab.interop.hf.family import Family, Shape
from lmlab.interop.hf.folders import WEIGHTS, appearing_whole, write_weights
from lmlab.interop.hf.tokenizer_files import has_pad, write_tokenizer
from lmlab.training.files import write_json
from lmlab.training.runs import Model, load_run

DROPPED = ("tokenizer_class", "auto_map", "tokenizer_file", "vocab_file", "name_or_path")
"""Entries of another's tokenizer_config.json that do not hold in a new folder."""
OUTDATED = ("auto_map", "torch_dtype", "quantization_config", "_name_or_path")
"""Entries of another's config.json that do not hold of float32 weights in a new folder."""


def export_hf(run: str | Path, folder: str | Path) -> Family:
    """Write a run as config.json, model.safetensors and a tokeniser; the family it is written as.

    A setting of ours that theirs can't express is a UserError, and nothing is written.
    """
    model = load_run(run)
    family = family_of_system(model.card.name)
    shape = shape_of(model, family)
    config = family.their_config(shape)
    weights = family.table(shape).to_theirs(model.system.state_dict())
    imported: Mapping[str, Any] = model.config.get("imported", {})
    # What came with an imported checkpoint and says nothing about its shape goes out with it again.
    before = {k: v for k, v in imported.get("config", {}).items() if k not in OUTDATED}
    with appearing_whole(Path(folder)) as partial:
        write_json(partial / "config.json", {**before, **config})
        write_weights(partial / WEIGHTS, weights)
        write_tokenizer(
            partial,
            model.tokenizer,
            extra=family.extra(shape.settings, shape.vocabulary),
            template="" if imported else family.template,
            told=_tokenizer_config(family, shape, imported.get("tokenizer_config")),
        )
    return family


def shape_of(model: Model, family: Family) -> Shape:
    """What the name table of a run depends on."""
    settings, vocabulary = model.config["system_config"], model.tokenizer.vocabulary
    extra = len(family.extra(settings, vocabulary))
    tokens = vocabulary.size - (0 if has_pad(model.tokenizer) else 1)
    return Shape(settings=settings, vocabulary=vocabulary, rows=tokens + extra, extra=extra)


def _tokenizer_config(
    family: Family, shape: Shape, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    longest = shape.settings.get("length")
    ours = {
        "model_input_names": list(family.inputs),
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": longest} if longest else {}),
    }
    return {**ours, **{k: v for k, v in (before or {}).items() if k not in DROPPED}}
