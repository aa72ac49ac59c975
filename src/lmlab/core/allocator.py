"""glibc allocator settings (mallopt) that keep freed memory for the next batch: fewer page faults.

By default glibc returns every large block to the system when it is freed and requests it again in
the next step; these page faults cost up to a third of a training step on a CPU, and a seventh of
scoring. Three settings prevent that. Measured in `benchmarks/`, whose records give the settings of
each peer.
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

MMAP_THRESHOLD = 2**30
"""Blocks below 1 GiB come from the heap, which is trimmed only when so much of it is free."""
TOP_PAD = 64 * 2**20
"""The heap grows by 64 MiB at a time."""


def retain_freed_memory() -> bool:
    """Make glibc keep freed memory for the next step; false without glibc.

    Settings in the user's environment (MALLOC_…, GLIBC_TUNABLES) are left alone.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    settings = {
        M_MMAP_THRESHOLD: MMAP_THRESHOLD,
        M_TRIM_THRESHOLD: MMAP_THRESHOLD,
        M_TOP_PAD: TOP_PAD,
    }
    done = [libc.mallopt(name, value) for name, value in settings.items()]
    return all(done)
