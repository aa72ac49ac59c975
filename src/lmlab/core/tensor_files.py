"""safetensors files: write and read tensors, tied ones stored once; check for NaN and infinity."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from lmlab.core.atomic_files import write_bytes
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_json


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a safetensors file; those that share memory are stored once."""
    unique, aliases = _deduplicate(tensors)
    # As bytes in memory, because the library's own writer hides disk errors in a string.
    return save(unique, metadata={"aliases": json.dumps(aliases)})


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensor_bytes` atomically."""
    write_bytes(path, tensor_bytes(tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file that `write_tensors` wrote, shared ones under each of their names."""
    with safe_open(path, framework="pt") as file:
        aliases = parse_json((file.metadata() or {}).get("aliases", "{}"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if not isinstance(aliases, dict) or not all(
        isinstance(original, str) and original in tensors for original in aliases.values()
    ):
        raise ValueError("its header names tensors that are not in the file")
    return tensors | {name: tensors[original] for name, original in aliases.items()}


def check_finite(
    source: Path | str, tensors: Mapping[str, Tensor], parameters: Container[str] = ()
) -> None:
    """Raise a UserError if a weight of `source` is NaN or infinite.

    -inf, the logarithm of a zero probability, is allowed in tables (buffers), not in `parameters`.
    """
    for name, value in tensors.items():
        if not value.is_floating_point() or torch.isfinite(value).all():
            continue
        log_of_zero = (value == -torch.inf) & (name not in parameters)
        wrong = int((~torch.isfinite(value) & ~log_of_zero).sum())
        if wrong:
            raise UserError(
                f"{source} has weights that are not finite ({wrong:,} of {value.numel():,} in "
                f"{name}); restore it, or train the model again."
            )


def _deduplicate(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors with distinct memory, and the aliases of those with several names (tied weights)."""
    unique: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name in sorted(tensors):
        value = tensors[name].detach()
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        # Cloned if it is a view of larger memory, which the format can't store.
        owns_memory = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
        unique[name] = (value if owns_memory else value.contiguous().clone()).to("cpu")
    return unique, aliases
