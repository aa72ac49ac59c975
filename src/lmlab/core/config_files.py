"""Reading a configuration file (YAML, TOML or JSON) as plain data, with errors of one sentence.

YAML is read by the core schema of YAML 1.2, as people write settings: `1e-3` is a number, and `off`
and `yes` are texts. Only plain data is made of it; a key that is given twice is an error.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmlab.core.errors import UserError
from lmlab.core.limits import limit, limit_exceeded_error
from lmlab.core.untrusted_input import parse_json

if TYPE_CHECKING:
    import yaml

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".json")
CORE_SCHEMA = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)
"""Tags of plain scalars: pattern and first characters (YAML 1.2.2, section 10.3.2)."""


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML, TOML or JSON file; a UserError where there is none."""
    path = Path(path)
    if path.suffix.lower() not in CONFIG_SUFFIXES:
        raise UserError(
            f"{path} must end in .yaml, .toml or .json, which says how it is written; rename it."
        )
    try:
        if path.stat().st_size > limit("json"):
            raise limit_exceeded_error("json", f"the bytes of {path} must be")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; convert it first.") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; check the path.") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}.") from None
    try:
        value = _parse(path.suffix.lower(), text)
    except ValueError as error:
        raise UserError(f"{path} can't be read: {' '.join(str(error).split())}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a mapping (key: value), got {_kind(value)}.")
    wrong = next((key for key in value if not isinstance(key, str)), None)
    if wrong is not None:
        raise UserError(f"the keys of {path} must be names, got {wrong!r}; quote it.")
    return value


def _parse(suffix: str, text: str) -> Any:
    if suffix == ".json":
        return parse_json(text)
    if suffix == ".toml":
        return tomllib.loads(text)
    return _parse_yaml(text)


def _parse_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_core_schema_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"{error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _core_schema_loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader with the scalars of YAML 1.2 and no aliases, which can blow up."""
    import yaml

    class CoreSchemaLoader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise yaml.composer.ComposerError(
                    None, None, "aliases (*name) are not supported", event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                problem = f"the key {key.value!r} is given twice" if str(key.value) in seen else ""
                if not isinstance(key, yaml.ScalarNode):
                    problem = "a key must be a name"
                if problem:
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    for tag, pattern, first in CORE_SCHEMA:
        letters = ["" if letter == "\0" else letter for letter in first]
        CoreSchemaLoader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), letters)
    CoreSchemaLoader.add_constructor(
        "tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node))
    )
    return CoreSchemaLoader


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
