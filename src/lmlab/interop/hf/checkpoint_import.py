"""Import of Hugging Face checkpoints as runs: scored, sampled and plotted like trained ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lmlab.core.atomic_files import new_folder
from lmlab.core.errors import UserError
from lmlab.core.registry import find_system, registered_system
from lmlab.core.system import System
from lmlab.core.tensor_files import check_finite
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import Tokenizer
from lmlab.interop.hf.checkpoint_files import find_checkpoint_folder, read_config, weight_names
from lmlab.interop.hf.family import CheckpointFamily, CheckpointSpec, family_of_checkpoint
from lmlab.interop.hf.tokenizer_files import (
    has_pad,
    read_special_tokens,
    read_tokenizer,
    read_tokenizer_config,
)
from lmlab.interop.hf.weight_mapping import NameTable, resolve_settings
from lmlab.training.config import TrainingConfig
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.run_records import ImportRecord, unknown_corpus
from lmlab.training.stored_model_guard import stored_model_guard
from lmlab.training.system_building import build_system

MAX_SHARED_LAYERS = 1_000
"""Maximum number of layers if all share one set of weights (ALBERT)."""
LISTED_NAMES = 3
"""Maximum number of weight names listed in an error."""


def import_hf(source: str | Path, out: str | Path, *, family: str | None = None) -> TrainedModel:
    """Import a Hugging Face checkpoint as a run: a folder, or a Hub name, which is downloaded.

    `family` optionally asserts its model type. Only safetensors are read, as float32;
    `transformers` is not needed. `config.imported.notes` of the model lists what was left
    out.
    """
    if Path(out).exists():
        raise UserError(f"{out} already exists; choose another --out.")
    model = read_checkpoint(source, family=family)
    with new_folder(Path(out)) as partial:
        RunFolder(partial).write_description(model.config, model.tokenizer, weights=model.system)
    config = RunFolder(Path(out)).read_config()
    return replace(model, config=config, path=Path(out), stored=True)


def read_checkpoint(source: str | Path, *, family: str | None = None) -> TrainedModel:
    """Load a checkpoint as a model in memory; see `import_hf`."""
    folder = find_checkpoint_folder(source)
    config = read_config(folder)
    known = family_of_checkpoint(config.get("model_type"), family)
    tokenizer = read_tokenizer(folder)
    known = known.family_for_weights(weight_names(folder))
    known.check_vocabulary(tokenizer.vocabulary)
    described, weights = known.read_checkpoint_parts(folder, config)
    with stored_model_guard(folder, sum(tensor.nbytes for tensor in weights.values())):
        built = build_imported_system(known, described, tokenizer, weights)
    imported = ImportRecord(
        source=folder.resolve().name if Path(source).is_dir() else str(source),
        notes=tuple(built.notes),
        config=dict(described),
        tokenizer_config={
            **read_tokenizer_config(folder),
            **{f"{role}_token": token for role, token in read_special_tokens(folder).items()},
        },
    )
    return TrainedModel(
        system=built.system.eval(),
        tokenizer=tokenizer,
        layout=Layout(),
        config=_run_config(built, tokenizer, imported),
        card=find_system(built.name),
        path=folder,
        stored=False,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ImportedSystem:
    """A system with the weights of a checkpoint."""

    name: str
    """Name of the system."""
    settings: dict[str, Any]
    system: System
    notes: list[str]
    """Notes on what was left out."""


def build_imported_system(
    family: CheckpointFamily,
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
) -> ImportedSystem:
    """Build the system of a checkpoint and load all weights."""
    spelled = family.canonical_names(weights)
    tensors = {new: weights[name] for name, new in spelled.items() if not family.is_ignored(new)}
    vocabulary = tokenizer.vocabulary
    settings = family.our_settings(config, frozenset(tensors), tokenizer)
    _check_layers(settings, len(weights))
    shape = CheckpointSpec(
        settings=resolve_settings(settings),
        vocabulary=vocabulary,
        rows=_rows(config, tokenizer),
        extra=len(family.extra(settings, vocabulary)),
    )
    family.check_ignored(shape, {new: weights[name] for name, new in spelled.items()})
    table = family.table(shape)
    tensors = {**family.defaults(shape), **table.without_tied_names(tensors)}
    notes = _check_names(family, table, tensors) + family.import_notes(config)
    system = build_system(family.systems[0], settings, vocabulary, seed=0)
    state = {n: value.float() for n, value in table.restricted_to(tensors).to_ours(tensors).items()}
    complete = tensors.keys() >= set(table.their_names)
    _check_shapes(family, system.state_dict(), state, complete=complete)
    check_finite("the checkpoint", state, dict(system.named_parameters()))
    system.load_state_dict(state, strict=False)
    return ImportedSystem(name=family.systems[0], settings=settings, system=system, notes=notes)


def _check_layers(settings: Mapping[str, Any], tensors: int) -> None:
    """Raise a UserError if config.json declares more layers than the weights allow."""
    for name, value in settings.items():
        if (
            name.endswith("layers")
            and isinstance(value, int)
            and value > max(tensors, MAX_SHARED_LAYERS)
        ):
            raise UserError(
                f"config.json declares {value:,} {name.replace('_', ' ')}, but the checkpoint has "
                f"only {tensors:,} weight tensors; restore the matching pair."
            )


def _rows(config: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    """Number of token embeddings of the checkpoint; must cover the tokenizer."""
    tokens = tokenizer.vocabulary.size - (0 if has_pad(tokenizer) else 1)
    rows = config.get("vocab_size")
    if not isinstance(rows, int):
        raise UserError("the checkpoint's config.json has no vocab_size; restore it.")
    if rows < tokens:
        raise UserError(
            f"the tokenizer has {tokens} tokens, but the checkpoint has embeddings for {rows}; "
            "use the tokenizer that it was trained with."
        )
    return rows


def _check_names(
    family: CheckpointFamily, table: NameTable, weights: Mapping[str, Tensor]
) -> list[str]:
    """Notes on unused weights; a UserError if some are missing or unexpected."""
    missing, notes = [name for name in table.their_names if name not in weights], []
    for pattern, label in family.missing_allowed.items():
        part = [name for name in table.their_names if re.search(pattern, name)]
        if set(part) <= set(missing):
            missing = [name for name in missing if name not in part]
            notes.append(f"the checkpoint has no {label}.")
    if missing:
        raise UserError(
            f"the checkpoint lacks weights of {family.model_type}: {_name_list(missing)}; "
            f"{family.missing_weights_hint}."
        )
    unknown = [name for name in weights if name not in set(table.their_names)]
    for pattern, label in family.optional_weights.items():
        extra = [name for name in unknown if re.search(pattern, name)]
        unknown = [name for name in unknown if name not in extra]
        notes += [f"{label} was dropped: {family.systems[0]} in lmlab has none."] if extra else []
    if unknown:
        raise UserError(
            f"the checkpoint has weights that lmlab does not know in {family.model_type}: "
            f"{_name_list(unknown)}."
        )
    return notes


def _name_list(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(names[:LISTED_NAMES]) + more


def _check_shapes(
    family: CheckpointFamily,
    system_state: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    *,
    complete: bool,
) -> None:
    expected = system_state.keys() - family.data_buffers
    unexpected = expected ^ state.keys() if complete else state.keys() - expected
    assert not unexpected, f"the table of {family.model_type} is not whole: {unexpected}"
    for name, value in state.items():
        if value.shape != system_state[name].shape:
            raise UserError(
                f"the weights do not match config.json: {name} must have shape "
                f"{tuple(system_state[name].shape)}, got {tuple(value.shape)}; "
                "restore the matching pair."
            )


def _run_config(built: ImportedSystem, tokenizer: Tokenizer, imported: ImportRecord) -> RunConfig:
    """The config of an imported run."""
    return RunConfig(
        plugin=registered_system(built.name).origin,
        system=built.name,
        size="base",
        system_config=built.settings,
        vocabulary=tokenizer.vocabulary,
        tokenizer=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        layout=Layout(),
        corpus=unknown_corpus(imported.source),
        training=TrainingConfig(),
        imported=imported,
    )
