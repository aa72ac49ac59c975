"""Reading a YAML, TOML or JSON file that a person wrote, as a mapping.

YAML is read by the core schema of version 1.2: only true and false are truth values (`off` is the
name of a setting), 1e-3 is a number, and no text becomes a date. A key given twice is an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_json

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
CORE_SCHEMA = {
    "tag:yaml.org,2002:merge": (r"<<", ["<"]),
    "tag:yaml.org,2002:null": (r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:bool": (r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "tag:yaml.org,2002:float": (
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)",
        list("-+0123456789."),
    ),
}
"""YAML 1.2's patterns of plain scalars, with the characters that they begin with; and merging."""
MAX_BYTES = 1_000_000
"""Largest file of this kind."""


def read_data_file(path: Path) -> dict[str, Any]:
    """The mapping in a file; a UserError with the reason if there is none."""
    parsers: dict[str, Callable[[str], Any]] = {
        ".yaml": parse_yaml,
        ".yml": parse_yaml,
        ".toml": tomllib.loads,
        ".json": parse_json,
    }
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise UserError(f"{path} must be a file named *{', *'.join(SUFFIXES)}; rename it.")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path} must have at most {MAX_BYTES:,} bytes.")
        values = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}.") from error
    except RecursionError:
        raise UserError(f"{path} is nested too deeply.") from None
    except ValueError as error:
        kind = path.suffix[1:].upper()
        raise UserError(f"{path} is no valid {kind}: {_one_line(error)}.") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"{path} must hold names with values, got {type(values).__name__}.")
    return values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300]


def parse_yaml(text: str) -> Any:
    """The value of a YAML document; a ValueError if it is invalid."""
    import yaml

    class CoreLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        """YAML 1.2's core schema, and no key twice."""

        yaml_implicit_resolvers: dict[str, Any] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [key for index, key in enumerate(keys) if key in keys[:index]]:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"the key {twice[0]!r} is given twice below line {line}")
            mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            return mapping

    for tag, (pattern, first) in CORE_SCHEMA.items():
        CoreLoader.add_implicit_resolver(tag, re.compile(rf"^{pattern}$"), first)
    CoreLoader.add_constructor("tag:yaml.org,2002:int", _construct_integer)
    CoreLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)
    try:
        return yaml.load(text, Loader=CoreLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _construct_integer(loader: Any, node: Any) -> int:
    return int(loader.construct_scalar(node))  # 010 is ten


def _construct_float(loader: Any, node: Any) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))
