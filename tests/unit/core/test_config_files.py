"""Configuration files: YAML, TOML and JSON as the same plain data, errors in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.config_files import read_config_file
from lmlab.core.errors import UserError

VALUES = {"system": "lstm", "off": ["0,1", True, None, 1e-3, 4], "space": {"rate": {"low": 1e-4}}}
FILES = {
    "a.yaml": "system: lstm\noff: ['0,1', true, null, 1e-3, 4]\nspace:\n  rate: {low: 1.e-4}\n",
    "a.json": '{"system": "lstm", "off": ["0,1", true, null, 0.001, 4], '
    '"space": {"rate": {"low": 1e-4}}}',
}


@pytest.mark.parametrize("name", FILES)
def test_formats_hold_the_same_values(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8")
    assert read_config_file(path) == VALUES


def test_toml(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text('system = "lstm"\n[space]\nrate = {low = 1e-4, log = true}\n')
    assert read_config_file(path) == {
        "system": "lstm",
        "space": {"rate": {"low": 1e-4, "log": True}},
    }


def test_words_of_old_yaml_are_texts(tmp_path: Path):
    """`off` names a setting, and 012 is twelve: YAML 1.2."""
    path = tmp_path / "a.yaml"
    path.write_text("off: yes\non: no\ncount: 012\ntime: 12:30\n")
    assert read_config_file(path) == {"off": "yes", "on": "no", "count": 12, "time": "12:30"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: 1\nb: 2\na: 3", "the key 'a' is given twice in line 3"),
        ("a.yaml", "a: [1", "line 1"),
        ("a.yaml", "- 1", "must hold a mapping .* got a list"),
        ("a.yaml", "", "got nothing"),
        ("a.yaml", "a: &x [1]\nb: *x", "aliases .* not supported in line 2"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a.yaml", "[1, 2]: 3", "a key must be a name"),
        ("a.yaml", "1: 3", "keys of .* must be names, got 1"),
        ("a.json", "{", "can't be read"),
        ("a.toml", "a = ", "can't be read"),
        ("a.txt", "a: 1", "must end in .yaml, .toml or .json"),
        ("a.yaml", None, "there is no file"),
    ],
)
def test_errors_are_one_sentence(name, text, message, tmp_path: Path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as raised:
        read_config_file(tmp_path / name)
    assert "\n" not in str(raised.value)
