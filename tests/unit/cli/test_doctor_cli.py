"""`lmlab doctor`: a screen, one JSON document, a picture, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.manifests import relist


def test_a_healthy_run(lmlab, runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["ngram"], run)
    result = lmlab("doctor", run, "--strict")
    assert result.code == 0
    assert result.out.startswith("ngram on grammar reached")
    assert result.out.splitlines()[-1].startswith("No finding among ")
    assert "this run" in result.out
    assert (run / "figures" / "doctor.svg").exists()
    assert f"written: {run / 'figures' / 'doctor.svg'}" in result.err


def test_one_json_document_and_a_folder_of_its_own(lmlab, runs, tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    told = json.loads(lmlab("doctor", runs["lstm"], "--out", out, "--json").out)
    assert told["system"] == "lstm"
    assert told["levels"][0]["name"] == "uniform"
    assert (out / "doctor.png").exists()
    assert not (runs["lstm"] / "figures" / "doctor.svg").exists()


def test_findings_are_no_error_unless_one_is_strict(lmlab, runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["lstm"], run)
    config = json.loads((run / "config.json").read_text())
    config["training"]["steps"] = 60  # six were made
    (run / "config.json").write_text(json.dumps(config))
    relist(run)
    result = lmlab("doctor", run)
    assert result.code == 0
    for word in ("mild: interrupted", "seen  training ended at step 6, 10%", "why", "--resume"):
        assert word in result.out
    assert lmlab("doctor", run, "--strict").code == 1


def test_no_run_is_one_sentence(lmlab, tmp_path: Path) -> None:
    result = lmlab("doctor", tmp_path / "nowhere")
    assert (result.code, result.out) == (2, "")
    assert "there is no run at" in result.err
    assert result.err.count("\n") == 1
