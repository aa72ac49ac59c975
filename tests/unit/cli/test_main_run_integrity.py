"""Damaged runs and indexes are refused, symbolic links not followed, read-only runs usable."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import torch
from tests.fuzz.options import has_option, verbs
from tests.manifests import relist
from tests.permissions import read_only

import lmlab as laboratory
from lmlab.core.errors import UserError
from lmlab.core.manifest import MANIFEST, read_manifest
from lmlab.core.tensor_files import read_tensors, write_tensors

from .conftest import Command

TEXT = ("--text", "the dog sleeps")
WITHOUT_NO_VERIFY = {
    *("systems", "find", "settings", "data list", "data describe", "demo", "ablate", "conformance"),
    *("import-arpa", "import-hf", "sweep"),
    *("runs list", "runs show", "runs diff", "runs tag", "runs rm"),
}
"""Commands that load no model, or only runs that they made themselves."""


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs["lstm"], tmp_path / "run"))


def test_commands_that_load_a_run_have_no_verify() -> None:
    having = {command for command in verbs() if has_option(command.split(), "--no-verify")}
    assert having == verbs().keys() - WITHOUT_NO_VERIFY


def test_every_bit_flip_in_the_weights_is_detected(lmlab: Command, run: Path):
    path, random = run / "model.safetensors", Random(0)
    whole = path.read_bytes()
    for _ in range(50):
        changed = bytearray(whole)
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(UserError, match=r"model.safetensors is not what was written"):
            laboratory.load(run)
    result = lmlab("score", run, *TEXT)
    assert (result.code, result.out) == (2, "")
    path.write_bytes(whole)
    assert lmlab("score", run, *TEXT).code == 0


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_file_is_verified_unless_no_verify(lmlab: Command, run: Path, name: str):
    path = run / name
    if name == "model.safetensors":
        tensors = read_tensors(path)
        write_tensors(path, {key: value + 0.1 for key, value in tensors.items()})
    else:
        path.write_text(path.read_text() + "\n")
    result = lmlab("score", run, *TEXT)
    assert result.code == 2 and f"{name} is not what was written" in result.err
    assert result.err.count("\n") == 1
    assert lmlab("score", run, *TEXT, "--no-verify").code == 0
    assert lmlab("score", run, *TEXT).code == 2  # the option holds for one command
    with pytest.raises(UserError, match=f"{name} is not what was written"):
        laboratory.load(run)
    assert laboratory.load(run, verify=False).score(["the dog"])


def test_missing_manifest_is_an_error(lmlab: Command, run: Path):
    (run / MANIFEST).unlink()
    result = lmlab("score", run, *TEXT)
    assert result.code == 2 and "manifest.json is missing" in result.err
    assert lmlab("train", "lstm", "--data", "grammar", "--out", run, "--resume").code == 2
    assert lmlab("score", run, *TEXT, "--no-verify").code == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_weights_are_refused(lmlab: Command, run: Path, value: float):
    tensors = read_tensors(run / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = value
    write_tensors(run / "model.safetensors", tensors)
    relist(run)
    for option in ((), ("--no-verify",)):
        result = lmlab("score", run, *TEXT, *option)
        assert (result.code, result.out) == (2, "")
        assert f"not finite (1 of {tensors[name].numel():,} in {name})" in result.err


def test_log_prob_tables_may_hold_minus_infinity_but_not_nan(lmlab: Command, runs, tmp_path):
    run = Path(shutil.copytree(runs["ngram"], tmp_path / "ngram"))
    tensors = read_tensors(run / "model.safetensors")
    [name] = [name for name, tensor in tensors.items() if (tensor == -torch.inf).any()]
    assert lmlab("score", run, *TEXT).code == 0
    tensors[name] = tensors[name].clone()
    tensors[name][-1] = torch.nan
    write_tensors(run / "model.safetensors", tensors)
    relist(run)
    assert "not finite (1 of" in lmlab("score", run, *TEXT).err


def test_damaged_checkpoint_state_restarts_training(lmlab: Command, run: Path):
    for step in (run / "trainer").iterdir():
        path = step / "state.json"
        state = json.loads(path.read_text())
        state["state"]["progress"]["best"] = -1.0
        path.write_text(json.dumps(state))
    resume = ("train", "lstm", "--data", "grammar", "--out", run, "--resume", "--steps", 7)
    result = lmlab(*resume)
    assert result.code == 0 and "state.json is not what was written" in result.err
    assert "-1.0" not in result.err and "starting again" in result.err


def test_every_kind_of_run_has_a_manifest(lmlab: Command, runs, tmp_path: Path):
    arpa, imported, hub = tmp_path / "m.arpa", tmp_path / "imported", tmp_path / "hub"
    assert lmlab("export-arpa", runs["ngram"], arpa).code == 0
    assert lmlab("import-arpa", arpa, "--out", imported).code == 0
    gpt = tmp_path / "gpt"
    assert (
        lmlab(
            "train", "gpt", "--data", "grammar", "--size", "tiny", "--steps", 1, "--out", gpt
        ).code
        == 0
    )
    assert lmlab("export-hf", gpt, hub).code == 0
    assert lmlab("import-hf", hub, "--out", tmp_path / "from-hub").code == 0
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": "the dog", "label": "ab"[n % 2]}) + "\n" for n in range(40))
    )
    tuned = ("finetune", gpt, "--task", "classify", "--data", tmp_path / "rows.jsonl")
    assert lmlab(*tuned, "--steps", 1, "--out", tmp_path / "tuned").code == 0
    wanted = {"config.json", "tokenizer.json", "model.safetensors"}
    for run in (imported, tmp_path / "from-hub", tmp_path / "tuned", runs["ngram"]):
        assert read_manifest(run).keys() == wanted
    (tmp_path / "tuned" / "model.safetensors").write_bytes(b"")
    assert "model.safetensors is not what" in lmlab("predict", tmp_path / "tuned", *TEXT).err


def test_every_file_of_an_index_is_verified(lmlab: Command, tmp_path: Path):
    pytest.importorskip("bm25s")
    index = tmp_path / "index"
    assert lmlab("index", "build", "capitals", "--encoder", "bm25", "--out", index).code == 0
    search = ("index", "search", index, "Peru", "-k", 1)
    assert lmlab(*search).code == 0
    for name in read_manifest(index):
        whole = (index / name).read_bytes()
        (index / name).write_bytes(bytes([*whole[:-1], whole[-1] ^ 1]))
        result = lmlab(*search)
        assert (result.code, result.out) == (2, "") and result.err.count("\n") == 1
        (index / name).write_bytes(whole)
    (index / MANIFEST).unlink()
    assert "manifest.json is missing" in lmlab(*search).err


def test_symbolic_links_in_a_run_are_not_written_through(lmlab: Command, run: Path, tmp_path: Path):
    secret, elsewhere = tmp_path / "secret", tmp_path / "elsewhere"
    secret.write_text("mine")
    elsewhere.mkdir()
    figures = run / "figures"
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir()
    for name in (".writing-doctor.svg", "doctor.svg", "doctor.png"):
        (figures / name).symlink_to(secret)
    assert lmlab("doctor", run).code == 0
    assert secret.read_text() == "mine" and not (figures / "doctor.svg").is_symlink()
    shutil.rmtree(figures)
    figures.symlink_to(elsewhere)
    result = lmlab("doctor", run)
    assert result.code == 0 and "no figure was written" in result.err and "--out DIR" in result.err
    result = lmlab("inspect", run, *TEXT)
    assert result.code == 2 and "symbolic link" in result.err and "--out DIR" in result.err
    assert os.listdir(elsewhere) == []
    # The run's own files (metrics, weights, checkpoints) are replaced, not written through.
    figures.unlink()
    for name in ("metrics.jsonl", "environment.json"):
        (run / name).unlink()
        (run / name).symlink_to(secret)
    resume = ("train", "lstm", "--data", "grammar", "--out", run, "--resume", "--steps", 9)
    assert lmlab(*resume).code == 0
    shutil.rmtree(run / "trainer")
    (run / "trainer").symlink_to(elsewhere)
    result = lmlab(*resume[:-1], 12)
    assert result.code == 2 and "trainer is a symbolic link" in result.err
    assert secret.read_text() == "mine" and os.listdir(elsewhere) == []


def test_read_only_run_writes_figures_to_out(lmlab: Command, run: Path, tmp_path: Path):
    shutil.rmtree(run / "figures", ignore_errors=True)
    with read_only(run):
        assert lmlab("score", run, *TEXT).code == 0
        result = lmlab("doctor", run)
        assert result.code == 0 and "no figure was written" in result.err and result.out
        assert lmlab("doctor", run, "--out", tmp_path / "doctor").code == 0
        result = lmlab("inspect", run, *TEXT)
        assert (
            result.code == 2 and "can't be written to" in result.err and "--out DIR" in result.err
        )
        result = lmlab("inspect", run, *TEXT, "--out", tmp_path / "inspected")
        assert result.code == 0 and "Reports will not show" in result.err
        result = lmlab("doctor", run, "--out", run / "figures")
        assert result.code == 2 and "can't be written to" in result.err
    assert (tmp_path / "doctor" / "doctor.svg").exists()
    assert (tmp_path / "inspected" / "inspection.html").exists()


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """Limit file sizes to `size` bytes, to simulate a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_error_advises_resume_where_available(lmlab: Command, runs, tmp_path):
    commands = {
        False: ("export-arpa", runs["ngram"], tmp_path / "m.arpa"),
        True: ("train", "lstm", "--data", "grammar", "--size", "tiny", "--out", tmp_path / "new"),
    }
    for resumes, command in commands.items():
        with disk_full_after(5000):
            result = lmlab(*command)
        assert result.code == 2 and "the disk is full" in result.err
        assert ("--resume" in result.err) == resumes
        assert not list(tmp_path.rglob(".writing-*"))
