"""Model loading by path: a run, or a Hugging Face checkpoint folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from lmlab.core.compute_options import ComputeOptions, current_compute
from lmlab.core.errors import UserError
from lmlab.interop.hf.checkpoint_files import read_config
from lmlab.interop.hf.checkpoint_import import read_checkpoint
from lmlab.interop.hf.family import families
from lmlab.interop.hf.transformers_loader import wrap_checkpoint
from lmlab.layers.model_placement import place_model
from lmlab.training.run_folder import RunFolder, TrainedModel, is_hub_config, load_run

CACHED_MODELS = 2
"""Number of checkpoints cached in memory."""


def load_model(path: Path | str) -> TrainedModel:
    """Load the model of a run or checkpoint folder, without writing anything.

    Checkpoints of known families are imported; others are run by transformers and wrapped. An
    unchanged folder is read once. The device and the precision are those of `current_compute`.
    """
    folder, options = Path(path), current_compute()
    if is_hub_checkpoint(folder):
        return _read(folder, _state(folder), options)
    model = load_run(folder)
    place_model(model.system, options)
    return model


def is_hub_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a Hugging Face checkpoint and no run."""
    return is_hub_config(RunFolder(folder).config)


@lru_cache(maxsize=CACHED_MODELS)
def _read(
    folder: Path, state: tuple[tuple[str, int, int], ...], options: ComputeOptions
) -> TrainedModel:
    """`state` is the cache key of the folder's content."""
    model = _read_checkpoint(folder)
    place_model(model.system, options)
    return model


def _read_checkpoint(folder: Path) -> TrainedModel:
    if read_config(folder)["model_type"] not in families():
        return wrap_checkpoint(folder)
    try:
        return read_checkpoint(folder)
    except UserError as error:
        # A known family with a setting unknown to lmlab: transformers may support it.
        try:
            return wrap_checkpoint(folder)
        except UserError:
            raise error from None


def _state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stats = [(path, path.stat()) for path in files]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)
