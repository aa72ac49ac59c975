"""The folder of caches: what is in it may be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """The cache folder: LMLAB_CACHE, or `lmlab` in the user's cache folder."""
    configured = os.environ.get("LMLAB_CACHE")
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lmlab"
