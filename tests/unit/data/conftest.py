"""Small corpora for the tests of the data room, and where the research data is if it is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lmlab.data.corpus import Split
from lmlab.data.readers import Example


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the user's cache, or reads data from the user's settings."""
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Writes a file below the test's folder and gives its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def listed() -> Callable[..., Split]:
    """A split of given texts."""

    def listed(*items: str | Example) -> Split:
        return Split.from_list(items, identity=repr(items), name="train")

    return listed


@pytest.fixture
def research_data() -> Path:
    """The folder of research corpora; the test is skipped where it is missing."""
    here = Path(__file__).resolve()
    candidates = [Path(os.environ.get("LMLAB_DATA", "")), here.parents[4] / "shared" / "data"]
    for candidate in candidates:
        if (candidate / "ptb" / "train.txt").is_file():
            return candidate
    pytest.skip("the research corpora are not here; set LMLAB_DATA to their folder")
