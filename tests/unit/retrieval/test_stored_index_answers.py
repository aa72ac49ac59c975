"""Documents of the run, of a file and of a stored index give equal answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lmlab
from lmlab.interop.text_encoders import vectors_of_model
from lmlab.retrieval.faiss_index import FaissIndex
from lmlab.retrieval.stored_index import open_index
from lmlab.sampling.question_answering import AnsweredQuestion
from lmlab.training.train import train
from lmlab.verbs.language_model import LanguageModel

PLACES = {"ann": "attic", "bob": "barn", "cid": "cellar", "dan": "garden", "eve": "hall"}
QUESTIONS = [f"where is {name}" for name in PLACES]
RAG = {"learning_rate": 0.01, "width": 32}
REALM = {"objective": "spans", "refresh": 1, "background_refresh": False}


def documents_with_titles(path: Path) -> Path:
    """The name is the title and occurs in the text; every text is truncated.

    With special tokens and title each has at least 12 tokens; 10 are encoded (`document_length`).
    """
    filler = "where it is warm and where it is dark"
    rows = [
        {"name": name, "title": name, "text": f"in the {place} is {name} {filler}"}
        for name, place in PLACES.items()
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=[("rag-token", RAG), ("realm", REALM)], ids=["rag", "realm"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("alike")
    system, settings = request.param
    lines = [f"where is {name}\t{place}\n" for name, place in PLACES.items()] * 8
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    documents = documents_with_titles(folder / "documents.jsonl")
    train(
        system,
        data=str(folder / "pairs.tsv"),
        documents=str(documents),
        out=folder / "run",
        size="tiny",
        settings={"tokens_per_batch": 400, "retrieved": 2, "document_length": 10, **settings},
        steps=30,
        quiet=True,
    )
    lmlab.index_build(documents, folder / "run", folder / "index")
    return lmlab.load(folder / "run")


def best_answer(answered: AnsweredQuestion) -> tuple[str, float, dict[str, float]]:
    """The best answer, its log-probability, and p(z | x) of its evidence documents."""
    best = answered.answers[0]
    assert best.log_prob is not None
    return (
        best.text,
        best.log_prob,
        {document.name: document.probability for document in best.evidence},
    )


def test_run_file_and_index_documents_give_equal_answers(model: LanguageModel):
    folder = model.model.path.parent
    own = model.ask(QUESTIONS)
    for source in (folder / "documents.jsonl", folder / "index"):
        for first, second in zip(own, model.ask(QUESTIONS, documents=source), strict=True):
            text, log_prob, evidence = best_answer(first)
            assert best_answer(second)[0] == text
            assert best_answer(second)[1] == pytest.approx(log_prob, abs=1e-4)
            assert best_answer(second)[2] == pytest.approx(evidence, abs=1e-4)


def test_index_vectors_equal_the_document_memory_of_the_run(model: LanguageModel):
    """All five documents are truncated to the same length."""
    folder = model.model.path.parent
    index = open_index(folder / "index")
    assert index.about.encoder is not None and index.about.encoder.max_length == 10
    assert index.about.truncated == len(PLACES)
    vectors = vectors_of_model(index, model.model)
    system: Any = model.model.system
    rebuilt = system.with_documents(index.documents)
    memory = getattr(rebuilt, "memory", None) or rebuilt.retriever.memory
    assert vectors == pytest.approx(memory.vectors.numpy(), abs=1e-5)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_faiss_index_is_searched_directly(
    model: LanguageModel, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All five documents are retrieved, so that answers are equal."""
    pytest.importorskip("faiss")
    documents = documents_with_titles(tmp_path / "documents.jsonl")
    lmlab.index_build(documents, model.model.path, tmp_path / kind, kind=kind, recall=1)
    searched: list[str] = []
    search = FaissIndex.search

    def recorded_search(self: FaissIndex, queries: Any, k: int) -> Any:
        searched.append(self.kind)
        return search(self, queries, k)

    monkeypatch.setattr(FaissIndex, "search", recorded_search)
    ours = list(map(best_answer, model.ask(QUESTIONS)))
    assert not searched
    theirs = list(map(best_answer, model.ask(QUESTIONS, documents=tmp_path / kind)))
    assert set(searched) == {kind}
    for (text, log_prob, shares), (same, log_same, shares_same) in zip(ours, theirs, strict=True):
        assert same == text
        assert log_same == pytest.approx(log_prob, abs=1e-5)
        assert shares_same == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize("system", ["rag-token", "realm"])
def test_training_with_an_ivf_index_equals_flat(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With full recall, losses and retrieved documents equal those of exact search."""
    pytest.importorskip("faiss")
    lines = [f"where is {name}\t{place}\n" for name, place in PLACES.items()] * 8
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    documents = documents_with_titles(tmp_path / "documents.jsonl")
    settings = {"retrieved": 2, "document_length": 10, "log_every": 1, "tokens_per_batch": 400}
    settings |= REALM if system == "realm" else {}
    losses: list[list[float]] = []
    for kind in ("flat", "ivf"):
        options = {"data": str(tmp_path / "pairs.tsv"), "documents": str(documents), "quiet": True}
        train(
            system,
            out=tmp_path / kind,
            size="tiny",
            settings={**settings, "index": kind},
            steps=3,
            **options,
        )
        events = list(map(json.loads, (tmp_path / kind / "metrics.jsonl").open(encoding="utf-8")))
        losses.append([event["loss"] for event in events if event["event"] == "train"])
        assert {e["recall"] for e in events if e["event"] == "looked up"} == {1.0}
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    flat, ivf = (lmlab.load(tmp_path / kind).ask(QUESTIONS) for kind in ("flat", "ivf"))
    assert [best_answer(event)[2].keys() for event in ivf] == [
        best_answer(event)[2].keys() for event in flat
    ]
    # The index built at the first search is cached and loaded from then on.
    assert (tmp_path / "ivf" / "memory" / "index.faiss").is_file()
    assert not (tmp_path / "flat" / "memory" / "index.faiss").exists()
    monkeypatch.setattr("lmlab.retrieval.faiss_index.build_faiss_index", None)
    again = lmlab.load(tmp_path / "ivf")
    assert list(map(best_answer, again.ask(QUESTIONS))) == list(map(best_answer, ivf))
    loaded: Any = again.model.system
    assert loaded.index_recall == 1.0
