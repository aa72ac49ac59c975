"""`lmlab doctor`: printed report, JSON, figure and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.manifests import relist


def test_healthy_run_has_no_finding(lmlab, runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["ngram"], run)
    result = lmlab("doctor", run, "--strict")
    assert result.code == 0
    assert result.out.startswith("ngram on grammar reached")
    assert result.out.splitlines()[-1].startswith("No finding among ")
    assert "this run" in result.out
    assert (run / "figures" / "doctor.svg").exists()
    assert f"written: {run / 'figures' / 'doctor.svg'}" in result.err
    assert f"written: {run / 'figures' / 'causality.svg'}" in result.err
    assert "causality: no prediction changes when a later token" in result.out


def test_json_output_and_out_folder(lmlab, runs, tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    output = json.loads(lmlab("doctor", runs["lstm"], "--out", out, "--json").out)
    assert output["system"] == "lstm"
    assert output["levels"][0]["name"] == "uniform"
    assert (out / "doctor.png").exists() and (out / "causality.png").exists()
    assert output["causality"]["verdict"] == "causal"
    assert not (runs["lstm"] / "figures" / "doctor.svg").exists()


def test_findings_are_errors_only_with_strict(lmlab, runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["lstm"], run)
    config = json.loads((run / "config.json").read_text())
    config["training"]["steps"] = 60  # six were run
    (run / "config.json").write_text(json.dumps(config))
    relist(run)
    result = lmlab("doctor", run)
    assert result.code == 0
    for word in ("mild: interrupted", "seen  training ended at step 6, 10%", "why", "--resume"):
        assert word in result.out
    assert lmlab("doctor", run, "--strict").code == 1


def test_missing_run_is_one_sentence(lmlab, tmp_path: Path) -> None:
    result = lmlab("doctor", tmp_path / "nowhere")
    assert (result.code, result.out) == (2, "")
    assert "there is no run at" in result.err
    assert result.err.count("\n") == 1
