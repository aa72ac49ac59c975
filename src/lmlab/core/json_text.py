"""JSON from outside: every way in which it can be damaged is a ValueError with a short reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmlab.core.limits import beyond_limit, limit


def parse_json(text: str | bytes) -> Any:
    """A JSON document; a ValueError where it is none, nested too deeply, or has a huge number."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json_file(path: Path) -> Any:
    """The JSON document of a UTF-8 file; a ValueError or an OSError where there is none."""
    if path.stat().st_size > limit("json"):
        raise beyond_limit("json", f"{path} must have", f"has {path.stat().st_size:,}")
    return parse_json(path.read_text(encoding="utf-8"))


def read_json_object(path: Path) -> dict[str, Any]:
    """The same where it must be an object."""
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value
