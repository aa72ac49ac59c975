"""Unknown words in the rows of a task: what a tokenizer does not know of the texts to be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lmlab.data.unknown_words import UnknownWords
from lmlab.tasks.task import Task

ANSWERS = ("label", "tags", "answer", "target")
"""The fields of a row that hold what is to be predicted."""


def unknown_in_rows(rows: Iterable[Mapping[str, Any]], task: Task, tokenizer: Any) -> UnknownWords:
    """Count the unknown words of the input fields of rows, by the tokenizer that reads them."""
    counter = UnknownWords(getattr(task, "source_tokenizer", None) or tokenizer)
    names = [name for name in (*task.fields, "question") if name not in ANSWERS]
    for row in rows:
        for name in names:
            value = row.get(name, "")
            counter.add(" ".join(map(str, value)) if isinstance(value, list) else str(value))
    return counter
