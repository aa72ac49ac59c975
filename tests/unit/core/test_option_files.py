"""Options of a verb from YAML, TOML and JSON, checked and merged with what is given besides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from lmlab.core.data_files import parse_yaml, read_data_file
from lmlab.core.errors import UserError
from lmlab.core.option_files import merge_options, options_from_file
from lmlab.core.options import Argument, Option
from lmlab.core.shared_options import Minutes, Settings, Steps, parse_epochs, settings_option


def verb(
    system: Annotated[str, Argument("System.")],
    *,
    settings: Annotated[Settings, settings_option("Set.")] = None,
    top_k: Annotated[int | None, Option("K.", minimum=1)] = None,
    errors: Annotated[Literal["strict", "replace"], Option("Errors.")] = "strict",
    at: Annotated[Sequence[int], Option("At.", parse=parse_epochs)] = (),
    text: Annotated[Sequence[str], Option("Texts.")] = (),
    each: Annotated[bool, Option("Each.")] = False,
    steps: Steps = None,
    minutes: Minutes = None,
    quiet: bool = False,
) -> Mapping[str, Any]:
    return {}


def write(tmp_path: Path, text: str, suffix: str = ".yaml") -> Path:
    path = tmp_path / f"options{suffix}"
    path.write_text(text, encoding="utf-8")
    return path


EXPECTED = {
    "system": "lstm",
    "settings": {"width": 8, "learning_rate": 0.001, "off": (0, 4)},
    "top_k": 3,
    "each": True,
    "text": ["a b", "中文"],
}
TEXTS = {
    ".yaml": """
system: lstm          # a comment
set: {width: 8, learning-rate: 1e-3, off: [0, 4]}
top-k: 3
each: true
text: [a b, 中文]
steps:
""",
    ".toml": """
system = "lstm"
top_k = 3
each = true
text = ["a b", "中文"]
[settings]
width = 8
learning_rate = 1e-3
off = [0, 4]
""",
    ".json": json.dumps(EXPECTED | {"minutes": None}),
}


@pytest.mark.parametrize("suffix", TEXTS)
def test_the_three_formats_give_the_same_options(tmp_path: Path, suffix: str):
    assert options_from_file(write(tmp_path, TEXTS[suffix], suffix), verb) == EXPECTED


def test_texts_of_numbers_and_of_the_command_line_are_parsed(tmp_path: Path):
    path = write(tmp_path, "minutes: '0.5'\nat: 10,20\nsteps: 7")
    assert options_from_file(path, verb) == {"minutes": 0.5, "at": [10, 20], "steps": 7}
    assert options_from_file(write(tmp_path, "at: [10, 20]"), verb) == {"at": [10, 20]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sytem: lstm", "there is no option of verb called 'sytem'; did you mean 'system'"),
        ("learning_rate: 1", "settings such as learning_rate stand below settings:"),
        ("quiet: true", "there is no option of verb called 'quiet'"),
        ("top_k: many", "top_k must be a whole number or none, got 'many'"),
        ("top_k: 0", "top_k must be at least 1, got 0"),
        ("top_k: true", "top_k must be a whole number"),
        ("each: maybe", "each must be true or false, got 'maybe'"),
        ("errors: strickt", "called 'strickt'; did you mean 'strict'"),
        ("system: 3", "system must be a text, got 3"),
        ("settings: 3", "settings must hold names with values, got 3"),
        ("settings: {1: 2}", "settings must hold names with values"),
        ("top-k: 1\ntop_k: 2", "gives top_k twice"),
        ("top_k: 1\ntop_k: 2", "the key 'top_k' is given twice"),
        ("- a", "must hold names with values, got list"),
        ("a: [", "is no valid YAML"),
        ("a: !!python/object/apply:os.getcwd []", "is no valid YAML"),
        pytest.param("a: " + "[" * 400, "nested too deeply|is no valid YAML", id="deep"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_file(tmp_path: Path, text: str, message: str):
    with pytest.raises(UserError, match=message) as caught:
        options_from_file(write(tmp_path, text), verb)
    assert "options.yaml" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("suffix", "text"), [(".toml", "a = "), (".json", "{"), (".json", "[]")])
def test_other_invalid_files(tmp_path: Path, suffix: str, text: str):
    with pytest.raises(UserError, match="options"):
        options_from_file(write(tmp_path, text, suffix), verb)
    with pytest.raises(UserError, match=r"must be a file named \*.yaml, \*.yml, \*.toml"):
        read_data_file(tmp_path / "options.txt")
    with pytest.raises(UserError, match="can't be read"):
        read_data_file(tmp_path / "nothing.yaml")


def test_yaml_is_read_by_the_core_schema():
    """Words and forms that YAML 1.1 takes for something else."""
    text = "{off: no, a: on, b: 1e-3, c: 010, d: 2020-01-02, e: 1:30, f: True, g: ~, h: .5, i: -2}"
    assert parse_yaml(text) == {
        "off": "no", "a": "on", "b": 0.001, "c": 10, "d": "2020-01-02", "e": "1:30", "f": True,
        "g": None, "h": 0.5, "i": -2,
    }  # fmt: skip
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


def test_what_is_given_overrides_the_file_and_a_budget_all_budgets():
    file = {"system": "lstm", "steps": 5, "settings": {"width": 8, "minutes": 3, "off": (1,)}}
    given = {"system": "gru", "settings": {"width": "16"}}
    assert merge_options(verb, file, given) == {
        "system": "gru",
        "steps": 5,
        "settings": {"width": "16", "minutes": 3, "off": (1,)},
    }
    assert merge_options(verb, file, {"minutes": 1.0}) == {
        "system": "lstm",
        "settings": {"width": 8, "off": (1,)},
        "minutes": 1.0,
    }
    assert merge_options(verb, file, {"settings": {"steps": "9"}}) == {
        "system": "lstm",
        "settings": {"width": 8, "off": (1,), "steps": "9"},
    }
    assert merge_options(verb, {}, {"settings": {"width": 1}}) == {"settings": {"width": 1}}
