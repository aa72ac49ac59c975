"""Loading of knowledge bases: built-in ones (capitals, WordNet), or a folder of tables.

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
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.core.untrusted_input import parse_json
from lmlab.data.countries import Country, country_table
from lmlab.data.languages.capitals_annotated import countries_with_capital_unstated
from lmlab.data.lines import Errors, ReadingReport, check_errors, held_lines
from lmlab.knowledge.joined_knowledge import join_knowledge
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact, KnowledgeBase
from lmlab.knowledge.wordnet_knowledge import all_synsets, common_synsets, letter_synsets

CAPITAL_RELATIONS = ("capital", "capital of", "city", "city of", "in Chinese", "in English")
"""Relations; each is followed by its inverse."""


@cache
def capitals_knowledge() -> KnowledgeBase:
    """Countries, their capitals and other cities, which belongs to which, and their Chinese names.

    A Chinese name is an entity of its own, so that naming is a relation too.
    """
    names: dict[str, None] = {}
    for row in country_table():
        names.update(dict.fromkeys((row.country_en, row.capital_en)))
    names.update(dict.fromkeys(row.city_en for row in country_table() if row.city_en))
    for row in country_table():
        names.update(dict.fromkeys((row.country_zh, row.capital_zh)))
    numbers = {name: number for number, name in enumerate(names)}
    return KnowledgeBase(
        entities=tuple(Entity(name=name, title=name) for name in names),
        relations=CAPITAL_RELATIONS,
        aliases=tuple(Alias(name, number, 1.0) for name, number in numbers.items()),
        facts=tuple(
            dict.fromkeys(fact for row in country_table() for fact in _facts(row, numbers))
        ),
    )


@cache
def stated_capitals_knowledge() -> KnowledgeBase:
    """The same without the capitals that the corpus `capitals-annotated` does not state."""
    full = capitals_knowledge()
    unstated = {full.number(row.country_en) for row in countries_with_capital_unstated()}
    return replace(full, facts=tuple(f for f in full.facts if not _has_capital(f, unstated)))


def _facts(country: Country, numbers: dict[str, int]) -> list[Fact]:
    """Facts of a country, in both directions."""
    triples = (
        (country.country_en, "capital", country.capital_en),
        (country.country_en, "city", country.city_en),
        (country.country_en, "in Chinese", country.country_zh),
        (country.capital_en, "in Chinese", country.capital_zh),
    )
    facts = []
    for subject, name, object in triples:
        if object:
            relation, pair = CAPITAL_RELATIONS.index(name), (numbers[subject], numbers[object])
            facts.append(Fact(pair[0], relation, pair[1]))
            facts.append(Fact(pair[1], relation + 1, pair[0]))
    return facts


def _has_capital(fact: Fact, countries: Collection[int]) -> bool:
    """Whether a fact states the capital of one of some countries, in either direction."""
    if fact.relation == CAPITAL_RELATIONS.index("capital"):
        return fact.subject in countries
    return fact.relation == CAPITAL_RELATIONS.index("capital of") and fact.object in countries


EXTENSIONS = (".tsv", ".jsonl", ".tsv.gz", ".jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class KnowledgeTable:
    """One of the files: its columns, of which the first `needed` are required."""

    name: str
    columns: tuple[str, ...]
    needed: int

    def find(self, folder: Path) -> Path | None:
        """The file in the folder, or None."""
        paths = [p for end in EXTENSIONS if (p := folder / f"{self.name}{end}").exists()]
        if len(paths) > 1:
            raise UserError(f"{paths[0]} and {paths[1]} are the same table; remove one of them.")
        return paths[0] if paths else None

    def cells(self, line: str, *, as_json: bool) -> list[Any]:
        """The columns of a line; raises a ValueError that says what is wrong."""
        if not as_json:
            cells: list[Any] = [cell.strip() for cell in line.split("\t")]
            width = len(cells)
        else:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, got {type(row).__name__}")
            width = next((n for n, key in enumerate(self.columns) if key not in row), len(row))
            cells = [row.get(key, "") for key in self.columns]
        if not self.needed <= width <= len(self.columns) or "" in cells[: self.needed]:
            low, high = self.needed, len(self.columns)
            count = f"{low} to {high}" if low < high else str(high)
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
    reading = _TableReader(errors, ReadingReport() if report is None else report)
    where = ENTITIES.find(folder)
    if where is None:
        raise UserError(
            f"expected entities.tsv (name, title, description) or entities.jsonl in {folder}, "
            "found neither."
        )
    reading.take(ENTITIES, where, reading.entity)
    for table, add_row in ((ALIASES, reading.alias), (FACTS, reading.fact)):
        path = table.find(folder)
        if path is not None:
            reading.take(table, path, add_row)
    entities = tuple(reading.entities.values())
    if not reading.aliases and ALIASES.find(folder) is None:
        reading.aliases = [Alias(e.title or e.name, n, 1.0) for n, e in enumerate(entities)]
    return KnowledgeBase(
        entities=entities,
        relations=tuple(reading.relations),
        aliases=tuple(reading.aliases),
        facts=tuple(dict.fromkeys(reading.facts)),
    )


class _TableReader:
    """Rows parsed so far."""

    def __init__(self, errors: Errors, report: ReadingReport) -> None:
        self.errors: Errors = errors
        self.report = report
        self.entities: dict[str, Entity] = {}
        self.numbers: dict[str, int] = {}
        self.relations: dict[str, int] = {}
        self.aliases: list[Alias] = []
        self.facts: list[Fact] = []

    def take(self, table: KnowledgeTable, path: Path, add_row: Callable[[list[Any]], None]) -> None:
        """Pass every row of a file to `add_row`, which raises a ValueError for an invalid one."""
        accepted = 0
        for number, line in held_lines(path, self.report, self.errors):
            if not line:
                continue
            try:
                add_row(table.cells(line, as_json=".jsonl" in path.suffixes))
                accepted += 1
            except ValueError as error:
                if self.errors == "strict":
                    raise UserError(f"{path}, line {number}: {error}.") from None
                self.report.bad_rows += 1
        if not accepted:
            raise UserError(
                f"{path} has no row of {', '.join(table.columns)}; add one"
                + ("." if table is ENTITIES else ", or remove the file.")
            )

    def entity(self, cells: list[Any]) -> None:
        name, title, description = cells
        if name in self.numbers:
            raise ValueError(f"there is already an entity named {name!r}")
        self.numbers[name] = len(self.numbers)
        self.entities[name] = Entity(name=name, title=title, description=description)

    def alias(self, cells: list[Any]) -> None:
        words, entity, count = cells
        self.aliases.append(Alias(words, self._number(entity), _parse_count(count)))

    def fact(self, cells: list[Any]) -> None:
        subject, relation, object = cells
        ends = self._number(subject), self._number(object)
        kind = self.relations.setdefault(relation, len(self.relations))
        self.facts.append(Fact(ends[0], kind, ends[1]))

    def _number(self, entity: str) -> int:
        if entity not in self.numbers:
            raise ValueError(f"there is no entity named {entity!r} in the entity table")
        return self.numbers[entity]


def _parse_count(value: Any) -> float:
    if value == "":
        return 1.0
    try:
        count = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number as count, got {value!r}") from None
    if not (math.isfinite(count) and count > 0):
        raise ValueError(f"expected a count above 0, got {value!r}")
    return count


JOINED_BY = "+"
"""Between the names or folders of several knowledge bases."""


def load_knowledge(
    spec: str | Path, *, errors: str = "strict", report: ReadingReport | None = None
) -> KnowledgeBase:
    """Load the knowledge base that a specification names.

    A built-in one, or a folder of tables, or several joined by +; for `errors` and `report` see
    `read_knowledge_folder`.
    """
    names = str(spec).split(JOINED_BY)
    if len(names) > 1 and not Path(spec).expanduser().exists():
        parts = [_load_one(name.strip(), errors, report) for name in names]
        return join_knowledge(parts)
    return _load_one(spec, errors, report)


def _load_one(spec: str | Path, errors: str, report: ReadingReport | None) -> KnowledgeBase:
    """A single knowledge base."""
    if str(spec) in BUILTIN_KNOWLEDGE:
        return BUILTIN_KNOWLEDGE[str(spec)]()
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return read_knowledge_folder(folder, errors=check_errors(errors), report=report)
    if folder.exists():
        raise UserError(
            "knowledge must be a folder with entities.tsv, aliases.tsv and facts.tsv, got the "
            f"file {spec}; give the folder."
        )
    raise unknown_name_or_path("knowledge or folder", str(spec), BUILTIN_KNOWLEDGE)


BUILTIN_KNOWLEDGE: dict[str, Callable[[], KnowledgeBase]] = {
    "capitals": capitals_knowledge,
    "capitals-annotated": stated_capitals_knowledge,
    "wordnet": all_synsets,
    "wordnet-common": common_synsets,
    "wordnet-letters": letter_synsets,
}
