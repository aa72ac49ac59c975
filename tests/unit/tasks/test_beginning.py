"""A fine-tuning that begins with an earlier one: its encoder goes on, its head stays behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lmlab
from lmlab.core.errors import UserError
from lmlab.core.tensor_files import read_tensors
from lmlab.tasks.finetune import finetune
from lmlab.tasks.loading import load_pretrained

ROWS = {
    "classify": [{"text": f"{a} {b} .", "label": a} for a in "abc" for b in "abc"] * 4,
    "span": [
        {"text": f"{a} . b c . {b} a .", "question": "a", "answer": "b c", "relevant": [[4, 9]]}
        for a in "abc"
        for b in "abc"
    ]
    * 4,
    "generate": [{"source": "a b", "target": "x y"}, {"source": "b a", "target": "y x"}] * 12,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beginning")
    (folder / "text.txt").write_text("a b c .\nb c a .\nc a b .\n" * 10, encoding="utf-8")
    return lmlab.train(
        "cogltx", data=folder / "text.txt", out=folder / "run", size="tiny", steps=5, quiet=True
    ).path


def put(run: Path, task: str, folder: Path, **words: object) -> Path:
    folder.mkdir(exist_ok=True)
    rows = folder / f"{task}.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]), encoding="utf-8")
    out = folder / "run"
    finetune(run, task=task, data=rows, out=out, steps=4, quiet=True, **words)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    ("long", "frozen", "prefix"),
    [("head", False, "base."), ("head", True, "base."), ("memrecall", False, "reasoner.base.")],
)
def test_the_encoder_that_was_fine_tuned_is_begun_with(
    long: str, frozen: bool, prefix: str, base: Path, tmp_path: Path
):
    """All of its weights, which may learn again where the stage before had frozen them."""
    first = put(base, "span", tmp_path / "first", long=long, frozen=frozen)
    begun = load_pretrained(first)
    kept = read_tensors(first / "model.safetensors")
    expected = {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
    found = begun.system.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    moved = any(
        not torch.equal(found[name], value)
        for name, value in read_tensors(base / "model.safetensors").items()
    )
    assert moved is not frozen
    assert all(parameter.requires_grad for parameter in begun.system.parameters())
    assert "task" not in begun.config


def test_a_second_task_has_a_head_of_its_own_and_can_be_asked(base: Path, tmp_path: Path):
    first = put(base, "span", tmp_path / "first", long="head")
    second = put(first, "classify", tmp_path / "second", long="head", frozen=True)
    told = json.loads((second / "config.json").read_text(encoding="utf-8"))
    assert told["task"]["name"] == "classify" and told["task"]["run"] == str(first)
    kept, before = (read_tensors(run / "model.safetensors") for run in (second, first))
    # Frozen, it is under its own head just what the first task made of it.
    under = [name for name in kept if name.startswith("base.")]
    assert under and all(torch.equal(kept[name], before[name]) for name in under)
    [answer] = lmlab.load_task(second).predict([{"text": "a b ."}])
    assert answer in "abc"


def test_the_tokeniser_of_sources_goes_along(tmp_path: Path):
    """Texts are written by other tokens than they are read by, in the second stage too."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tx y\nb a\ty x\n" * 20, encoding="utf-8")
    first = lmlab.train(
        "transformer", data=pairs, source_tokenizer="word", out=tmp_path / "run", size="tiny",
        steps=2, quiet=True,
    ).path  # fmt: skip
    second = put(first, "classify", tmp_path / "second")
    third = put(second, "generate", tmp_path / "third")
    assert load_pretrained(second).source_tokenizer is not None
    names = [path / "source_tokenizer.json" for path in (first, second, third)]
    assert len({name.read_bytes() for name in names}) == 1
    [answer] = lmlab.load_task(third).predict([{"source": "a b"}])
    assert isinstance(answer, str)


def test_what_a_system_looks_things_up_in_goes_along(tmp_path: Path):
    first = lmlab.train(
        "rag-token", data="capitals-questions", out=tmp_path / "run", size="tiny", steps=1,
        quiet=True,
    ).path  # fmt: skip
    second = put(first, "classify", tmp_path / "second")
    [answer] = lmlab.load_task(second).predict([{"text": "a b ."}])
    assert answer in "abc"
    assert len(load_pretrained(second).system.documents) == 186  # type: ignore[arg-type]
    (second / "memory" / "documents.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"memory/documents\.jsonl\.gz is missing"):
        lmlab.load_task(second)


def test_a_run_that_is_broken_is_told_in_a_sentence(base: Path, tmp_path: Path):
    first = put(base, "span", tmp_path / "first", long="head")
    (first / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        put(first, "classify", tmp_path / "second")
    assert not (tmp_path / "second" / "run").exists()
