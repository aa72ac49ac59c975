"""What a report shows beside the figures: curves, samples and commands of real runs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from lmlab.data.corpus import open_corpus
from lmlab.reports.comparison_files import comparison_writer
from lmlab.reports.html_report import render_report
from lmlab.reports.report_sections import (
    SAMPLE_COUNT,
    make_report_section,
    true_entropy,
    write_run_figures,
)
from lmlab.scoring.model_comparison import compare_models
from lmlab.training.run_folder import TrainedModel, load_run
from lmlab.training.train import train


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[TrainedModel]:
    folder = tmp_path_factory.mktemp("runs")
    for system in ("ngram", "rnn"):
        train(system, data="markov", out=folder / system, size="tiny", steps=3, quiet=True)
    return [load_run(folder / "ngram"), load_run(folder / "rnn")]


def test_a_chapter_holds_something_of_every_row(models: list[TrainedModel]) -> None:
    found = make_report_section(compare_models(models, open_corpus("markov")), models)
    names = [row.name for row in found.comparison.rows]
    assert [curve.name for curve in found.curves] == names
    assert all(curve.held_out for curve in found.curves)
    assert set(found.samples) == set(found.commands) == set(names)
    assert all(len(texts) == SAMPLE_COUNT for texts in found.samples.values())
    for model in models:
        [command] = found.commands[model.card.name]
        assert f"lmlab train {model.card.name} --data markov" in command
    text = render_report([found], title="Markov")
    assert all(sample.text.split()[0] in text for sample in found.samples["ngram"] if sample.text)


def test_the_floor_of_the_curves_is_the_exact_entropy(models: list[TrainedModel]) -> None:
    truth = open_corpus("markov").truth
    expected = truth.entropy / truth.expected_tokens  # type: ignore[union-attr]
    found = true_entropy(models[0].config)
    assert found is not None
    assert math.isclose(found, expected)


def test_there_is_no_floor_for_other_tokens_or_other_text(models: list[TrainedModel]) -> None:
    config = models[0].config
    assert true_entropy(config | {"tokenizer": "bpe"}) is None
    assert true_entropy(config | {"corpus": {"spec": "poems.txt", "seed": 0}}) is None


def test_figures_of_a_run(models: list[TrainedModel], tmp_path: Path) -> None:
    [picture] = write_run_figures(models[1].path)
    assert picture == models[1].path / "figures" / "curves.svg"
    assert "nats per token" in picture.read_text(encoding="utf-8")
    empty = tmp_path / "run"
    empty.mkdir()
    assert write_run_figures(empty) == []
    moved = tmp_path / "another name"
    shutil.copytree(models[1].path, moved)
    [again] = write_run_figures(moved)
    assert again.read_bytes() == picture.read_bytes()


def test_a_table_needs_no_pictures(models: list[TrainedModel], tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    comparison_writer(out)(compare_models(models, open_corpus("markov")), models)
    assert out.read_text(encoding="utf-8").startswith("markov, test split")
