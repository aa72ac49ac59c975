"""Documents and knowledge that runs are built with: found, kept in the folder, and checked."""

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


def card(*needs: str, **tries: str) -> Card:
    return Card(
        family="f",
        kind="exact",
        paper="p",
        source="s",
        protocols=(),
        needs=needs,
        default_memories=tries,
    )


def save(memories: ExternalMemory, folder: Path) -> None:
    for name, part in memories.given().items():
        (folder / MEMORY_FILES[name]).write_bytes(part.to_bytes())


def test_what_is_given_comes_before_what_the_card_tries(tmp_path: Path):
    file = tmp_path / "notes.txt"
    file.write_text("one\n\ntwo\n", encoding="utf-8")
    reads = card("documents", documents="capitals")
    found = resolve_external_memory(reads, {"documents": str(file)}, None, tmp_path / "memory")
    assert found.documents is not None and [d.text for d in found.documents] == ["one", "two"]
    own = resolve_external_memory(reads, {"documents": None}, None, tmp_path / "memory")
    assert own.documents == load_documents("capitals") and own.knowledge is None


def test_a_system_that_looks_nothing_up_gets_nothing(tmp_path: Path):
    assert resolve_external_memory(card(), {}, None, tmp_path).given() == {}
    assert tiny_external_memory(card("knowledge")).given() == {
        "knowledge": load_knowledge("capitals")
    }


def test_they_are_saved_and_loaded_and_a_change_is_noticed(tmp_path: Path):
    documents = Documents([Document(name="a", text="first"), Document(name="b", text="second")])
    knowledge = KnowledgeBase(
        entities=(Entity(name="x", title="X", description="an x"), Entity(name="y")),
        relations=("likes",),
        facts=(Fact(0, 0, 1),),
    )
    kept = ExternalMemory(documents=documents, knowledge=knowledge)
    save(kept, tmp_path)
    config = {"memories": kept.describe({"documents": "notes.txt"})}
    assert config["memories"]["documents"]["spec"] == "notes.txt"
    again = load_external_memory(config, tmp_path)
    assert again.documents is not None and list(again.documents) == list(documents)
    assert again.knowledge == knowledge

    (tmp_path / "documents.jsonl.gz").write_bytes(
        documents.replacing(Document(name="b", text="third")).to_bytes()
    )
    with pytest.raises(UserError, match=r"documents.jsonl.gz is not what the run was trained with"):
        load_external_memory(config, tmp_path)
    (tmp_path / "knowledge.json.gz").write_bytes(knowledge.to_bytes()[:30])
    with pytest.raises(UserError, match=r"knowledge.json.gz is damaged"):
        load_external_memory({"memories": {"knowledge": config["memories"]["knowledge"]}}, tmp_path)
    (tmp_path / "documents.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"has no documents.jsonl.gz any more"):
        load_external_memory(config, tmp_path)


def test_a_resumed_run_keeps_its_own_and_refuses_others(tmp_path: Path):
    kept = ExternalMemory(documents=load_documents("capitals"))
    save(kept, tmp_path)
    before = {"memories": kept.describe({"documents": "capitals"})}
    file = tmp_path / "notes.txt"
    file.write_text("one\n", encoding="utf-8")
    reads = card("documents")
    assert resolve_external_memory(reads, {}, before, tmp_path).documents is not None
    with pytest.raises(UserError, match="started with other documents than"):
        resolve_external_memory(reads, {"documents": str(file)}, before, tmp_path)
