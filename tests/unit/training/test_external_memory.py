"""External memory of runs (documents, knowledge): resolved, stored in the run and verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.knowledge.knowledge_base import Entity, Fact, KnowledgeBase
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.retrieval.documents import Document, Documents, load_documents
from lmlab.training.external_memory import (
    MEMORY_FILES,
    ExternalMemory,
    load_external_memory,
    resolve_external_memory,
    tiny_external_memory,
)


def card(*needs: str, **defaults: str) -> Card:
    return Card(
        family="f",
        kind="exact",
        paper="p",
        source="s",
        protocols=(),
        needs=needs,
        default_memories=defaults,
    )


def save(memory: ExternalMemory, folder: Path) -> None:
    for name, part in memory.given().items():
        (folder / MEMORY_FILES[name]).write_bytes(part.to_bytes())


def test_given_memory_overrides_the_card_default(tmp_path: Path):
    file = tmp_path / "notes.txt"
    file.write_text("one\n\ntwo\n", encoding="utf-8")
    retrieving_card = card("documents", documents="capitals")
    resolved = resolve_external_memory(
        retrieving_card, {"documents": str(file)}, {}, tmp_path / "memory"
    )
    assert resolved.documents is not None and [d.text for d in resolved.documents] == ["one", "two"]
    default = resolve_external_memory(retrieving_card, {"documents": None}, {}, tmp_path / "memory")
    assert default.documents == load_documents("capitals") and default.knowledge is None


def test_system_without_memory_needs_gets_none(tmp_path: Path):
    assert resolve_external_memory(card(), {}, {}, tmp_path).given() == {}
    assert tiny_external_memory(card("knowledge")).given() == {
        "knowledge": load_knowledge("capitals")
    }


def test_memory_round_trips_and_changes_are_detected(tmp_path: Path):
    documents = Documents([Document(name="a", text="first"), Document(name="b", text="second")])
    knowledge = KnowledgeBase(
        entities=(Entity(name="x", title="X", description="an x"), Entity(name="y")),
        relations=("likes",),
        facts=(Fact(0, 0, 1),),
    )
    memory = ExternalMemory(documents=documents, knowledge=knowledge)
    save(memory, tmp_path)
    recorded = memory.describe({"documents": "notes.txt"})
    assert recorded["documents"].spec == "notes.txt"
    loaded = load_external_memory(recorded, tmp_path)
    assert loaded.documents is not None and list(loaded.documents) == list(documents)
    assert loaded.knowledge == knowledge

    (tmp_path / "documents.jsonl.gz").write_bytes(
        documents.replacing(Document(name="b", text="third")).to_bytes()
    )
    with pytest.raises(UserError, match=r"documents.jsonl.gz is not what the run was trained with"):
        load_external_memory(recorded, tmp_path)
    (tmp_path / "knowledge.json.gz").write_bytes(knowledge.to_bytes()[:30])
    with pytest.raises(UserError, match=r"knowledge.json.gz is damaged"):
        load_external_memory({"knowledge": recorded["knowledge"]}, tmp_path)
    (tmp_path / "documents.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"has no documents.jsonl.gz any more"):
        load_external_memory(recorded, tmp_path)


def test_resumed_run_keeps_its_memory_and_rejects_others(tmp_path: Path):
    memory = ExternalMemory(documents=load_documents("capitals"))
    save(memory, tmp_path)
    before = memory.describe({"documents": "capitals"})
    file = tmp_path / "notes.txt"
    file.write_text("one\n", encoding="utf-8")
    retrieving_card = card("documents")
    assert resolve_external_memory(retrieving_card, {}, before, tmp_path).documents is not None
    with pytest.raises(UserError, match="started with other documents than"):
        resolve_external_memory(retrieving_card, {"documents": str(file)}, before, tmp_path)
