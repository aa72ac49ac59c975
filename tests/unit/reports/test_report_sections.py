"""Report sections: curves, samples, commands and entropy floors of real runs."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.run_configs import corpus_record

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


def test_section_has_curve_sample_and_command_of_every_row(models: list[TrainedModel]) -> None:
    section = make_report_section(compare_models(models, open_corpus("markov")), models)
    names = [row.name for row in section.comparison.rows]
    assert [curve.name for curve in section.curves] == names
    assert all(curve.held_out for curve in section.curves)
    assert set(section.samples) == set(section.commands) == set(names)
    assert all(len(texts) == SAMPLE_COUNT for texts in section.samples.values())
    for model in models:
        [command] = section.commands[model.card.name]
        assert f"lmlab train {model.card.name} --data markov" in command
    text = render_report([section], title="Markov")
    assert all(sample.text.split()[0] in text for sample in section.samples["ngram"] if sample.text)


def test_entropy_floor_is_the_exact_entropy(models: list[TrainedModel]) -> None:
    truth = open_corpus("markov").truth
    expected = truth.entropy / truth.expected_tokens  # type: ignore[union-attr]
    floor = true_entropy(models[0].config)
    assert floor is not None
    assert math.isclose(floor, expected)


def test_no_entropy_floor_for_other_tokenizers_or_corpora(models: list[TrainedModel]) -> None:
    config = models[0].config
    assert true_entropy(replace(config, tokenizer="bpe")) is None
    assert true_entropy(replace(config, corpus=corpus_record("poems.txt"))) is None


def test_run_figures_are_written_to_the_run_folder(
    models: list[TrainedModel], tmp_path: Path
) -> None:
    [figure] = write_run_figures(models[1].path)
    assert figure == models[1].path / "figures" / "curves.svg"
    assert "nats per token" in figure.read_text(encoding="utf-8")
    empty = tmp_path / "run"
    empty.mkdir()
    assert write_run_figures(empty) == []
    moved = tmp_path / "another name"
    shutil.copytree(models[1].path, moved)
    [again] = write_run_figures(moved)
    assert again.read_bytes() == figure.read_bytes()


def test_markdown_table_is_written_without_figures(
    models: list[TrainedModel], tmp_path: Path
) -> None:
    out = tmp_path / "table.md"
    comparison_writer(out)(compare_models(models, open_corpus("markov")), models)
    assert out.read_text(encoding="utf-8").startswith("markov, test split")
