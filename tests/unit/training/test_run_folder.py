from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.manifests import relist

from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.training.run_folder import load_run
from lmlab.training.system_building import build_system, build_tiny
from lmlab.training.train import train


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Path:
    return train("window", data=corpus, out=tmp_path / "run", size="tiny", steps=1, quiet=True).path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    relist(path.parent)


def test_missing_or_invalid_run_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run at"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run: it has no config.json"):
        load_run(tmp_path)


def test_invalid_or_newer_config_is_reported(run: Path) -> None:
    change(run / "config.json", format=99, lmlab="9.0")
    with pytest.raises(UserError, match=r"later lmlab \(9.0, format 99\).*upgrade"):
        load_run(run)
    for text in ("{", "[]", "{}", "null", '{"format": "x"}', '{"format": 1}'):
        (run / "config.json").write_text(text)
        relist(run)
        with pytest.raises(UserError, match=r"is not the config.json of a run"):
            load_run(run)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 200, None])
def test_damaged_weights_are_reported(run: Path, content: bytes | None) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8] if content is None else content)
    with pytest.raises(UserError, match=r"model.safetensors is not what was written.*--resume"):
        load_run(run)
    relist(run)
    with pytest.raises(UserError, match=r"model.safetensors is damaged.*--resume"):
        load_run(run)


def test_missing_files_are_reported(run: Path) -> None:
    shutil.copytree(run, run.with_name("other"))
    (run / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors is missing"):
        load_run(run)
    relist(run)
    with pytest.raises(UserError, match=r"has no model.safetensors yet"):
        load_run(run)
    (run.with_name("other") / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json is missing"):
        load_run(run.with_name("other"))
    relist(run.with_name("other"))
    with pytest.raises(UserError, match=r"has no tokenizer.json any more"):
        load_run(run.with_name("other"))


def test_mismatched_weight_shapes_are_reported(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    change(run / "config.json", system_config=config["system_config"] | {"width": 24})
    with pytest.raises(UserError, match=r"do not fit its config.json") as caught:
        load_run(run)
    assert "\n" not in str(caught.value)


def test_unknown_settings_in_config_are_reported(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    change(run / "config.json", system_config=config["system_config"] | {"heads": 2})
    with pytest.raises(UserError, match="no setting called 'heads'"):
        load_run(run)


def test_moved_run_loads(run: Path, tmp_path: Path) -> None:
    shutil.move(run, tmp_path / "elsewhere")
    assert load_run(tmp_path / "elsewhere").name == "elsewhere"


@pytest.mark.parametrize("name", ["gpt", "bert", "bart", "electra", "glm", "t5", "transformer"])
def test_overlong_text_error_suggests_the_exact_length(name: str) -> None:
    """No longer than needed: a system of that length takes the text and none that is longer."""
    vocabulary = Vocabulary(size=9)
    with pytest.raises(UserError, match="got 77; give shorter texts, or") as caught:
        build_tiny(name, vocabulary).check_length(77)
    suggestion = re.search(r"--set length=(\d+)\.$", str(caught.value))
    assert suggestion is not None
    config = replace(system_module(name).SIZES["tiny"], length=int(suggestion[1]))
    longer = build_system(name, asdict(config), vocabulary, seed=0)
    longer.check_length(77)
    with pytest.raises(UserError, match=r"sequence must have at most .* got 78"):
        longer.check_length(78)
