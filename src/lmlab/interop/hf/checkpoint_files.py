"""Hugging Face checkpoint folders: locate, read and write config.json and safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lmlab.core.atomic_files import write_bytes
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import read_json_file

WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
HUB_FILE_PATTERNS = ("*.json", "*.txt", "*.safetensors")
"""Files downloaded from a Hub repository; never a pickle."""
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
HUB_NAME_PATTERN = re.compile(r"[\w.-]+(/[\w.-]+)?")


def find_checkpoint_folder(source: str | Path) -> Path:
    """A checkpoint's folder: a local one, or a Hub repository, which is downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UserError(f"{source} is a file; give the folder that contains config.json.")
    if not HUB_NAME_PATTERN.fullmatch(str(source)) or str(source).startswith("."):
        raise UserError(
            f"there is no folder {source}; give one with config.json and model.safetensors in it, "
            "or a name on the Hub such as openai-community/gpt2."
        )
    return _fetch(str(source))


def _fetch(name: str) -> Path:
    try:
        # Imported late: an optional dependency that local folders do not need.
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"there is no folder {name}, and to fetch that name from the Hub lmlab needs "
            "huggingface_hub: pip install 'lmlab[hub]'."
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILE_PATTERNS)))
    except Exception as error:  # the library and its transports raise dozens of types
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"there is no folder {name}, and the Hub has no such checkpoint or can't be reached "
            f"({reason.rstrip('. ')}); check the name and the network, or give a local folder."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a UserError says why it is none."""
    try:
        value = read_json_file(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise UserError(f"{path} can't be read ({reason}); restore it.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; restore it.")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a checkpoint."""
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"{folder} is not a checkpoint in the Hub's format: it has no config.json.")
    config = read_json(path)
    if "format" in config and "system" in config:
        raise UserError(f"{folder} is a run of lmlab already; use it as it is.")
    return config


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all weights of a checkpoint, from one file or from shards with an index."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        with _opened(path) as file:
            weights |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return weights


def weight_names(folder: Path) -> list[str]:
    """The names of all weights of a checkpoint, without reading the tensors."""
    names: list[str] = []
    for path in weight_files(folder):
        with _opened(path) as file:
            names += file.keys()
    return names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is damaged or cut short ({error}); fetch or copy it again."
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint; a UserError if the set is incomplete."""
    if (folder / WEIGHTS_FILE).exists():
        return [folder / WEIGHTS_FILE]
    if not (folder / WEIGHTS_INDEX_FILE).exists():
        pickled = any((folder / name).exists() for name in PICKLE_FILES)
        pickle_note = "only a pickle, which lmlab never opens because it may run untrusted code"
        raise UserError(
            f"{folder} has no {WEIGHTS_FILE}{', ' + pickle_note if pickled else ''}; save it with "
            f"transformers' "
            "save_pretrained, which writes safetensors."
        )
    weight_map = read_json(folder / WEIGHTS_INDEX_FILE).get("weight_map")
    listed = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not listed or not all(isinstance(file, str) and Path(file).name == file for file in listed):
        raise UserError(
            f"{folder / WEIGHTS_INDEX_FILE} is not an index of the files in its folder; restore it."
        )
    names = sorted(set(listed))
    for name in names:
        if not (folder / name).exists():
            raise UserError(
                f"{folder} lacks {name}, which {WEIGHTS_INDEX_FILE} lists; fetch it again."
            )
    return [folder / name for name in names]


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights as safetensors that transformers reads."""
    tensors = {name: value.detach().clone().contiguous().cpu() for name, value in weights.items()}
    write_bytes(path, save(tensors, metadata={"format": "pt"}))
