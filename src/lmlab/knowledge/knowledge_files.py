"""Custom knowledge bases: a folder of tables.

    entities.tsv   name ⇥ title ⇥ description      title and description are optional
    aliases.tsv    words ⇥ entity ⇥ count          count, its frequency, is 1 by default
    facts.tsv      subject ⇥ relation ⇥ object

Entities are identified by `name`. `aliases` is optional: without it, titles (or names) are the
surface forms; `facts` is optional too. Words are written as in the texts: they are compared as
tokens. Instead of a `.tsv` there may be a `.jsonl` with one object per line whose keys are the
column names; either may be gzipped (.gz).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.json_text import parse_json
from lmlab.data.lines import Errors, ReadingReport, held_lines
from lmlab.knowledge.knowledge_base import (
    Alias,
    Entity,
    Fact,
    KnowledgeBase,
)

EXTENSIONS = (".tsv", ".jsonl", ".tsv.gz", ".jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class KnowledgeTable:
    """One of the files: its columns, of which the first `needed` are required."""

    name: str
    columns: tuple[str, ...]
    needed: int

    def find(self, folder: Path) -> Path | None:
        """The file in the folder, or None."""
        found = [p for end in EXTENSIONS if (p := folder / f"{self.name}{end}").exists()]
        if len(found) > 1:
            raise UserError(f"{found[0]} and {found[1]} are the same table; remove one of them.")
        return found[0] if found else None

    def cells(self, line: str, *, as_json: bool) -> list[Any]:
        """The columns of a line; raises a ValueError that says what is wrong."""
        if not as_json:
            cells: list[Any] = [cell.strip() for cell in line.split("\t")]
            given = len(cells)
        else:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, got {type(row).__name__}")
            given = next((n for n, key in enumerate(self.columns) if key not in row), len(row))
            cells = [row.get(key, "") for key in self.columns]
        if not self.needed <= given <= len(self.columns) or "" in cells[: self.needed]:
            least, most = self.needed, len(self.columns)
            count = f"{least} to {most}" if least < most else str(most)
            raise ValueError(f"expected {count} columns ({', '.join(self.columns)})")
        cells += [""] * (len(self.columns) - len(cells))
        texts = cells if self.columns[-1] != "count" else cells[:-1]
        if not all(isinstance(cell, str) for cell in texts):
            raise ValueError("expected strings")
        return cells


ENTITIES = KnowledgeTable(name="entities", columns=("name", "title", "description"), needed=1)
ALIASES = KnowledgeTable(name="aliases", columns=("words", "entity", "count"), needed=2)
FACTS = KnowledgeTable(name="facts", columns=("subject", "relation", "object"), needed=3)


def read_knowledge_folder(
    folder: Path, *, errors: Errors = "strict", report: ReadingReport | None = None
) -> KnowledgeBase:
    """Load the knowledge base in a folder. A bad row is an error with its file and line; with
    `errors="replace"` it is dropped and counted in `report.bad_rows`."""
    reading = _Reading(errors, ReadingReport() if report is None else report)
    where = ENTITIES.find(folder)
    if where is None:
        raise UserError(
            f"expected entities.tsv (name, title, description) or entities.jsonl in {folder}, "
            "found neither."
        )
    reading.take(ENTITIES, where, reading.entity)
    for table, take in ((ALIASES, reading.alias), (FACTS, reading.fact)):
        path = table.find(folder)
        if path is not None:
            reading.take(table, path, take)
    entities = tuple(reading.entities.values())
    if not reading.aliases and ALIASES.find(folder) is None:
        reading.aliases = [Alias(e.title or e.name, n, 1.0) for n, e in enumerate(entities)]
    return KnowledgeBase(
        entities=entities,
        relations=tuple(reading.relations),
        aliases=tuple(reading.aliases),
        facts=tuple(dict.fromkeys(reading.facts)),
    )


class _Reading:
    """Rows parsed so far."""

    def __init__(self, errors: Errors, report: ReadingReport) -> None:
        self.errors: Errors = errors
        self.report = report
        self.entities: dict[str, Entity] = {}
        self.numbers: dict[str, int] = {}
        self.relations: dict[str, int] = {}
        self.aliases: list[Alias] = []
        self.facts: list[Fact] = []

    def take(self, table: KnowledgeTable, path: Path, keep: Callable[[list[Any]], None]) -> None:
        """Pass every row of a file to `keep`, which raises a ValueError for an invalid one."""
        kept = 0
        for number, line in self._lines(path):
            try:
                keep(table.cells(line, as_json=".jsonl" in path.suffixes))
                kept += 1
            except ValueError as error:
                if self.errors == "strict":
                    raise UserError(f"{path}, line {number}: {error}.") from None
                self.report.bad_rows += 1
        if not kept:
            raise UserError(
                f"{path} has no row of {', '.join(table.columns)}; add one"
                + ("." if table is ENTITIES else ", or remove the file.")
            )

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        return ((n, line) for n, line in held_lines(path, self.report, self.errors) if line)

    def entity(self, cells: list[Any]) -> None:
        name, title, description = cells
        if name in self.numbers:
            raise ValueError(f"there is already an entity named {name!r}")
        self.numbers[name] = len(self.numbers)
        self.entities[name] = Entity(name=name, title=title, description=description)

    def alias(self, cells: list[Any]) -> None:
        words, entity, told = cells
        self.aliases.append(Alias(words, self._number(entity), _count(told)))

    def fact(self, cells: list[Any]) -> None:
        subject, relation, object = cells
        ends = self._number(subject), self._number(object)
        kind = self.relations.setdefault(relation, len(self.relations))
        self.facts.append(Fact(ends[0], kind, ends[1]))

    def _number(self, entity: str) -> int:
        if entity not in self.numbers:
            raise ValueError(f"there is no entity named {entity!r} in the entity table")
        return self.numbers[entity]


def _count(told: Any) -> float:
    if told == "":
        return 1.0
    try:
        count = float(told)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number as count, got {told!r}") from None
    if not (math.isfinite(count) and count > 0):
        raise ValueError(f"expected a count above 0, got {told!r}")
    return count
