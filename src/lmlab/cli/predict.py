"""Input rows for prediction: JSON objects or texts, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmlab.cli.text_inputs import read_texts
from lmlab.core.errors import UserError
from lmlab.core.json_text import parse_json
from lmlab.data.readers import Example

if TYPE_CHECKING:
    from lmlab.tasks.task import Task

TaskRow = dict[str, Any]
NumberedRow = tuple[int, TaskRow | None]
"""A line number and its row; None for a line without text."""


def read_input_rows(
    task: Task, file: str | None, texts: list[str], errors: str
) -> list[NumberedRow]:
    """The rows of a file, of `--text`, or of standard input (the default).

    A file holds JSON objects if its first non-empty line begins with `{`, else texts.
    """
    if file is None and not texts:
        file = "-"
    found = read_texts(file, texts, errors, instead="--text", plain=True)
    lines = list(found.lines)
    first = next((line.text for line in lines if line.text), "")
    if not texts and first.startswith("{"):
        return [(line.line or 0, _json_row(line, found.name)) for line in lines]
    if task.text_field is None:
        raise UserError(
            f"a row of {task.name} has several texts; give JSON objects, one per line, in a file."
        )
    return [
        (line.line or 0, task.row_from_text(line.text) if line.text else None) for line in lines
    ]


def _json_row(line: Example, name: str) -> TaskRow | None:
    if not line.text:
        return None
    try:
        row = parse_json(line.text)
    except ValueError as error:
        reason = getattr(error, "msg", error)
        raise UserError(
            f"{name}, line {line.line}: expected a JSON object, but {reason}."
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f"{name}, line {line.line}: expected a JSON object, got {type(row).__name__}."
        )
    return row
