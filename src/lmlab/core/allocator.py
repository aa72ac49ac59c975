"""Memory that is kept for the next training step, or given back while scoring.

glibc returns every large block to the system when it is freed and asks for it again in the next
step; the page faults of that cost up to a third of a training step on a CPU. Three settings make it
keep what it has. Measured in `benchmarks/`, where a record says which settings a
peer had.

After a while glibc raises its own idea of large, and freed blocks pile up in gaps that do not fit
the next ones; a long scoring then grows by a tenth. A fixed idea of large prevents that.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

# From glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3

LARGE = 2**30
"""Blocks below 1 GiB come from the heap, which is trimmed only when so much of it is free."""
SMALL = 2**20
"""Blocks above 1 MiB go back to the system when they are freed."""
STEP = 64 * 2**20
"""The heap grows by 64 MiB at a time."""


def keep_memory() -> bool:
    """Make glibc keep freed memory for the next step; false where there is no glibc.

    Settings that the user made in the environment (MALLOC_…, GLIBC_TUNABLES) are left alone.
    """
    return _set({M_MMAP_THRESHOLD: LARGE, M_TRIM_THRESHOLD: LARGE, M_TOP_PAD: STEP})


def return_memory() -> bool:
    """Make glibc give large blocks back when they are freed; false where there is no glibc."""
    return _set({M_MMAP_THRESHOLD: SMALL, M_TRIM_THRESHOLD: SMALL, M_TOP_PAD: SMALL})


def _set(settings: dict[int, int]) -> bool:
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    done = [libc.mallopt(name, value) for name, value in settings.items()]
    return all(done)
