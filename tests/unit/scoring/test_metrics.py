"""Metrics of a comparison: one file adds a column to every output."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lmlab.core.errors import UserError
from lmlab.core.score import NORMALISED_KINDS, SCORE_KINDS
from lmlab.data.corpus import Corpus, Layout, Split
from lmlab.reports.html_report import render_report
from lmlab.reports.report_sections import ReportSection
from lmlab.scoring import metrics
from lmlab.scoring.comparison_records import FIRST_KEYS, Comparison
from lmlab.scoring.comparison_tables import (
    comparison_json,
    latex,
    markdown,
    rich_differences,
    rich_table,
)
from lmlab.scoring.metric_registry import all_metrics
from lmlab.scoring.model_comparison import compare_models
from lmlab.scoring.scorer import Scorer

WORST_TOKEN = '''
"""Log-probability of a text's least probable token."""

import numpy as np

from lmlab.scoring.metric import Column, Metric, PairedTest

METRIC = Metric(
    name="worst_token",
    explanation="worst token is the log-probability of a text's least probable token",
    compute=lambda runs: runs.mean(lambda run: float(run.per_text["worst_token"].mean())),
    kinds=frozenset({"exact"}),
    per_text=lambda score: min(token.log_prob for token in score.per_token),
    reads_tokens=True,
    lower_is_better=False,
    table=Column(title="worst token", order=100, digits=3),
    test=PairedTest(
        totals=lambda run: run.per_text["worst_token"],
        counts=lambda run: np.ones(len(run.totals)),
        quantity="worst_token",
        unit="text",
    ),
    row_notes=lambda row: [f"{row.name} has a worst token."],
    notes=lambda rows, corpus: [f"{len(rows)} worst tokens of {corpus.name}."],
)
'''


@pytest.fixture
def worst_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A further file in the folder of metrics."""
    (tmp_path / "worst_token.py").write_text(WORST_TOKEN, encoding="utf-8")
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])


@pytest.fixture
def corpus(sentences: list[str]) -> Corpus:
    splits = {
        name: Split.from_list(sentences, identity=name, name=name) for name in ("train", "test")
    }
    return Corpus(name="animals", splits=splits)


@pytest.fixture
def runs(word_tokenizer: Any, tiny_recurrent: Any, fake_model: Callable[..., Any]) -> list[Any]:
    systems = [tiny_recurrent(word_tokenizer.vocabulary, seed=seed) for seed in range(2)]
    return [
        fake_model(name, name, system, word_tokenizer)
        for name, system in zip(("gru", "lstm"), systems, strict=True)
    ]


def terminal_text(comparison: Comparison) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rich_table(comparison))
    console.print(*rich_differences(comparison))
    return console.export_text()


def outputs(comparison: Comparison) -> Iterator[str]:
    """The comparison as the terminal, Markdown, LaTeX and the report show it."""
    yield terminal_text(comparison)
    yield markdown(comparison)
    yield latex(comparison)
    yield render_report([ReportSection(comparison=comparison)], title="Animals")


def expected_worst(model: Any, sentences: list[str]) -> float:
    scores = [Scorer(model.system, model.tokenizer, Layout()).score_one(text) for text in sentences]
    return sum(min(token.log_prob for token in score.per_token) for score in scores) / len(scores)


@pytest.mark.usefixtures("worst_token")
def test_one_file_adds_a_column_to_every_output(
    runs: list[Any], corpus: Corpus, sentences: list[str]
) -> None:
    comparison = compare_models(runs, corpus)
    expected = {model.card.name: expected_worst(model, sentences) for model in runs}
    assert expected["gru"] != pytest.approx(expected["lstm"], abs=1e-3)
    for row in comparison.rows:
        assert row["worst_token"] == pytest.approx(expected[row.name], abs=1e-6)
    document = json.loads(json.dumps(comparison_json(comparison)))
    assert {row["name"]: row["worst_token"] for row in document["rows"]} == {
        row.name: row["worst_token"] for row in comparison.rows
    }
    for text in outputs(comparison):
        assert "worst token" in text
        for value in expected.values():
            assert f"{value:.3f}" in text.replace("−", "-")
    for text in (*list(outputs(comparison))[1:], " ".join(comparison.notes)):
        plain = re.sub(r"\\", "", text)
        assert "gru has a worst token." in plain and "2 worst tokens of animals." in plain
    report = render_report([ReportSection(comparison=comparison)], title="Animals")
    assert "Worst token is the log-probability of a text&#x27;s least" in report
    assert "Lower is better but for worst token." in report


@pytest.mark.usefixtures("worst_token")
def test_differences_of_a_further_metric_are_tested(runs: list[Any], corpus: Corpus) -> None:
    comparison = compare_models(runs, corpus, seed=2)
    nats, worst = comparison.differences
    assert (nats.quantity, nats.unit, worst.quantity, worst.unit) == (
        *("nats", "token"),
        *("worst_token", "text"),
    )
    # Higher is better, so that the better one minus the other is positive.
    values = [comparison.row(name)["worst_token"] for name in (worst.first, worst.second)]
    assert worst.value == pytest.approx(values[0] - values[1]) and worst.value > 0
    assert worst.low <= worst.value <= worst.high and worst.nats_per_token is None
    document = comparison_json(comparison)["differences"]
    assert [entry.keys() for entry in document] == [  # type: ignore[attr-defined]
        {"first", "second", name, "low", "high", "p_value", "p_corrected", "unit"}
        for name in ("nats", "worst_token")
    ]
    assert f"{worst.value:+.4f} worst token" in terminal_text(comparison)
    report = render_report([ReportSection(comparison=comparison)], title="Animals")
    assert "Below zero (above zero for worst_token) the first is better." in report


def test_without_the_file_nothing_else_differs(
    runs: list[Any], corpus: Corpus, request: pytest.FixtureRequest
) -> None:
    before = compare_models(runs, corpus)
    request.getfixturevalue("worst_token")
    after = compare_models(runs, corpus)
    assert "worst_token" not in before.rows[0].values
    for old, new in zip(before.rows, after.rows, strict=True):
        changed = dict(new.values)
        del changed["worst_token"]
        assert changed == old.values
    assert before.differences == tuple(d for d in after.differences if d.quantity == "nats")
    assert set(before.notes) == {note for note in after.notes if "worst" not in note}


def test_every_file_is_one_well_formed_metric() -> None:
    loaded = all_metrics()
    files = {path.stem for path in Path(str(metrics.__file__)).parent.glob("*.py")}
    assert loaded.keys() == files - {"__init__"}
    orders = [metric.table.order for metric in loaded.values()]
    assert orders == sorted(set(orders))
    assert len({metric.table.title for metric in loaded.values()}) == len(loaded)
    spreads = {metric.spread.name for metric in loaded.values() if metric.spread is not None}
    recorded = {name for name, metric in loaded.items() if metric.recorded}
    others = {"name", "runs", "system", "seeds", "kind", "convention", "tokenization"}
    others |= {"tokens", "characters", "utf8_bytes", "unknown", "sequences", "settings"}
    assert set(FIRST_KEYS) <= others | recorded | spreads
    assert not others & (recorded | spreads)
    for metric in loaded.values():
        assert metric.explanation and not metric.explanation.endswith(".")
        assert metric.kinds and metric.kinds <= set(SCORE_KINDS)


def test_file_that_names_another_metric_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_name.py").write_text(WORST_TOKEN, encoding="utf-8")
    monkeypatch.setattr(metrics, "__path__", [str(tmp_path)])
    with pytest.raises(AssertionError, match="'other_name': 'worst_token'"):
        all_metrics()


def test_metrics_are_defined_for_their_kinds_only(runs: list[Any], corpus: Corpus) -> None:
    assert all_metrics()["perplexity"].kinds == all_metrics()["regret"].kinds == NORMALISED_KINDS
    [row, _] = compare_models(runs, corpus).rows
    assert row["perplexity"] == pytest.approx(math.exp(row.nats_per_token))
    assert row["regret"] is None and row["floor"] is None
    with pytest.raises(UserError, match=r"perplexity"):
        row["perplexty"]
