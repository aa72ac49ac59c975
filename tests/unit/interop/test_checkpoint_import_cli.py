"""`lmlab import-hf` and `lmlab export-hf`, and other commands on the imported runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lmlab.cli.main import main

pytestmark = pytest.mark.xdist_group("checkpoint_import_cli")  # shares its trained runs
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of a causal and a masked model, exported and imported again."""
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    tiny = ["--size", "tiny", "--steps", "2", "--data", str(folder / "corpus.txt")]
    for name in ("gpt", "bert"):
        assert main(["train", name, "--out", str(folder / f"{name}-run"), *tiny]) == 0
        assert main(["export-hf", str(folder / f"{name}-run"), str(folder / name)]) == 0
        assert main(["import-hf", str(folder / name), "--out", str(folder / f"{name}-back")]) == 0
    return folder


def output(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    capfd.readouterr()
    assert main([str(argument) for argument in arguments]) == 0
    return capfd.readouterr().out


def test_import_and_export_output(folder, tmp_path, capfd):
    printed = output(capfd, "export-hf", folder / "gpt-run", tmp_path / "out")
    summary, note = printed.splitlines()
    assert summary == f"{tmp_path / 'out'}: model type gpt2"
    assert note.startswith("note: gpt2 has no output bias")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }
    printed = output(capfd, "import-hf", tmp_path / "out", "--out", tmp_path / "run")
    assert printed.startswith(f"{tmp_path / 'run'}: gpt, ") and "parameters over" in printed


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_reimported_run_has_equal_scores(folder, name, capfd):
    texts = ("--text", "the cat ran", "--text", "a bird flew", "--json")
    before, after = (
        json.loads(output(capfd, "score", folder / f"{name}-{which}", *texts))
        for which in ("run", "back")
    )
    for one, other in zip(before, after, strict=True):
        assert other["kind"] == one["kind"] and other["tokens"] == one["tokens"]
        assert other["total"] == pytest.approx(one["total"], abs=1e-6)


def test_reimported_run_samples_and_fills_equally(folder, capfd):
    options = ("--seed", 3, "-n", 2, "--prefix", "the", "--json")
    before, after = (
        output(capfd, "sample", folder / f"gpt-{w}", *options) for w in ("run", "back")
    )
    assert json.loads(after) == json.loads(before)
    filled = [
        output(capfd, "fill", folder / f"bert-{w}", "the <mask> sat") for w in ("run", "back")
    ]
    assert filled[0] == filled[1] and "the <mask> sat" in filled[0]


def test_reimported_run_can_be_inspected(folder, tmp_path, capfd):
    options = ("--text", "the cat sat", "--out", tmp_path)
    assert "attention" in output(capfd, "inspect", folder / "bert-back", *options)
    assert list(tmp_path.glob("*.svg"))


def test_reimported_run_can_be_compared(folder, tmp_path, capfd):
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    runs = (folder / "gpt-run", folder / "gpt-back")
    table = json.loads(output(capfd, "compare", *runs, "--data", tmp_path, "--json"))
    before, after = table["rows"]
    assert after["nats_per_token"] == pytest.approx(before["nats_per_token"], abs=1e-6)


def test_usage_errors_are_one_line_and_leave_no_files(folder, tmp_path, capfd):
    capfd.readouterr()
    out = str(tmp_path / "run")
    assert main(["import-hf", str(folder / "gpt"), "--out", out, "--family", "bert"]) == 2
    message = capfd.readouterr().err
    assert message == "lmlab: expected a checkpoint of bert, got one of gpt2.\n"
    assert main(["export-hf", str(folder / "gpt-run"), str(folder / "bert")]) == 2
    assert "already exists and is not empty; choose another." in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_import_and_export_work_without_transformers(folder, tmp_path):
    """Both commands run if transformers can't be imported."""
    code = (
        "import sys; sys.modules['transformers'] = None; sys.modules['huggingface_hub'] = None\n"
        "from lmlab.cli.main import main\n"
        "theirs, run, again = sys.argv[1:]\n"
        "assert main(['import-hf', theirs, '--out', run]) == 0\n"
        "assert main(['export-hf', run, again]) == 0\n"
    )
    paths = [str(path) for path in (folder / "bert", tmp_path / "a", tmp_path / "b")]
    command = [sys.executable, "-c", code, *paths]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert (tmp_path / "b" / "model.safetensors").exists()
