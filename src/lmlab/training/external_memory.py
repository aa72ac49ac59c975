"""What a run remembers beside its weights: documents and knowledge, kept in its folder.

RUN/memory/  documents.jsonl.gz  knowledge.json.gz
             index.faiss and index.json where documents are searched by ivf or hnsw (`KeptIndex`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.knowledge.knowledge_base import Knowledge
from lmlab.knowledge.load_knowledge import open_knowledge
from lmlab.retrieval.documents import Documents, open_documents


@dataclass(frozen=True, kw_only=True, eq=False)
class Memories:
    """What a system is built with, for those that look things up; None for what it has no use."""

    documents: Documents | None = None
    knowledge: Knowledge | None = None

    def given(self) -> dict[str, Any]:
        """What there is, by the names that `build` takes it by."""
        every = {"documents": self.documents, "knowledge": self.knowledge}
        return {name: part for name, part in every.items() if part is not None}

    def describe(self, specs: Mapping[str, str | None]) -> dict[str, Any]:
        """What config.json tells of it: where each part came from, and a hash of its content."""
        return {
            name: {"spec": specs.get(name) or "", "fingerprint": part.fingerprint()}
            for name, part in self.given().items()
        }


FILES = {"documents": "documents.jsonl.gz", "knowledge": "knowledge.json.gz"}
DEFAULTS = {"documents": "capitals", "knowledge": "capitals"}
"""What a system that needs some is built with in tests and pictures."""


def find_memories(
    card: Card, specs: Mapping[str, str | None], before: Mapping[str, Any] | None, folder: Path
) -> Memories:
    """What is given, or what the card says it is tried on; of a run that is resumed, its own."""
    if before is not None and (kept := load_memories(before, folder)).given():
        for name, part in kept.given().items():
            spec = specs.get(name)
            if spec is not None and OPEN[name](spec).fingerprint() != part.fingerprint():
                raise UserError(
                    f"this run was begun with other {name} than {spec}; resume it unchanged, or "
                    "choose another --out."
                )
        return kept
    chosen = {name: specs.get(name) or default_spec(card, name) for name in FILES}
    opened = {
        name: OPEN[name](spec) for name, spec in chosen.items() if spec and name in card.needs
    }
    return Memories(**opened)


def default_spec(card: Card, name: str) -> str:
    """What a system looks things up in unless told otherwise: see `Card.tries`."""
    if name not in card.needs:
        return ""
    return card.tries.get(name, DEFAULTS[name])


def tiny_memories(card: Card) -> Memories:
    """What a system is built with where nobody said."""
    return Memories(**{name: OPEN[name](DEFAULTS[name]) for name in FILES if name in card.needs})


def load_memories(config: Mapping[str, Any], folder: Path) -> Memories:
    """What a run was built with, from its folder."""
    kept: dict[str, Any] = {}
    for name in config.get("memories", {}):
        path = folder / FILES[name]
        if not path.exists():
            raise UserError(f"the run {folder.parent} has lost its {path.name}; train it again.")
        if name == "documents":
            kept[name] = open_documents(path)
        else:
            kept[name] = Knowledge.from_bytes(path.read_bytes(), where=path)
        if kept[name].fingerprint() != config["memories"][name]["fingerprint"]:
            raise UserError(
                f"{path} is not what the run was trained with; restore it, or train the run again."
            )
    return Memories(**kept)


OPEN: dict[str, Any] = {"documents": open_documents, "knowledge": open_knowledge}
