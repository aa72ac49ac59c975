"""`lmlab demo`, with two small trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.verbs.training import DEMO_RUNS, DemoRun, run_demo

TINY = (
    DemoRun(corpus="markov", system="ngram"),
    DemoRun(corpus="markov", system="window", settings={"width": 8, "steps": 3}),
)


def test_demo_trains_five_systems_on_each_of_two_corpora() -> None:
    by_corpus = {
        corpus: {run.system for run in DEMO_RUNS if run.corpus == corpus}
        for corpus in {run.corpus for run in DEMO_RUNS}
    }
    assert len(by_corpus) == 2
    assert {len(systems) for systems in by_corpus.values()} == {5}


def test_demo_writes_runs_and_report_and_is_repeatable(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    foreign = tmp_path / "runs" / "demo" / "mine"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("keep me")
    first = run_demo(TINY).read_text(encoding="utf-8")
    assert (tmp_path / "runs" / "demo" / "markov" / "window" / "model.safetensors").is_file()
    assert "markov, test split" in first
    run_demo(TINY)
    assert (foreign / "notes.txt").read_text() == "keep me"
    assert (tmp_path / "report.html").is_file()


def test_foreign_files_are_not_replaced(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    foreign = tmp_path / "runs" / "demo" / "markov" / "ngram"
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="move it away"):
        run_demo(TINY)
    assert (foreign / "thesis.txt").read_text() == "years of work"


def test_interrupted_training_ends_the_demo(tmp_path: Path, monkeypatch) -> None:
    from lmlab.training import train as training

    monkeypatch.chdir(tmp_path)
    started = []

    def interrupted(system: str, **words: object) -> training.TrainingResult:
        started.append(system)
        return training.TrainingResult(
            path=tmp_path,
            reason="interrupted",
            steps=1,
            epochs=0,
            seconds=1.0,
            loss=None,
            best=None,
            parameters=1,
        )

    monkeypatch.setattr(training, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_demo(TINY)
    assert started == ["ngram"]
    assert not (tmp_path / "report.html").exists()
