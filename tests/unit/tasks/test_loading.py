"""Fine-tuning from a fine-tuned run: the encoder is kept, the head is dropped."""

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
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text("a b c .\nb c a .\nc a b .\n" * 10, encoding="utf-8")
    return lmlab.train(
        "cogltx", data=folder / "text.txt", out=folder / "run", size="tiny", steps=5, quiet=True
    ).path


def finetune_task(run: Path, task: str, folder: Path, **options: object) -> Path:
    folder.mkdir(exist_ok=True)
    rows = folder / f"{task}.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]), encoding="utf-8")
    out = folder / "run"
    finetune(run, task=task, data=rows, out=out, steps=4, quiet=True, **options)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize(
    ("long", "frozen", "prefix"),
    [("head", False, "base."), ("head", True, "base."), ("memrecall", False, "reasoner.base.")],
)
def test_load_pretrained_restores_the_finetuned_encoder(
    long: str, frozen: bool, prefix: str, base: Path, tmp_path: Path
):
    """All of its weights, trainable again even if the stage before had frozen them."""
    first = finetune_task(base, "span", tmp_path / "first", long=long, frozen=frozen)
    pretrained = load_pretrained(first)
    saved = read_tensors(first / "model.safetensors")
    expected = {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}
    state = pretrained.system.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    moved = any(
        not torch.equal(state[name], value)
        for name, value in read_tensors(base / "model.safetensors").items()
    )
    assert moved is not frozen
    assert all(parameter.requires_grad for parameter in pretrained.system.parameters())
    assert pretrained.config.task is None


def test_second_finetuning_gets_its_own_head(base: Path, tmp_path: Path):
    first = finetune_task(base, "span", tmp_path / "first", long="head")
    second = finetune_task(first, "classify", tmp_path / "second", long="head", frozen=True)
    config = json.loads((second / "config.json").read_text(encoding="utf-8"))
    assert config["task"]["name"] == "classify" and config["task"]["run"] == str(first)
    saved, before = (read_tensors(run / "model.safetensors") for run in (second, first))
    # Frozen, the encoder under the new head is exactly that of the first task.
    base_names = [name for name in saved if name.startswith("base.")]
    assert base_names and all(torch.equal(saved[name], before[name]) for name in base_names)
    [answer] = lmlab.load_task(second).predict([{"text": "a b ."}])
    assert answer in "abc"


def test_source_tokenizer_is_carried_over(tmp_path: Path):
    """Sources and targets have different tokenizers, in the second stage too."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a b\tx y\nb a\ty x\n" * 20, encoding="utf-8")
    first = lmlab.train(
        "transformer", data=pairs, source_tokenizer="word", out=tmp_path / "run", size="tiny",
        steps=2, quiet=True,
    ).path  # fmt: skip
    second = finetune_task(first, "classify", tmp_path / "second")
    third = finetune_task(second, "generate", tmp_path / "third")
    assert load_pretrained(second).source_tokenizer is not None
    names = [path / "source_tokenizer.json" for path in (first, second, third)]
    assert len({name.read_bytes() for name in names}) == 1
    [answer] = lmlab.load_task(third).predict([{"source": "a b"}])
    assert isinstance(answer, str)


def test_external_memory_is_carried_over(tmp_path: Path):
    first = lmlab.train(
        "rag-token", data="capitals-questions", out=tmp_path / "run", size="tiny", steps=1,
        quiet=True,
    ).path  # fmt: skip
    second = finetune_task(first, "classify", tmp_path / "second")
    [answer] = lmlab.load_task(second).predict([{"text": "a b ."}])
    assert answer in "abc"
    assert len(load_pretrained(second).system.documents) == 186  # type: ignore[arg-type]
    (second / "memory" / "documents.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"memory/documents\.jsonl\.gz is missing"):
        lmlab.load_task(second)


def test_damaged_run_is_reported(base: Path, tmp_path: Path):
    first = finetune_task(base, "span", tmp_path / "first", long="head")
    (first / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError, match="damaged"):
        finetune_task(first, "classify", tmp_path / "second")
    assert not (tmp_path / "second" / "run").exists()
