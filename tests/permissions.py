"""Permissions that hold for tests that run as root, too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
"""Root's right to write what nobody may write."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def _set_effective(on: bool) -> None:
    """Give this thread a right that it is permitted, or lay it down."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(LINUX_CAPABILITY_VERSION_3, 0), (_Data * 2)()
    if libc.capget(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capget")
    bit = 1 << CAP_DAC_OVERRIDE
    data[0].effective = data[0].effective | bit if on else data[0].effective & ~bit
    if libc.capset(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may change the folder in this block, not even root."""
    every = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in every:
        path.chmod(0o555)
    if os.geteuid() == 0:
        _set_effective(False)
    try:
        yield
    finally:
        if os.geteuid() == 0:
            _set_effective(True)
        for path in every:
            path.chmod(0o755)
