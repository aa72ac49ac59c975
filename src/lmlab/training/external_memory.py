"""Documents and knowledge base of a run: choose (given, default, resumed), load, verify by hash.

RUN/memory/  documents.jsonl.gz  knowledge.json.gz
             index.faiss and index.json with approximate search by ivf or hnsw (`CachedIndex`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.knowledge.knowledge_base import KnowledgeBase
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.retrieval.documents import Documents, load_documents
from lmlab.training.run_records import MemoryRecord


@dataclass(frozen=True, kw_only=True, eq=False)
class ExternalMemory:
    """Documents and knowledge base of a system; None for what it does not use."""

    documents: Documents | None = None
    knowledge: KnowledgeBase | None = None

    def given(self) -> dict[str, Any]:
        """The parts that exist, by the parameter names of `build`."""
        parts = {"documents": self.documents, "knowledge": self.knowledge}
        return {name: part for name, part in parts.items() if part is not None}

    def describe(self, specs: Mapping[str, str | None]) -> dict[str, MemoryRecord]:
        """Its entry in config.json: the source of each part, and a hash of its content."""
        return {
            name: MemoryRecord(spec=specs.get(name) or "", fingerprint=part.fingerprint())
            for name, part in self.given().items()
        }


MEMORY_FILES = {"documents": "documents.jsonl.gz", "knowledge": "knowledge.json.gz"}
DEFAULT_MEMORY = {"documents": "capitals", "knowledge": "capitals"}
"""Default memories, for tests and figures."""


def resolve_external_memory(
    card: Card, specs: Mapping[str, str | None], recorded: Mapping[str, MemoryRecord], folder: Path
) -> ExternalMemory:
    """The memories given, or the card's defaults; for a resumed run, those that it `recorded`."""
    if (stored := load_external_memory(recorded, folder)).given():
        for name, part in stored.given().items():
            spec = specs.get(name)
            if spec is not None and LOADERS[name](spec).fingerprint() != part.fingerprint():
                raise UserError(
                    f"this run was started with other {name} than {spec}; resume it "
                    "unchanged, or choose another --out."
                )
        return stored
    chosen = {name: specs.get(name) or default_spec(card, name) for name in MEMORY_FILES}
    loaded = {
        name: LOADERS[name](spec) for name, spec in chosen.items() if spec and name in card.needs
    }
    return ExternalMemory(**loaded)


def default_spec(card: Card, name: str) -> str:
    """The default documents or knowledge of a system: see `Card.default_memories`."""
    if name not in card.needs:
        return ""
    return card.default_memories.get(name, DEFAULT_MEMORY[name])


def tiny_external_memory(card: Card) -> ExternalMemory:
    """The small default memories that a system needs."""
    return ExternalMemory(
        **{name: LOADERS[name](DEFAULT_MEMORY[name]) for name in MEMORY_FILES if name in card.needs}
    )


def load_external_memory(recorded: Mapping[str, MemoryRecord], folder: Path) -> ExternalMemory:
    """The memories that a run's config records, from its folder."""
    loaded: dict[str, Any] = {}
    for name, memory in recorded.items():
        path = folder / MEMORY_FILES[name]
        if not path.exists():
            raise UserError(f"the run {folder.parent} has no {path.name} any more; train it again.")
        if name == "documents":
            loaded[name] = load_documents(path)
        else:
            loaded[name] = KnowledgeBase.from_bytes(path.read_bytes(), where=path)
        if loaded[name].fingerprint() != memory.fingerprint:
            raise UserError(
                f"{path} is not what the run was trained with; restore it, or train the run again."
            )
    return ExternalMemory(**loaded)


LOADERS: dict[str, Any] = {"documents": load_documents, "knowledge": load_knowledge}
