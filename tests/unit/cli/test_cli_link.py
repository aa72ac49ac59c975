"""KnowBERT trained for a moment: senses told by what stands around a word, and `lmlab link`."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from lmlab.models.knowbert import KnowBERT
from lmlab.training.run_folder import RunFolder, load_run
from lmlab.training.train import train

from .conftest import Command

SIDES = {
    "lender": ["money lent by the {}", "the {} pays money", "gold of the {} is safe"],
    "shore": ["boats near the {}", "the {} has reeds", "fish under the {} swim"],
}
ADDED = ["today", "now", "again", "here", "often", "indeed"]
SETTINGS = {
    "learning_rate": 0.01,
    "schedule": "constant",
    "tokens_per_batch": 256,
    "evaluate_every": 40,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bank` and `banks` name two things equally often; the words around tell which of them."""
    made = tmp_path_factory.mktemp("banks")
    rows = []
    for (side, texts), word, added in product(SIDES.items(), ("bank", "banks"), ADDED):
        for text in texts:
            start = text.index("{")
            written = f"{text.format(word)} {added}"
            rows.append({"text": written, "mentions": [[start, start + len(word), side]]})
    learnt = [row for place, row in enumerate(rows) if place % 5 > 1]
    for name, chosen in {"train": learnt, "valid": rows[::5], "test": rows[1::5]}.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in chosen)
        (made / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    tables = {
        "entities": "lender\ta bank\twhere money is\nshore\ta bank\twhere fish swim\nx\tx\n",
        "aliases": "bank\tlender\nbank\tshore\nbanks\tlender\nbanks\tshore\n",
        "facts": "lender\tis no\tshore\nx\tis no\tlender\n",
    }
    knowledge = made / "knowledge"
    knowledge.mkdir()
    for name, text in tables.items():
        (knowledge / f"{name}.tsv").write_text(text, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    out = folder / "bert"
    settings = {**SETTINGS, "pairs": "none"}
    train("bert", data=folder, out=out, size="tiny", settings=settings, steps=80, quiet=True)
    return out


def know(folder: Path, base: Path, name: str, steps: int, **settings) -> Path:
    out = folder / name
    train(
        "knowbert",
        data=folder,
        out=out,
        size="tiny",
        settings={**SETTINGS, **settings},
        steps=steps,
        base=base,
        knowledge=str(folder / "knowledge"),
        quiet=True,
    )
    return out


@pytest.fixture(scope="module")
def run(folder: Path, base: Path) -> Path:
    return know(folder, base, "knowbert", 240, linking_steps=40, linking_weight=4)


def test_senses_are_told_by_what_stands_around(lmlab: Command, run: Path, folder: Path):
    """The prior is one half, whatever the text; 13 of 15 would come by it once in 270 times."""
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    found = json.loads(lmlab("link", run, *(row["text"] for row in rows), "--json").out)
    right = 0
    for row, each in zip(rows, found, strict=True):
        [[start, end, side]] = row["mentions"]
        [mention] = each["mentions"]
        assert (mention["start"], mention["end"]) == (start, end)
        assert mention["words"] == row["text"][start:end]
        assert mention["probability"] >= 0.5
        right += mention["entity"] == side
    assert len(rows) == 15 and right >= 13


def test_a_table_for_people(lmlab: Command, run: Path):
    shown = lmlab("link", run, "the bank has reeds now", "reeds now").out
    assert "what it is" in shown and "a bank" in shown
    assert "(nothing that the run's knowledge has a name for)" in shown
    said = lmlab("link", run)
    assert said.code == 2 and "give exactly one of" in said.err


def test_linked_mentions_are_drawn(lmlab: Command, run: Path, tmp_path: Path):
    lmlab("link", run, "the bank has reeds now", "--draw", tmp_path / "drawn")
    picture = (tmp_path / "drawn" / "text-1.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg") and "a bank" in picture
    assert lmlab("link", run, "x", "--draw", run / "config.json").code == 2


def test_a_system_that_cannot_link_is_told(lmlab: Command, base: Path):
    said = lmlab("link", base, "the bank")
    assert said.code == 2 and "link needs a system with Link" in said.err
    assert "knowbert" in said.err


def test_the_linker_is_trained_alone_first(folder: Path, base: Path):
    """After linking steps only, all that was the base's is as it was, and the linker is not."""
    before = load_run(base).system.state_dict()
    run = know(folder, base, "linking", 3, linking_steps=10)
    after = RunFolder(run).load_checkpoint(print).model
    shared = [name for name in after if name in before]
    assert any(name.startswith("backbone.stack") for name in shared)
    assert all(torch.equal(after[name], before[name]) for name in shared)
    fresh = know(folder, base, "joint", 3, linking_steps=0)
    joint = RunFolder(fresh).load_checkpoint(print).model
    assert not all(torch.equal(joint[name], before[name]) for name in shared)


def test_the_way_back_is_set_when_the_linker_is_trained(run: Path):
    system = load_run(run).system
    assert isinstance(system, KnowBERT)
    system.begin_step(0)
    trained = {name for name, p in system.named_parameters() if p.requires_grad}
    assert all(".project." in name or ".linker." in name for name in trained)
    with torch.no_grad():
        system.memory.back.weight.zero_()
    system.begin_step(system.linking_steps)
    expected = torch.linalg.pinv(system.memory.project.weight)
    torch.testing.assert_close(system.memory.back.weight, expected)
    assert all(p.requires_grad for p in system.parameters())


def test_a_run_resumed_and_loaded_has_the_entities_it_was_trained_with(run: Path, base: Path):
    """Vectors of glosses are made of the base's weights, which a loaded run has no more."""
    one, other = load_run(run).system, load_run(run).system
    assert isinstance(one, KnowBERT) and isinstance(other, KnowBERT)
    vectors = one.memory.linker.entities.vectors
    assert torch.equal(vectors, other.memory.linker.entities.vectors)
    assert vectors.abs().sum() > 0


def test_a_base_that_is_no_masked_model_is_refused(lmlab: Command, folder: Path, tmp_path: Path):
    train("lstm", data=folder, out=tmp_path / "lstm", size="tiny", steps=1, quiet=True)
    said = lmlab(
        *("train", "knowbert", "--data", folder, "--base", tmp_path / "lstm"),
        *("--knowledge", folder / "knowledge", "--out", tmp_path / "run", "--steps", 1),
    )
    assert said.code == 2 and "masked language model" in said.err
