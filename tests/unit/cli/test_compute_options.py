"""`--device`, `--precision` and `--threads` of commands that load more than one kind of model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lmlab as package
from lmlab.core.compute_options import ComputeOptions, computing_with
from lmlab.core.errors import UserError
from lmlab.interop.text_encoders import open_encoder
from lmlab.layers.model_placement import precision_of

pytestmark = pytest.mark.xdist_group("cli-compute")  # shares the trained runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model, a classifier made of it, and an index of three documents by it."""
    folder = tmp_path_factory.mktemp("compute")
    bert, rows, docs = folder / "bert", folder / "rows.jsonl", folder / "docs.txt"
    package.train("bert", data="grammar", out=bert, size="tiny", steps=2, quiet=True)
    pairs = [{"text": f"the {word}", "label": word} for word in ("dog", "cat") for _ in range(20)]
    rows.write_text("\n".join(map(json.dumps, pairs)))
    package.finetune(bert, task="classify", data=rows, out=folder / "task", steps=1, quiet=True)
    docs.write_text("the dog sleeps\na cat sees mary\nmary walks\n")
    package.index_build(docs, bert, folder / "index")
    return folder


def commands(folder: Path) -> dict[str, tuple[object, ...]]:
    return {
        "predict": ("predict", folder / "task", "the dog"),
        "inspect": ("inspect", folder / "bert", "--text", "the dog", "--out", folder / "new"),
        "doctor": ("doctor", folder / "bert", "--out", folder / "new"),
        "build": (
            *("index", "build", folder / "docs.txt", "--encoder", folder / "bert"),
            *("--out", folder / "new"),
        ),
        "search": ("index", "search", folder / "index", "the dog"),
    }


@pytest.mark.parametrize("name", ["predict", "inspect", "doctor", "build", "search"])
def test_a_device_that_is_not_there_is_one_sentence(lmlab, folder: Path, name: str) -> None:
    result = lmlab(*commands(folder)[name], "--device", "gpu")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("lmlab: there is no device called 'gpu'")
    assert len(result.err.splitlines()) == 1
    assert not (folder / "new").exists()


@pytest.mark.parametrize("name", ["predict", "search"])
def test_the_device_and_threads_change_no_answer(lmlab, folder: Path, name: str) -> None:
    command, threads = commands(folder)[name], torch.get_num_threads()
    try:
        chosen = lmlab(*command, "--device", "cpu", "--threads", 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert (chosen.code, chosen.out) == (0, lmlab(*command).out)


def test_a_fine_tuned_run_is_loaded_with_a_precision(lmlab, folder: Path) -> None:
    exact = package.load_task(folder / "task")
    rounded = package.load_task(folder / "task", precision="bfloat16")
    assert precision_of(exact.system) == "float32"
    assert precision_of(rounded.system) == "bfloat16"
    assert exact.predict([{"text": "the dog"}])[0] in ("dog", "cat")
    assert rounded.predict([{"text": "the dog"}])[0] in ("dog", "cat")
    assert lmlab("predict", folder / "task", "the dog", "--precision", "bfloat16").code == 0


def test_encoders_and_examinations_take_the_current_device(folder: Path) -> None:
    with computing_with(ComputeOptions(device="gpu")):
        with pytest.raises(UserError, match="no device called 'gpu'"):
            open_encoder(folder / "bert")
        with pytest.raises(UserError, match="no device called 'gpu'"):
            package.doctor(folder / "bert")
