"""Invalid zoo files are reported in one sentence that names the file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from lmlab.core import registry
from lmlab.core.errors import UserError

CARD = 'CARD = Card(family="own", directionality="causal", sparse=False)\n'


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "ZOO", tmp_path)
    registry.catalogue.cache_clear()
    yield tmp_path
    registry.catalogue.cache_clear()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("CARD = 5\n", "CARD is not a call"),
        ("x = 1\n", "declares no CARD"),
        ("def (:\n", "invalid syntax"),
        ("CARD = Card(family=print)\n", "malformed"),
        ("CARD = Card(wings=3)\n", "wings"),
    ],
)
def test_unreadable_card_is_reported(zoo: Path, content: str, message: str) -> None:
    (zoo / "mine.py").write_text(content)
    with pytest.raises(UserError, match=rf"mine\.py can't be read as a file of the zoo.*{message}"):
        registry.catalogue()


def test_zoo_file_without_sizes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lmlab.zoo.lstm")
    module.__file__ = "zoo/lstm.py"
    module.CARD = module.Config = module.build = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmlab.zoo.lstm", module)
    with pytest.raises(UserError, match=r"lstm\.py declares no SIZES; see docs/add-a-system"):
        registry.system_module("lstm")
