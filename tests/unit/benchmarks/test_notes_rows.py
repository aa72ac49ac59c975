"""All rows of the notes' tables (003) are there with their figures, as valid trainings."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from lmlab.core.registry import find_system, system_module
from lmlab.training.config import TrainingConfig, apply_settings, split_settings

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

# Copied from 003: model, mutated positions or variant, E20, E30.
WORDS = """
DLM47 4,6 3.739 3.560|DLM46 0,2,4,5 3.7811 -|DLM46 0,4,5 3.745 -|DLM46 4 3.7434 3.62257
DLM51 0,4,5 3.775 3.709|DLM46 5 3.7914 3.70547|DLM46 0 3.80641 3.76959|DLM46 2 3.81147 3.73109
DLM46 3 3.81406 3.72296|DLM46 -1 3.8209 3.72316|DLM47 4,6,9 3.859 -|DLM47 4,6,7 3.921 -
DLM47 5 4.03182 3.86436|DLM46 1 4.0029 3.89041|DLM47 4,6,11 4.03 3.85|DLM47 4,6,10 4.052 3.779
DLM46 6 4.21133 4.1882|DLM47 4,6,8 4.242 -|DLM46 2,3,4,5 4.296 4.091|DLM46 7 4.31114 4.11738
DLM29 -1 4.31308 4.28537|DLM47 4 4.527 4.348
"""
L100 = """
DLM26 -1 2.575 2.524|DLM46 -1 2.591 -|DLM47 4,6 2.689 2.641|DLM29 -1 2.805 2.777
DLM40 W8 D6 2.865 -
"""
L20 = """
DLM26 -1 1.817 1.774|DLM46 -1 1.855 1.801|DLM47 4,6 1.998 1.943|DLM29 -1 2.419 2.508
DLM40 W8 D6 2.819 2.810
"""
CHARACTERS = """
DLM51 -1 1.000 0.949|DLM26 -1 1.004 0.944|DLM46 -1 1.009 0.969|DLM46 W5 1.011 0.955|DLM50 -1 - -
DLM47 4,6 1.254 1.155|DLM29 W5 1.115 1.068|DLM29 W1 1.119 1.081|DLM47 -1 1.136 1.078
DLM40 W8 D6 - -|DLM26 E64 1.167 1.105
"""
AUTOENCODERS = """
DLM55 E128 2.464 2.431|DLM53 E128 2.877 2.712|DLM56 E128 3.593 3.771|DLM55 E20 3.878 3.552
DLM53 E20 4.195 3.901|DLM54 E128 4.131 4.096
"""
CHARACTER_AUTOENCODERS = """
DLM55 E128, K90 0.561 0.4609|DLM53 E128, K90 0.933 0.857|DLM53 E20, K90 1.507 1.434
"""
TABLES = {
    "cells": WORDS,
    "cath-l100": L100,
    "cath-l20": L20,
    "characters": CHARACTERS,
    "autoencoders": AUTOENCODERS,
    "character-autoencoders": CHARACTER_AUTOENCODERS,
}
NOT_LEAKING = {12, 20, 40, 55, 56}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), str(BENCHMARKS / "notes"), *sys.path])
    return {table.name: table for table in importlib.import_module("tables").TABLES}


def published(text: str) -> dict[str, tuple[float | None, ...]]:
    rows = {}
    for entry in text.replace("\n", "|").strip("|").split("|"):
        *label, at_20, at_30 = entry.split()
        figures = (None if value == "-" else float(value) for value in (at_20, at_30))
        rows[" ".join(label)] = tuple(figures)
    return rows


def test_all_52_rows_have_the_figures_of_the_notes(tables: dict[str, Any]) -> None:
    assert sum(len(published(text)) for text in TABLES.values()) == 52
    for name, text in TABLES.items():
        ours = {row.label: row for row in tables[name].rows if row.epochs == 30}
        for label, figures in published(text).items():
            row = ours[label]
            assert (row.notes_20, row.notes_30) == figures, (name, label)
            assert row.leaks == (int(label[3:5]) not in NOT_LEAKING)
            mutated = label.split()[1]
            off = mutated.split(",") if mutated[0].isdigit() else []
            assert row.off == tuple(map(int, off))


def test_trainings_are_valid_and_named_apart(tables: dict[str, Any]) -> None:
    """Every row's system, recipe and settings exist, so that none fails after hours of others."""
    cells = [cell for table in tables.values() for cell in table.cells()]
    assert len({cell.name for cell in cells}) == len(cells)
    for table in tables.values():
        for row in table.rows:
            arguments = row.cell(table.protocol, 0).arguments
            module, card = system_module(row.system), find_system(row.system)
            given = [arguments[i + 1] for i, part in enumerate(arguments) if part == "--set"]
            recipe = module.RECIPES[row.recipe] if row.recipe else {}
            settings = {**recipe, **dict(text.split("=", 1) for text in given)}
            config = module.SIZES["small"]
            of_system, of_training = split_settings(settings, config, TrainingConfig())
            built = apply_settings(config, of_system)
            apply_settings(TrainingConfig(), of_training)
            assert bool(card.base) == bool(row.base)
            if row.epochs != 20 and "autoencoder" not in row.system and row.system != "hmm":
                assert getattr(built, "width", 128) == (64 if "E64" in row.label else 128)


