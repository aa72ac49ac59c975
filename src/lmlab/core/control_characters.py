r"""Control characters of texts, made visible where people read them: ESC is shown as \x1b.

A text, a token or a file's name may hold terminal escape sequences (ESC and the other C0 and C1
controls, DEL) or bidirectional overrides, which change what a reader sees.
"""

from __future__ import annotations

import re

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 without tab and line feed, DEL, C1, bidirectional embeddings, overrides and isolates."""
NOT_ESCAPED_BY_JSON = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Those of them that `json.dumps(ensure_ascii=False)` writes as they are."""
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet takes for a formula."""


def escape_control_characters(text: str) -> str:
    r"""The text with each hidden character as an escape: `\x1b`, `\u202e`; tab and \n stay."""
    return CONTROL_CHARACTERS.sub(_escaped, text)


def escape_control_characters_in_json(document: str) -> str:
    r"""A JSON document with the hidden characters of its strings as `\u009b`: the same values."""
    return NOT_ESCAPED_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def escape_csv_cell(text: str) -> str:
    """A text as a cell of a CSV file: no formula to a spreadsheet, no hidden character.

    An apostrophe before `=`, `+`, `-` or `@` makes a spreadsheet show the cell as text.
    """
    return escape_control_characters(f"'{text}" if text.startswith(FORMULA_PREFIXES) else text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
