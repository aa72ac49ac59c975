"""`lmlab runs`: the table, JSON, show, diff, tag and rm on trained runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lmlab.core.locks import lock_folder


@pytest.fixture
def folder(runs: dict[str, Path], tmp_path: Path) -> Path:
    """Copies of trained runs, as these tests tag and remove some."""
    for name, path in runs.items():
        shutil.copytree(path, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_the_table_and_its_columns(lmlab, folder: Path):
    result = lmlab("runs", folder)
    assert result.code == 0
    header, *rows = result.out.splitlines()
    assert header.split() == "run system data status best kind disk age differs".split()
    assert [row.split()[:4] for row in rows] == [
        ["lstm", "lstm", "grammar", "finished"],
        ["lstm-1", "lstm", "grammar", "finished"],
        ["ngram", "ngram", "grammar", "finished"],
    ]
    assert rows[1].endswith("seed=1") and "exact, validation" in rows[2]
    assert "3 runs in" in result.err
    chosen = lmlab(
        "runs", folder, "--where", "system=lstm and steps=6", "--sort", "-seed", "--columns",
        "run,seed,learning-rate",
    )  # fmt: skip
    assert [row.split() for row in chosen.out.splitlines()] == [
        ["run", "seed", "learning_rate"],
        ["lstm-1", "1", "0.002"],
        ["lstm", "0", "0.002"],
    ]


def test_json_has_every_field(lmlab, folder: Path):
    records = json.loads(lmlab("runs", "list", folder, "--json").out)["runs"]
    by_name = {record["run"]: record for record in records}
    assert by_name["lstm"]["status"] == "finished"
    assert by_name["lstm"]["progress"] == 1.0
    assert by_name["lstm"]["step"] == 6
    metrics = (folder / "lstm" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in metrics if '"validation"' in line]
    assert by_name["lstm"]["best"] == min(losses)
    assert by_name["lstm"]["settings"]["steps"] == 6
    size = sum(p.stat().st_size for p in (folder / "ngram").rglob("*") if p.is_file())
    assert by_name["ngram"]["disk"] == size


def test_show_diff_and_tag(lmlab, folder: Path):
    assert lmlab("runs", "tag", folder / "lstm", "good", "first").out == "first good\n"
    assert lmlab("runs", "tag", folder / "lstm", "--remove", "first").out == "good\n"
    shown = lmlab("runs", "show", folder / "lstm").out
    assert "status           finished" in shown and "tags             good" in shown
    assert "torch=" in shown and "learning_rate=0.002" in shown
    details = json.loads(lmlab("runs", "show", folder / "lstm", "--json").out)
    assert details["record"]["tags"] == ["good"]
    assert details["corpus"]["spec"] == "grammar"
    rows = lmlab("runs", "diff", folder / "lstm", folder / "lstm-1").out.splitlines()
    assert rows[1].split() == ["settings", "seed", "0", "1"]
    # A tag does not break the manifest, and a listing from an index that is rebuilt has it.
    assert lmlab("score", folder / "lstm", "--text", "the dog sleeps").code == 0
    tagged = lmlab("runs", folder, "--where", "tag=good", "--columns", "run", "--rebuild")
    assert tagged.out.split() == ["run", "lstm"]


def test_rm_asks_or_needs_yes(lmlab, folder: Path, monkeypatch: pytest.MonkeyPatch):
    run = folder / "ngram"
    refused = lmlab("runs", "rm", run, "--folder", folder)
    assert refused.code == 2 and "give --yes" in refused.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *question, **options: False)
    assert "nothing was deleted" in lmlab("runs", "rm", run, "--folder", folder).err
    assert run.exists()
    with lock_folder(run):
        locked = lmlab("runs", "rm", run, "--folder", folder, "--yes")
        assert locked.code == 2 and "being written" in locked.err
    assert lmlab("runs", "rm", run, "--folder", folder, "--yes").code == 0
    assert not run.exists()


def test_errors_are_one_sentence(lmlab, folder: Path, tmp_path: Path):
    cases = {
        ("runs", tmp_path / "nothing"): "there is no folder",
        ("runs", folder, "--where", "system"): "--where expects one of",
        ("runs", folder, "--sort", "bets"): "did you mean 'best'",
        ("runs", "show", tmp_path): "is not a run",
        ("runs", "diff", folder / "lstm"): "two runs or more",
        ("runs", "tag", folder / "lstm", "two words"): "must be one word",
        ("runs", "rm", folder / "lstm"): "there is no folder runs",
    }
    for arguments, message in cases.items():
        result = lmlab(*arguments)
        assert result.code == 2 and message in result.err, arguments
        assert len(result.err.splitlines()) == 1
    (tmp_path / "empty").mkdir()
    assert "no runs in" in lmlab("runs", tmp_path / "empty").err
