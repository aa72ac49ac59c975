"""`--config` and `--print-config` of train, finetune and ablate, and `lmlab.read_config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmlab as package
from lmlab.core.data_files import read_data_file

TRAIN = """
system: lstm
data: grammar
size: tiny
epochs: 3
settings:
  learning_rate: 1e-3
  width: 8
"""


@pytest.fixture
def train_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(TRAIN, encoding="utf-8")
    return path


def config(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())


def test_a_file_gives_required_options_and_the_command_line_overrides_it(
    lmlab, train_file: Path, tmp_path: Path
):
    out = tmp_path / "run"
    arguments = ("--config", train_file, "--out", out, "--steps", 2, "--set", "width=4")
    assert lmlab("train", *arguments).code == 0
    written = config(out)
    assert (written["system"], written["size"]) == ("lstm", "tiny")
    assert written["system_config"]["width"] == 4
    assert written["training"]["learning_rate"] == 1e-3
    assert (written["training"]["steps"], written["training"]["epochs"]) == (2, None)

    # The config.json of that run repeats it, bit for bit.
    again = tmp_path / "again"
    package.train(**package.read_config(out / "config.json", out=again, quiet=True))
    weights = [(run / "model.safetensors").read_bytes() for run in (out, again)]
    assert weights[0] == weights[1]
    assert config(again) == written


def test_the_system_of_the_command_line_replaces_that_of_the_file(lmlab, train_file):
    printed = lmlab("train", "gru", "--config", train_file, "--print-config").out.splitlines()
    assert "system: gru" in printed and "size: tiny" in printed


def test_print_config_writes_a_file_that_gives_the_same_options(lmlab, train_file, tmp_path):
    printed = lmlab("train", "--config", train_file, "--set", "off=0,4", "--print-config")
    assert printed.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(printed.out, encoding="utf-8")
    values = package.read_config(path)
    assert values["settings"] == {"learning_rate": 0.001, "width": 8} | (
        {"off": "0,4"} if "off" in values["settings"] else {}
    )
    del values["settings"]
    assert values == {"system": "lstm", "data": "grammar", "size": "tiny", "epochs": 3}
    lines = printed.out.splitlines()
    assert "  # Peak learning rate, reached after the warm-up. (> 0)" in lines
    assert "# out: RUN  # required" in lines
    assert "  # layers: 1" in lines


def test_print_config_needs_no_option(lmlab):
    printed = lmlab("train", "--print-config")
    assert printed.code == 0 and "# system: SYSTEM  # required" in printed.out
    printed = lmlab("finetune", "--task", "classify", "--print-config")
    assert printed.code == 0 and "task: classify" in printed.out
    assert "grad_clip" in printed.out


def test_ablate_and_finetune_take_files(lmlab, tmp_path: Path):
    path = tmp_path / "ablate.toml"
    path.write_text(
        'system = "gru-minimal"\ndata = "grammar"\nsize = "tiny"\nseeds = 1\nepochs = 1\n'
        'switches = "4"\nat = [1]\n'
    )
    printed = lmlab("ablate", "--config", path, "--print-config")
    assert printed.code == 0
    (tmp_path / "again.yaml").write_text(printed.out)
    expected = read_data_file(path) | {"at": [1]}
    assert package.read_config(tmp_path / "again.yaml", "ablate") == expected
    missing = lmlab("finetune", "--config", path)
    assert missing.code == 2 and "no option of finetune called 'system'" in missing.err


def test_mistakes_in_files_are_one_sentence(lmlab, tmp_path: Path, runs: dict[str, Path]):
    path = tmp_path / "bad.yaml"
    for text, message in {
        "sytem: lstm": "did you mean 'system'",
        "learning_rate: 1": "stand below settings:",
        "system: lstm\nsettings: {wdth: 3}\ndata: grammar\nout: x": "no setting called 'wdth'",
        "system: lstm": "missing option '--data'",
    }.items():
        path.write_text(text)
        result = lmlab("train", "--config", path)
        assert result.code == 2 and message in result.err
        assert len(result.err.splitlines()) == 1
    result = lmlab("finetune", "--config", runs["lstm"] / "config.json", "--out", tmp_path / "x")
    assert result.code == 2 and "was not fine-tuned" in result.err


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_config_of_a_run_executes_no_file(lmlab, tmp_path: Path, runs: dict[str, Path], verb: str):
    """A path in a YAML file is the user's own; one in a run's config.json is somebody else's."""
    executed = tmp_path / "executed"
    (tmp_path / "evil.py").write_text(f"CARD = Card(family='x')\nopen({str(executed)!r}, 'w')\n")
    for name in ("evil.py", str(tmp_path / "evil.py")):
        whole = config(runs["lstm"]) | {"system": name}
        for file, values in (("x.json", whole), ("config.json", {"system": name, "data": "x"})):
            (tmp_path / file).write_text(json.dumps(values))
            result = lmlab(verb, "--config", tmp_path / file, "--out", tmp_path / "x")
            assert result.code == 2 and "a run names no files to execute" in result.err
    assert not executed.exists()


def test_read_config_overrides_and_names_its_verbs(train_file: Path, tmp_path: Path):
    values = package.read_config(train_file, out=tmp_path, steps=1, settings={"width": 2})
    assert values == {
        "system": "lstm",
        "data": "grammar",
        "size": "tiny",
        "settings": {"learning_rate": 0.001, "width": 2},
        "out": tmp_path,
        "steps": 1,
    }
    with pytest.raises(package.UserError, match="no verb with a --config called 'trian'"):
        package.read_config(train_file, "trian")
