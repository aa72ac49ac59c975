"""Parsing of untrusted JSON: any damage is a ValueError with a short reason."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from lmlab.core.limits import limit, limit_exceeded_error

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape that is half of a character beyond U+FFFF; alone it is no character."""


def parse_json(text: str | bytes) -> Any:
    """A JSON document; raises a ValueError if it is invalid or unusable.

    Unusable: nested too deeply, an integer of thousands of digits, or half of a surrogate pair,
    which could not be written again.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"it has a number of more than {digits:,} digits") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair, which is no character") from None
    return value


def read_json_file(path: Path) -> Any:
    """The JSON document of a UTF-8 file; raises a ValueError or an OSError if there is none."""
    if path.stat().st_size > limit("json"):
        raise limit_exceeded_error(
            "json", f"the bytes of {path} must be", f"got {path.stat().st_size:,}"
        )
    return parse_json(path.read_text(encoding="utf-8"))


def read_json_object(path: Path) -> dict[str, Any]:
    """The same for a JSON object."""
    value = read_json_file(path)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    return value
