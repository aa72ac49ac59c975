"""Devices and CPU threads by name, checked to be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch

from lmlab.core.compute_options import PrecisionName
from lmlab.core.errors import UserError, unknown_name

DEVICE_KINDS = ("auto", "cpu", "cuda", "mps")


def find_device(name: str | None) -> torch.device:
    """The device of a name; a UserError for one that is not there.

    `auto` (and None) is a CUDA GPU if there is one, else the CPU: not MPS, which has no float64,
    which some systems sum in.
    """
    kind, _, number = ("auto" if name is None else name).partition(":")
    if kind not in DEVICE_KINDS:
        raise unknown_name("device", name or "", DEVICE_KINDS)
    if number and (kind != "cuda" or not number.isdecimal()):
        raise UserError(f"a device must be auto, cpu, cuda, cuda:1 or mps, got {name!r}.")
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        _check_cuda(str(name), int(number or 0))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("there is no MPS device here; use --device cpu.")
    return torch.device(str(name))


def _check_cuda(name: str, number: int) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise UserError(f"there is no CUDA device here for {name}; use --device cpu.")
    if number >= count:
        last = f"cuda:{count - 1}"
        raise UserError(f"there is no device {name}; the last of {count} is {last}.")


def find_precision(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype of a precision (None: float32); a UserError where the device lacks it."""
    name = name or "float32"
    if name not in get_args(PrecisionName):
        raise unknown_name("precision", name, get_args(PrecisionName))
    if name == "float16" and device.type == "cpu":
        raise UserError(
            "precision float16 needs a GPU, and the device is cpu; use bfloat16 or float32."
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def check_threads(threads: int | None) -> None:
    """A UserError unless it is a positive number, or None."""
    if threads is not None and threads < 1:
        raise UserError(f"threads must be at least 1, got {threads}.")


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[None]:
    """So many threads for operations on the CPU in this block; None leaves them as they are."""
    check_threads(threads)
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
