"""A model by the path of its folder: a run of ours, or a checkpoint in the Hub's format."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.interop.hf.checkpoint_files import read_config
from lmlab.interop.hf.checkpoint_import import read_checkpoint
from lmlab.interop.hf.family_registry import families
from lmlab.interop.hf.transformers_wrapper import wrap_checkpoint
from lmlab.training.run_folder import (
    RunFolder,
    TrainedModel,
    is_hub_config,
    load_run,
)

CACHED_MODELS = 2
"""Checkpoints that stay in memory after they were read."""


def load_model(path: Path | str) -> TrainedModel:
    """The model of a run's folder, or of a checkpoint's, of which nothing is written.

    A checkpoint of a family that lmlab knows is imported; another one is run by transformers and
    wrapped. The same folder, unchanged, is read once.
    """
    folder = Path(path)
    if not is_hub_checkpoint(folder):
        return load_run(folder)
    return _read(folder, _state(folder))


def is_hub_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint in the Hub's format, and no run of ours."""
    return is_hub_config(RunFolder(folder).config)


@lru_cache(maxsize=CACHED_MODELS)
def _read(folder: Path, state: tuple[tuple[str, int, int], ...]) -> TrainedModel:
    """`state` tells one content of the folder from another."""
    if read_config(folder)["model_type"] not in families():
        return wrap_checkpoint(folder)
    try:
        return read_checkpoint(folder)
    except UserError as why:
        # Of a known family, but with a setting that lmlab does not know: transformers may.
        try:
            return wrap_checkpoint(folder)
        except UserError:
            raise why from None


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = [(path, path.stat()) for path in files]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in found)
