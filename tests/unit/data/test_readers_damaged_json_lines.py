"""Every reader of JSON lines reports a damaged line with its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmlab.cli.finetune import read_input_rows
from lmlab.core.errors import UserError
from lmlab.data.lines import ReadingReport
from lmlab.data.readers import JsonLines
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.retrieval.documents import load_documents
from lmlab.scoring.minimal_pairs import read_minimal_pairs
from lmlab.tasks.classification import Classification
from lmlab.tasks.multihop.multihop_rows import read_paragraphs
from lmlab.tasks.task_rows import read_rows

LINES = {
    "nesting": '{"text": ' + "[" * 200_000,
    "digits": '{"text": ' + "9" * 5000 + "}",
    "surrogate": '{"text": "\\ud800", "label": "\\ud800"}',
    "number": "5",
    "cut short": '{"text": "a',
}
READERS: dict[str, Callable[[Path], Any]] = {
    "corpus": lambda path: list(JsonLines(path=path).read(ReadingReport())),
    "documents": load_documents,
    "pairs": lambda path: list(read_minimal_pairs([path])),
    "rows": lambda path: list(read_rows(path, Classification)),
    "rows to predict": lambda path: read_input_rows("classify", str(path), [], "strict"),
    "paragraphs": read_paragraphs,
    "knowledge": lambda path: load_knowledge(str(path.parent)),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("reader", READERS)
def test_damaged_json_line_is_reported_with_its_number(
    tmp_path: Path, reader: str, kind: str
) -> None:
    path = tmp_path / "entities.jsonl"
    first = '{"text": "a"}\n' if reader == "rows to predict" else "\n"
    path.write_text(f"{first}{LINES[kind]}\n")
    with pytest.raises(UserError, match=r"line 2"):
        READERS[reader](path)
