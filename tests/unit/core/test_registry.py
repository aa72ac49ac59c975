"""Invalid zoo files are reported in one sentence that names the file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from lmlab.core import registry
from lmlab.core.errors import UserError


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "ZOO", tmp_path)
    registry._builtin.cache_clear()
    yield tmp_path
    registry._builtin.cache_clear()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("CARD = 5\n", r"CARD must be a call"),
        ("x = 1\n", "declares no CARD"),
        ("\ndef (:\n", "line 2: invalid syntax"),
        ("CARD = Card(family=print)\n", "family of CARD must be a literal value, .* got print"),
        ("CARD = Card(**values)\n", r"CARD must be a call"),
        ("CARD = Card(wings=3)\n", "no field 'wings'"),
        ("CARD = Card(family=3)\n", "family must be a text, got 3"),
        ("CARD = Card(family='own')\n", "missing .* 'kind'"),
        ("CARD = Card(kind='true')\n", "kind of CARD must be one of exact, bound, .* got 'true'"),
        ("CARD = Card(fitting='luck')\n", "fitting of CARD must be one of gradient, counting"),
        ("CARD = Card(needs=('time',))\n", "needs of CARD must be among base, encoder"),
        ("CARD = Card(name='lstm')\n", "name of CARD is set by lmlab; remove it"),
    ],
)
def test_unreadable_card_is_reported(zoo: Path, content: str, message: str) -> None:
    (zoo / "mine.py").write_text(content)
    with pytest.raises(UserError, match=rf"mine\.py is not the file of a system \(.*{message}"):
        registry.catalogue()


def test_zoo_file_without_sizes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lmlab.zoo.lstm")
    module.__file__ = "zoo/lstm.py"
    module.CARD = module.Config = module.build = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lmlab.zoo.lstm", module)
    with pytest.raises(UserError, match=r"lstm\.py declares no SIZES; see docs/add-a-system"):
        registry.system_module("lstm")


def test_name_of_a_file_at_hand_is_answered_with_the_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_own.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"called 'my-own'; give that of the file as \./my_own\.py"):
        registry.find_system("my-own")
