"""docs/tutorial.md, run from top to bottom; what it shows is what is printed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from .running import run_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """The folder after the whole tutorial has been followed in it."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMLAB_CACHE", str(folder / "cache"))
        run_page((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    return folder


pytestmark = pytest.mark.xdist_group("tutorial")


def test_its_commands_run_and_print_what_it_shows(folder: Path):
    assert {path.name for path in (folder / "runs").iterdir()} >= {"ngram", "lstm", "mine"}


def test_its_table_of_surprisal_adds_up_to_the_score(folder: Path):
    with (folder / "surprisal.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    text = "the dog that the girls like sleeps"
    assert [row["word"] for row in rows] == [*text.split(), "</s>"]
    assert [text[int(row["start"]) : int(row["end"])] for row in rows] == [*text.split(), ""]
    import lmlab

    [score] = lmlab.load(folder / "runs" / "lstm").score([text])
    assert -score.total == pytest.approx(sum(float(r["surprisal_nats"]) for r in rows), abs=1e-4)


def test_its_json_has_the_promised_keys(folder: Path):
    records = json.loads((folder / "two.json").read_text(encoding="utf-8"))
    assert [record["text"] for record in records] == ["mary sees a cat", "the big dogs sing"]
    promised = {"text", "total", "tokens", "characters", "kind", "convention", "per_token"}
    assert all(promised <= record.keys() for record in records)


def test_its_report_is_whole_and_offline(folder: Path):
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report and "regret" in report
    assert "<script src" not in report and "<link" not in report


def test_its_pictures_and_its_ablation_are_there(folder: Path):
    drawn = {path.name for path in (folder / "pictures").iterdir()}
    assert drawn >= {"inspection.html", "surprisal.svg", "forget-gate.svg", "gradient.png"}
    table = json.loads((folder / "ablation" / "ablation.json").read_text(encoding="utf-8"))
    assert sorted(row["disabled"] for row in table["rows"]) == [[], [4], [4, 6]]


def test_the_resumed_training_is_the_uninterrupted_one(folder: Path):
    from safetensors.torch import load_file

    from lmlab.training.train import train

    whole = folder / "runs" / "gru-whole"
    train("gru", data="grammar", out=whole, size="tiny", steps=40, quiet=True)
    first, second = (load_file(r / "model.safetensors") for r in (whole, folder / "runs" / "gru"))
    assert all((first[name] == second[name]).all() for name in first)
