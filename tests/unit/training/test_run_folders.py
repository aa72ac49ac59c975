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
from lmlab.training.run_folder import build_system, build_tiny, load_run
from lmlab.training.train import train


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Path:
    return train("window", data=corpus, out=tmp_path / "run", size="tiny", steps=1, quiet=True).path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    relist(path.parent)


def test_a_missing_run_and_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run at"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run: it has no config.json"):
        load_run(tmp_path)


def test_a_config_that_is_none_or_from_the_future(run: Path) -> None:
    change(run / "config.json", format=99, lmlab="9.0")
    with pytest.raises(UserError, match=r"later lmlab \(9.0, format 99\).*upgrade"):
        load_run(run)
    for text in ("{", "[]", "{}", "null", '{"format": "x"}', '{"format": 1}'):
        (run / "config.json").write_text(text)
        relist(run)
        with pytest.raises(UserError, match=r"is not the config.json of a run"):
            load_run(run)


@pytest.mark.parametrize("content", [b"", b"\x00" * 7, b"\xff" * 200, None])
def test_broken_weights_are_told(run: Path, content: bytes | None) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8] if content is None else content)
    with pytest.raises(UserError, match=r"model.safetensors is not what was written.*--resume"):
        load_run(run)
    relist(run)
    with pytest.raises(UserError, match=r"model.safetensors is damaged.*--resume"):
        load_run(run)


def test_missing_parts_are_told(run: Path) -> None:
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


def test_weights_of_another_shape_are_told(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    change(run / "config.json", system_config=config["system_config"] | {"width": 24})
    with pytest.raises(UserError, match=r"do not fit its config.json") as caught:
        load_run(run)
    assert "\n" not in str(caught.value)


def test_settings_of_another_version_are_told(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    change(run / "config.json", system_config=config["system_config"] | {"heads": 2})
    with pytest.raises(UserError, match="no setting called 'heads'"):
        load_run(run)


def test_a_run_that_was_moved_loads(run: Path, tmp_path: Path) -> None:
    shutil.move(run, tmp_path / "elsewhere")
    assert load_run(tmp_path / "elsewhere").name == "elsewhere"


@pytest.mark.parametrize("name", ["gpt", "bert", "bart", "electra", "glm", "t5", "transformer"])
def test_a_text_beyond_the_window_is_told_the_length_that_has_room_for_it(name: str) -> None:
    """No more than is needed: built so, it takes that text and none that is longer."""
    vocabulary = Vocabulary(size=9)
    with pytest.raises(UserError, match="got 77; give shorter texts, or") as caught:
        build_tiny(name, vocabulary).check_length(77)
    told = re.search(r"--set length=(\d+)\.$", str(caught.value))
    assert told is not None
    config = replace(system_module(name).SIZES["tiny"], length=int(told[1]))
    longer = build_system(name, asdict(config), vocabulary, seed=0)
    longer.check_length(77)
    with pytest.raises(UserError, match=r"sequence must have at most .* got 78"):
        longer.check_length(78)