def test_tables_in_the_notes_are_up_to_date(tables: dict[str, Any]) -> None:
    """If not: python benchmarks/run_queue.py --write docs/notes.md"""
    text = (BENCHMARKS.parent / "docs" / "notes.md").read_text(encoding="utf-8")
    row_tables, pictures = map(importlib.import_module, ("row_tables", "pictures"))
    for expected in [*map(row_tables.markdown, tables.values()), pictures.markdown()]:
        assert expected in text


def test_variants_by_hand(tables: dict[str, Any]) -> None:
    by_label = {row.label: row for row in tables["autoencoders"].rows if row.epochs == 30}
    forced = by_label["DLM53 E20"].cell("multi30k-l20", 1)
    assert forced.name == (
        "multi30k-l20.gru-autoencoder.width-20_latent-20_decoder-teacher-forced_epochs-30.seed1"
    )
    assert by_label["DLM56 E128"].settings == ("activation=relu", "ffn_width=1280")
    assert by_label["VAE over DLM55's latents"].cell("p", 0).arguments == (
        *("--recipe", "multi30k", "--epochs", "30"),
        *("--base", "RUNS/multi30k-l20.linear-autoencoder.epochs-30.seed0"),
    )


def test_figures_of_a_table_line(
    tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Epochs 20 and 30 of one training, mean over seeds ± half their range."""
    rows, row_tables = importlib.import_module("rows"), importlib.import_module("row_tables")

    def record(name: str) -> dict[str, Any] | None:
        seed = int(name[-1])
        if seed == 2:
            return None
        losses = {20: 3.5 + 0.1 * seed, 29: 3.1, 30: 3.2 + 0.2 * seed}
        return {
            "held_out": [{"epoch": epoch, "loss": loss} for epoch, loss in losses.items()],
            "row": {"nats_per_token": losses[30], "nats_per_token_by_sentence": 3.0 + seed},
            "last_training_loss": 2.5,
        }

    monkeypatch.setattr(rows, "read_record", lambda name: record(name))
    table = tables["cells"]
    [row] = [row for row in table.rows if row.label == "DLM46 4"]
    assert row_tables.line(row, table) == (
        "| DLM46 4 | `gru-minimal` without 4 | 3.743 | 3.623 | leak | 3.550 ± 0.050 "
        "| 3.300 ± 0.100 | 3.500 ± 0.500 | 3.100 at 29 | 2.500 | 3.200 |"
    )
