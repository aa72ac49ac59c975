"""Fixtures of the data tests: small corpora, and the research data where it is available."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.data.corpus import Split
from lmlab.data.readers import Example


@pytest.fixture(autouse=True)
def _isolated_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a cache of the test's own, never the user's."""
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file in the test's folder and return its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def make_split() -> Callable[..., Split]:
    """Return a split of the given texts."""

    def make_split(*items: str | Example) -> Split:
        return Split.from_list(items, identity=repr(items), name="train")

    return make_split


@pytest.fixture
def research_data() -> Path:
    """Folder of the research corpora; skip the test if it is missing."""
    here = Path(__file__).resolve()
    candidates = [Path(os.environ.get("LMLAB_DATA", "")), here.parents[4] / "shared" / "data"]
    for candidate in candidates:
        if (candidate / "ptb" / "train.txt").is_file():
            return candidate
    pytest.skip("the research corpora are not here; set LMLAB_DATA to their folder")
