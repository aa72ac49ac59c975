"""Inspected models: the objective of a loaded run gets its tokenizer, corpus and index."""

from __future__ import annotations

from pathlib import Path

import torch

from lmlab.core.batch import Batch
from lmlab.inspection.inspected_models import make_inspected_model
from lmlab.training.run_folder import load_run
from lmlab.training.train import train

LINES = ["unhappiness is unkind", "kindness is happiness"] * 6
TINY = {"size": "tiny", "steps": 1, "quiet": True, "tokenizer": "wordpiece"}


def test_inspection_gives_whole_word_units_to_the_objective(tmp_path: Path):
    (tmp_path / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    train("bert-wwm", data=tmp_path / "corpus.txt", out=tmp_path / "run", **TINY)
    model = load_run(tmp_path / "run")
    ids = [2, *model.tokenizer.encode("knasid"), 3]  # known characters, no known word
    batch = Batch.collate([ids], pad=0)
    allowed = torch.tensor([[0 < position < len(ids) - 1 for position in range(len(ids))]])
    units = model.system.objective.units
    pieces = len(ids) - 2
    assert pieces > 1, "the word must be one of several pieces"
    assert (
        int(units.starts(batch, allowed).sum()) == pieces
    )  # not set up yet: each subword by itself
    make_inspected_model(model, ["kindness is happiness"])
    assert int(units.starts(batch, allowed).sum()) == 1


def test_missing_mention_file_is_noted(tmp_path: Path):
    (tmp_path / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    names = tmp_path / "names.txt"
    names.write_text("kindness\n", encoding="utf-8")
    settings = {"mentions": str(names)}
    train("ernie", data=tmp_path / "corpus.txt", out=tmp_path / "run", settings=settings, **TINY)
    names.unlink()
    inspected = make_inspected_model(load_run(tmp_path / "run"), ["kindness is happiness"])
    assert inspected.note.startswith("Figures of run show single tokens where it masks names: ")


def test_inspection_leaves_the_loaded_index_unchanged(tmp_path: Path):
    (tmp_path / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    documents_text = ["kindness is unhappiness", "happiness is unkind"]
    (tmp_path / "documents.txt").write_text("\n".join(documents_text) + "\n", encoding="utf-8")
    documents = str(tmp_path / "documents.txt")
    train("realm", data=tmp_path / "corpus.txt", documents=documents, out=tmp_path / "run", **TINY)
    model = load_run(tmp_path / "run")
    loaded = model.system.retriever.memory.vectors.clone()
    assert loaded.shape[0] == len(documents_text) and loaded.any(1).all()
    make_inspected_model(model, ["kindness is happiness"])
    assert torch.equal(model.system.retriever.memory.vectors, loaded)
