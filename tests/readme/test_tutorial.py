"""The commands of docs/tutorial.md run in order and print the output shown there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from .page_runner import run_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The working folder after all commands of the tutorial."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMLAB_CACHE", str(folder / "cache"))
        run_page((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    return folder


pytestmark = pytest.mark.xdist_group("tutorial")


def test_commands_run_and_print_the_shown_output(folder: Path):
    assert {path.name for path in (folder / "runs").iterdir()} >= {"ngram", "lstm", "mine"}


def test_surprisal_table_sums_to_the_score(folder: Path):
    with (folder / "surprisal.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    text = "the dog that the girls like sleeps"
    assert [row["word"] for row in rows] == [*text.split(), "</s>"]
    assert [text[int(row["start"]) : int(row["end"])] for row in rows] == [*text.split(), ""]
    import lmlab

    [score] = lmlab.load(folder / "runs" / "lstm").score([text])
    assert -score.total == pytest.approx(sum(float(r["surprisal_nats"]) for r in rows), abs=1e-4)


def test_json_has_the_documented_keys(folder: Path):
    records = json.loads((folder / "two.json").read_text(encoding="utf-8"))
    assert [record["text"] for record in records] == ["mary sees a cat", "the big dogs sing"]
    promised = {"text", "total", "tokens", "characters", "kind", "convention", "per_token"}
    assert all(promised <= record.keys() for record in records)


def test_report_is_complete_and_offline(folder: Path):
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report and "regret" in report
    assert "<script src" not in report and "<link" not in report


def test_figures_and_ablation_are_written(folder: Path):
    figures = {path.name for path in (folder / "pictures").iterdir()}
    assert figures >= {
        "inspection.html",
        "surprisal.svg",
        "layer-1-forget-gate.svg",
        "gradient.png",
    }
    table = json.loads((folder / "ablation" / "ablation.json").read_text(encoding="utf-8"))
    assert sorted(row["disabled"] for row in table["rows"]) == [[], [4], [4, 6]]


def test_resumed_training_equals_uninterrupted_training(folder: Path):
    from safetensors.torch import load_file

    from lmlab.training.train import train

    whole = folder / "runs" / "gru-whole"
    train("gru", data="grammar", out=whole, size="tiny", steps=40, quiet=True)
    first, second = (load_file(r / "model.safetensors") for r in (whole, folder / "runs" / "gru"))
    assert all((first[name] == second[name]).all() for name in first)
