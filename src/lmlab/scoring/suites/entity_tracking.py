"""Entity tracking: which contents does a box have after a few operations?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lmlab.scoring.alternatives import Alternatives
from lmlab.scoring.json_rows import JsonRow, files_of, json_rows
from lmlab.scoring.suite import Suite


def read_boxes(path: Path) -> Sequence[Alternatives]:
    """Items of `input_prefix`, `options` (the right one first) and `numops`."""
    files = files_of(path, ".jsonl", "entity tracking")
    return [_item(row) for file in files for row in json_rows(file, "item")]


def _item(row: JsonRow) -> Alternatives:
    options, operations = row.values.get("options"), row.values.get("numops")
    texts = options if isinstance(options, list) else []
    if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
        raise row.error("two or more texts under 'options'")
    if isinstance(operations, bool) or not isinstance(operations, int):
        raise row.error("a whole number under 'numops'")
    return Alternatives(
        phenomenon=row.file.stem,
        paradigm=f"{row.file.stem}_{operations}_ops",
        prefix=row.text("input_prefix"),
        texts=tuple(texts),
    )


SUITE = Suite(
    name="entity-tracking",
    title="Entity tracking: the contents of boxes after operations",
    source="Kim and Schuster 2023, Entity Tracking in Language Models",
    read=read_boxes,
    average="phenomenon",
    conditional=True,
    babylm_task="entity_tracking",
)
