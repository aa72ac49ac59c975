"""Knowledge base: entities, aliases and facts (subject, relation, object)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lmlab.core.errors import UserError, nearest_names
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.untrusted_input import parse_json, unpack_gzip


@runtime_checkable
class BatchTokenizer(Protocol):
    """A tokenizer with a fast method for many texts."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...


def batch_encode(tokenizer: TokenizerProtocol, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text."""
    if isinstance(tokenizer, BatchTokenizer):
        return tokenizer.encode_batch(texts)
    return [tokenizer.encode(text) for text in texts]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entity:
    """An entity: a thing or a word sense."""

    name: str
    """Unique identifier: a synset's id, `Q142`."""
    title: str = ""
    """Display name; the identifier, if empty."""
    description: str = ""
    """Description in a sentence; may be empty."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A surface form of an entity, and how often it is used."""

    words: str
    entity: int
    count: float
    """Occurrences of the words with this entity; priors are computed from these."""


@dataclass(frozen=True, slots=True)
class Fact:
    """(subject, relation, object) ids."""

    subject: int
    relation: int
    object: int


@dataclass(frozen=True, kw_only=True)
class KnowledgeBase:
    """Entities, relations and facts, by id."""

    entities: tuple[Entity, ...]
    relations: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()
    facts: tuple[Fact, ...] = ()
    sources: tuple[int, ...] = ()
    """Numbers of entities of the knowledge bases that were joined, in order; empty for one."""

    def __post_init__(self) -> None:
        if not self.entities:
            raise UserError("the knowledge has no entities; give at least one.")
        if len(self.numbers) < len(self.entities):
            raise UserError("two entities have the same name; names must be unique.")

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Entity ids by name."""
        return {entity.name: number for number, entity in enumerate(self.entities)}

    def number(self, name: str) -> int:
        """The id of an entity; raises a UserError if there is none."""
        if name not in self.numbers:
            raise UserError(f"the knowledge has no entity {name!r}; check its name.")
        return self.numbers[name]

    def find(self, name: str) -> int:
        """The id of the entity with this name, or with this title if it is unique."""
        if name in self.numbers:
            return self.numbers[name]
        matches = [number for number, entity in enumerate(self.entities) if entity.title == name]
        if not matches:
            close = nearest_names(name, {entity.title or entity.name for entity in self.entities})
            suggestions = " or ".join(map(repr, close))
            hint = f"did you mean {suggestions}?" if close else "check its name."
            raise UserError(f"the knowledge has no entity {name!r}; {hint}")
        if len(matches) > 1:
            names = ", ".join(self.entities[number].name for number in matches[:4])
            raise UserError(f"several entities have the title {name!r}; give a name ({names}).")
        return matches[0]

    def relation(self, name: str) -> int:
        """The id of a relation; raises a UserError that lists the existing ones."""
        if name not in self.relations:
            existing = ", ".join(self.relations[:8])
            raise UserError(f"the knowledge has no relation {name!r}; it has {existing}.")
        return self.relations.index(name)

    @cached_property
    def objects(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """Objects of each (subject, relation) that has any, in the order of the facts."""
        by_key: dict[tuple[int, int], dict[int, None]] = {}
        for fact in self.facts:
            by_key.setdefault((fact.subject, fact.relation), {})[fact.object] = None
        return {key: tuple(objects) for key, objects in by_key.items()}

    def fingerprint(self) -> str:
        """Hash of all content; cached."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.blake2b(self._to_json(), digest_size=16).hexdigest()

    def to_bytes(self) -> bytes:
        """Compressed JSON, deterministic."""
        # The data is large: higher gzip levels take many times as long for a tenth less.
        return gzip.compress(self._to_json(), compresslevel=4, mtime=0)

    def _to_json(self) -> bytes:
        content: dict[str, Any] = {
            "entities": [[e.name, e.title, e.description] for e in self.entities],
            "relations": list(self.relations),
            "aliases": [[a.words, a.entity, a.count] for a in self.aliases],
            "facts": [[f.subject, f.relation, f.object] for f in self.facts],
        }
        if self.sources:
            content["sources"] = list(self.sources)
        return json.dumps(content, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, packed: bytes, *, where: Path | str) -> KnowledgeBase:
        """Load what `to_bytes` gave; raises a UserError that names `where` if it is damaged."""
        try:
            content: dict[str, Any] = parse_json(unpack_gzip(packed, name=str(where)))
            return cls(
                entities=tuple(
                    Entity(name=name, title=title, description=description)
                    for name, title, description in content["entities"]
                ),
                relations=tuple(map(str, content["relations"])),
                aliases=tuple(Alias(*fields) for fields in content["aliases"]),
                facts=tuple(Fact(*fields) for fields in content["facts"]),
                sources=_checked_sources(content.get("sources", []), len(content["entities"])),
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{where} is damaged ({error}); train the run again.") from error


def _checked_sources(sources: Sequence[Any], entities: int) -> tuple[int, ...]:
    """The numbers of entities of joined knowledge bases; a ValueError if they do not fit."""
    counts = tuple(sources)
    if any(type(count) is not int or count < 1 for count in counts):
        raise ValueError("sources must be numbers of entities")
    if counts and sum(counts) != entities:
        raise ValueError(f"sources have {sum(counts)} entities, and there are {entities}")
    return counts
