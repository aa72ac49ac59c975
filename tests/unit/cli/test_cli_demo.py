"""`lmlab demo`, with a plan that takes a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.cli.demo import DEMO_RUNS, DemoRun, run_demo
from lmlab.core.errors import UserError

TINY = (
    DemoRun(corpus="markov", system="ngram"),
    DemoRun(corpus="markov", system="window", settings={"width": 8, "steps": 3}),
)


def test_the_plan_has_five_systems_on_each_of_two_corpora() -> None:
    by_corpus = {
        corpus: {each.system for each in DEMO_RUNS if each.corpus == corpus}
        for corpus in {each.corpus for each in DEMO_RUNS}
    }
    assert len(by_corpus) == 2
    assert {len(systems) for systems in by_corpus.values()} == {5}


def test_it_writes_runs_and_a_report_and_can_be_repeated(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "runs" / "demo" / "mine"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("keep me")
    first = run_demo(TINY).read_text(encoding="utf-8")
    assert (tmp_path / "runs" / "demo" / "markov" / "window" / "model.safetensors").is_file()
    assert "markov, test split" in first
    run_demo(TINY)
    assert (mine / "notes.txt").read_text() == "keep me"
    assert (tmp_path / "report.html").is_file()


def test_what_is_not_its_own_is_not_replaced(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    strange = tmp_path / "runs" / "demo" / "markov" / "ngram"
    strange.mkdir(parents=True)
    (strange / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="move it away"):
        run_demo(TINY)
    assert (strange / "thesis.txt").read_text() == "years of work"


def test_ctrl_c_in_a_training_ends_all_of_it(tmp_path: Path, monkeypatch) -> None:
    from lmlab.training import train as training

    monkeypatch.chdir(tmp_path)
    begun = []

    def interrupted(system: str, **words: object) -> training.TrainingResult:
        begun.append(system)
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
    assert begun == ["ngram"]
    assert not (tmp_path / "report.html").exists()
