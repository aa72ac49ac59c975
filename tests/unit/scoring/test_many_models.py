"""Comparison of many models: columns of settings, the matrix of differences, CSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from dataclasses import replace

import pytest

from lmlab.data.corpus import Corpus, Split
from lmlab.reports.html_report import render_report
from lmlab.reports.report_sections import ReportSection
from lmlab.scoring.comparison_csv import differences_csv, models_csv
from lmlab.scoring.comparison_records import Comparison
from lmlab.scoring.comparison_tables import comparison_json, markdown, table_columns
from lmlab.scoring.model_comparison import compare_models
from lmlab.scoring.multiple_comparisons import corrected_p_values


@pytest.fixture
def corpus(sentences):
    texts = sentences * 6
    parts = ("train", "test")
    splits = {part: Split.from_list(texts, identity=part, name=part) for part in parts}
    return Corpus(name="tiny", splits=splits)


@pytest.fixture
def models(word_tokenizer, tiny_recurrent, fake_model):
    """Six LSTMs of different width settings and initial weights."""
    made = []
    for number in range(6):
        system = tiny_recurrent(word_tokenizer.vocabulary, seed=number)
        model = fake_model("lstm", f"lstm-{number}", system, word_tokenizer)
        config = replace(model.config, system_config={"width": 8 * number, "layers": 1})
        made.append(replace(model, config=config))
    return made


@pytest.fixture
def comparison(models, corpus) -> Comparison:
    return compare_models(models, corpus)


def columns(comparison: Comparison) -> list[str]:
    return [column.heading for column in table_columns(comparison)]


def test_settings_that_differ_are_columns(models, corpus, comparison):
    assert comparison.differing == ("width",)
    assert "width" in columns(comparison) and "layers" not in columns(comparison)
    assert comparison.row("lstm-3").settings == {"width": 24}
    rows = comparison_json(comparison)["rows"]
    assert isinstance(rows, list) and rows[0]["settings"].keys() == {"width"}


def test_many_settings_are_folded_into_one_column(models, corpus):
    names = [f"setting{number}" for number in range(6)]
    configs = [dict.fromkeys(names, 1), dict.fromkeys(names, 2)]
    changed = [
        replace(model, config=replace(model.config, system_config=config))
        for model, config in zip(models, configs, strict=False)
    ]
    comparison = compare_models(changed, corpus)
    assert "differs" in columns(comparison) and "setting0" not in columns(comparison)
    assert "setting0=1 setting1=1" in markdown(comparison)


def test_training_data_that_differ_are_a_column(models, corpus):
    first, second = models[:2]
    other = replace(first.config.corpus, spec="other.txt", fingerprint="other")
    changed = [first, replace(second, config=replace(second.config, corpus=other))]
    comparison = compare_models(changed, corpus)
    assert comparison.differing[0] == "data"
    assert comparison.row("lstm-1").settings["data"] == "other.txt"


def test_matrix_has_every_pair_twice_with_opposite_signs(comparison):
    [matrix] = comparison.matrices
    assert list(matrix.names) == [row.name for row in comparison.rows], "ordered by the figure"
    assert len(comparison.differences) == 15
    for row, column in itertools.permutations(comparison.rows, 2):
        expected = row.nats_per_token - column.nats_per_token
        assert matrix.value(row.name, column.name) == pytest.approx(expected, abs=1e-9)
    document = matrix.as_dict()
    values = document["row_minus_column"]
    assert isinstance(values, list) and values[0][0] is None and values[0][5] == -values[5][0]


def test_matrix_is_shown_beyond_five_models(models, corpus, comparison):
    text = markdown(comparison)
    assert "|  | model | 1 | 2 | 3 | 4 | 5 | 6 |" in text
    assert "row minus column in nats per token: below zero the row is better" in text
    assert "corrected over 15 tests (Holm)" in text and "95 % interval" not in text
    report = render_report([ReportSection(comparison=comparison)], title="Six")
    assert "row minus column" in report and "corrected over 15 tests (Holm)" in report
    assert len(json.loads(json.dumps(comparison_json(comparison)))["matrices"]) == 1
    five = compare_models(models[:5], corpus)
    assert "95 % interval" in markdown(five) and comparison_json(five)["matrices"] == []
    # First and second place differ in sign; marks are at the end of a cell.
    row = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert all(re.fullmatch(r"-\d\.\d{4}(\\\*)*", cell.strip()) for cell in row.split("|")[4:-1])


def test_p_values_are_corrected_over_all_tests(models, corpus, comparison):
    raw = [entry.p_value for entry in comparison.differences]
    assert [e.p_corrected for e in comparison.differences] == corrected_p_values(raw, "holm")
    assert comparison_json(comparison)["correction"] == {"method": "holm", "tests": 15}
    without = compare_models(models, corpus, correction="none")
    assert [e.p_corrected for e in without.differences] == raw


def test_csv_is_tidy(comparison):
    rows = list(csv.DictReader(io.StringIO(models_csv(comparison))))
    assert [row["model"] for row in rows] == [row.name for row in comparison.rows]
    for row, expected in zip(rows, comparison.rows, strict=True):
        assert float(row["nats_per_token"]) == expected.nats_per_token
        assert row["width"] == str(expected.settings["width"])
    tests = list(csv.DictReader(io.StringIO(differences_csv(comparison))))
    assert len(tests) == 15 and {row["tests"] for row in tests} == {"15"}
    assert float(tests[0]["difference"]) == comparison.differences[0].value


def test_csv_distinguishes_a_setting_called_as_a_column(models, corpus):
    changed = [
        replace(model, config=replace(model.config, system_config={"kind": number}))
        for number, model in enumerate(models[:2])
    ]
    header = models_csv(compare_models(changed, corpus)).splitlines()[0].split(",")
    assert "setting_kind" in header and header.count("kind") == 1
