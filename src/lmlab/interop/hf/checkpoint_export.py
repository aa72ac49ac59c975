"""Export of runs as Hugging Face checkpoints that transformers loads with the same logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmlab.core.atomic_files import new_folder, write_json
from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.checkpoint_files import WEIGHTS_FILE, write_weights
from lmlab.interop.hf.family import (
    LMLAB_CONFIG_KEY,
    CheckpointFamily,
    CheckpointSpec,
    family_of_system,
)
from lmlab.interop.hf.tokenizer_files import has_pad, with_swapped_ids, write_tokenizer
from lmlab.interop.hf.weight_mapping import resolve_settings
from lmlab.training.run_folder import RunFolder, TrainedModel, load_run
from lmlab.training.run_records import ImportRecord

NEVER_PREDICTED_BIAS = -1e4
"""Output bias of padding, start and mask tokens: its exp is 0 in float32, and unlike -inf it stays
finite in losses and fits float16.
"""
DROPPED_TOKENIZER_FIELDS = (
    "tokenizer_class",
    "auto_map",
    "tokenizer_file",
    "vocab_file",
    "name_or_path",
)
"""Entries of an imported tokenizer_config.json that do not apply to the new folder."""
DROPPED_CONFIG_FIELDS = (
    "auto_map",
    "torch_dtype",
    "quantization_config",
    "_name_or_path",
    LMLAB_CONFIG_KEY,
)
"""Entries of an imported config.json that do not apply to float32 weights in a new folder."""


def export_hf(run: str | Path, folder: str | Path) -> CheckpointFamily:
    """Export a run as config.json, model.safetensors and tokenizer; returns the family.

    A setting that the network depends on and that config.json can't express is a UserError, and
    nothing is written; one that affects only training or scoring is stored under a key of ours.
    """
    model = load_run(run)
    imported = model.config.imported
    their_config: Mapping[str, Any] = {} if imported is None else imported.config
    family = family_of_system(
        model.card.name,
        resolve_settings(model.config.system_config),
        model_type=their_config.get("model_type"),
    )
    tokenizer, shape = exported_tokenizer(model, family)
    config = family.their_config(shape)
    # Training state of a sampled softmax (its noise distribution) is not exported.
    tensors = model.system.state_dict().items()
    table, state = (
        family.table(shape),
        {n: v for n, v in tensors if not n.startswith("sampled_loss.")},
    )
    assert table.our_names == state.keys(), f"not in the table: {table.our_names ^ state.keys()}"
    weights = {**table.to_theirs(state), **family.filler_weights(shape)}
    if imported is None:  # an imported checkpoint is exported unchanged
        weights |= _never_predicted(family, shape, weights)
    if rest := family.unexpressed_settings(shape.settings, config, frozenset(weights), tokenizer):
        config[LMLAB_CONFIG_KEY] = rest
    # Entries of an imported config.json that do not describe its shape are kept.
    before = {k: v for k, v in their_config.items() if k not in DROPPED_CONFIG_FIELDS}
    with new_folder(Path(folder)) as partial:
        for name, (part_config, part_weights) in family.parts(
            {**before, **config}, weights
        ).items():
            part = partial / name
            part.mkdir(exist_ok=True)
            write_json(part / "config.json", part_config)
            write_weights(part / WEIGHTS_FILE, part_weights)
            write_tokenizer(
                part,
                tokenizer,
                extra=family.extra(shape.settings, shape.vocabulary),
                template="" if imported is not None else family.input_template(shape.settings),
                settings=_tokenizer_config(family, shape, imported),
            )
    return family


def softmax_note(family: CheckpointFamily) -> str | None:
    """How a family's softmax differs from ours, in a sentence; None if they are equal."""
    if family.output_bias is not None or not family.predicts_tokens:
        return None
    return (
        f"{family.model_type} has no output bias, so transformers' softmax gives padding, start "
        "and mask tokens some probability, and lmlab's gives them none; exclude them from its "
        "softmax to get the same probabilities."
    )


def _never_predicted(
    family: CheckpointFamily, shape: CheckpointSpec, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Their output bias with `NEVER_PREDICTED_BIAS` at tokens that our model never predicts."""
    bias = None if family.output_bias is None else weights.get(family.output_bias)
    if bias is None:
        return {}
    assert family.output_bias is not None
    ids = [i for i in shape.vocabulary.unpredictable if i < bias.shape[-1]]
    return {
        family.output_bias: bias.index_fill(
            -1, torch.tensor(ids, device=bias.device), NEVER_PREDICTED_BIAS
        )
    }


def exported_tokenizer(
    model: TrainedModel, family: CheckpointFamily
) -> tuple[Tokenizer, CheckpointSpec]:
    """The exported tokenizer, and the specification for the name table.

    If their code hard-codes the padding id, our padding and the token of that id are swapped.
    """
    settings, tokenizer, exchange = (
        resolve_settings(model.config.system_config),
        model.tokenizer,
        None,
    )
    pad = tokenizer.vocabulary.pad
    if family.pad is not None and pad != family.pad:
        if model.config.imported is not None or not has_pad(tokenizer):
            raise UserError(
                f"padding must have the id {family.pad} in a {family.model_type} checkpoint, got "
                f"{pad} from this run's external tokenizer; it can't be exported."
            )
        exchange = (family.pad, pad)
        tokenizer = with_swapped_ids(RunFolder(model.path).tokenizer, *exchange)
    extra = len(family.extra(settings, tokenizer.vocabulary))
    if extra and not has_pad(tokenizer):
        raise UserError(
            "the run's special tokens follow a padding id that is not in its tokenizer, which a "
            f"{family.model_type} checkpoint can't express; it can't be exported."
        )
    tokens = tokenizer.vocabulary.size - (0 if has_pad(tokenizer) else 1)
    shape = CheckpointSpec(
        settings=settings,
        vocabulary=tokenizer.vocabulary,
        rows=tokens + extra,
        extra=extra,
        swapped_ids=exchange,
    )
    return tokenizer, shape


def _tokenizer_config(
    family: CheckpointFamily, shape: CheckpointSpec, imported: ImportRecord | None
) -> dict[str, Any]:
    max_length = shape.settings.get("length")
    before: Mapping[str, Any] = {} if imported is None else imported.tokenizer_config
    defaults = {
        "model_input_names": list(family.inputs),
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": max_length} if max_length else {}),
    }
    return {**defaults, **{k: v for k, v in before.items() if k not in DROPPED_TOKENIZER_FIELDS}}
