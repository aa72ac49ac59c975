"""`lmlab link` on a briefly trained KnowBERT that disambiguates entities by context."""

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
LAST_WORDS = ["today", "now", "again", "here", "often", "indeed"]
SETTINGS = {
    "learning_rate": 0.01,
    "schedule": "constant",
    "tokens_per_batch": 256,
    "evaluate_every": 40,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bank` and `banks` mean two entities equally often; the context tells which."""
    path = tmp_path_factory.mktemp("banks")
    rows = []
    for (side, texts), word, added in product(SIDES.items(), ("bank", "banks"), LAST_WORDS):
        for text in texts:
            start = text.index("{")
            sentence = f"{text.format(word)} {added}"
            rows.append({"text": sentence, "mentions": [[start, start + len(word), side]]})
    training = [row for number, row in enumerate(rows) if number % 5 > 1]
    for name, chosen in {"train": training, "valid": rows[::5], "test": rows[1::5]}.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in chosen)
        (path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    tables = {
        "entities": "lender\ta bank\twhere money is\nshore\ta bank\twhere fish swim\nx\tx\n",
        "aliases": "bank\tlender\nbank\tshore\nbanks\tlender\nbanks\tshore\n",
        "facts": "lender\tis no\tshore\nx\tis no\tlender\n",
    }
    knowledge = path / "knowledge"
    knowledge.mkdir()
    for name, text in tables.items():
        (knowledge / f"{name}.tsv").write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    out = folder / "bert"
    settings = {**SETTINGS, "pairs": "none"}
    train("bert", data=folder, out=out, size="tiny", settings=settings, steps=80, quiet=True)
    return out


def train_knowbert(folder: Path, base: Path, name: str, steps: int, **settings) -> Path:
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
    return train_knowbert(folder, base, "knowbert", 320, linking_steps=40, linking_weight=4)


def test_context_disambiguates_senses(lmlab: Command, run: Path, folder: Path):
    """The prior is one half for every text; by chance, 13 of 15 has probability 1/270."""
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    output = json.loads(lmlab("link", run, *(row["text"] for row in rows), "--json").out)
    right = 0
    for row, linked in zip(rows, output, strict=True):
        [[start, end, side]] = row["mentions"]
        [mention] = linked["mentions"]
        assert (mention["start"], mention["end"]) == (start, end)
        assert mention["words"] == row["text"][start:end]
        assert mention["probability"] >= 0.5
        right += mention["entity"] == side
    assert len(rows) == 15 and right >= 13


def test_table_output_and_missing_text(lmlab: Command, run: Path):
    shown = lmlab("link", run, "the bank has reeds now", "reeds now").out
    assert "what it is" in shown and "a bank" in shown
    assert "(nothing that the run's knowledge has a name for)" in shown
    result = lmlab("link", run)
    assert result.code == 2 and "give exactly one of" in result.err


def test_draw_writes_figure_of_linked_mentions(lmlab: Command, run: Path, tmp_path: Path):
    lmlab("link", run, "the bank has reeds now", "--draw", tmp_path / "drawn")
    figure = (tmp_path / "drawn" / "text-1.svg").read_text(encoding="utf-8")
    assert figure.startswith("<svg") and "a bank" in figure
    assert lmlab("link", run, "x", "--draw", run / "config.json").code == 2


def test_system_without_link_is_refused(lmlab: Command, base: Path):
    result = lmlab("link", base, "the bank")
    assert result.code == 2 and "link needs a system with Link" in result.err
    assert "knowbert" in result.err


def test_linking_steps_train_only_the_linker(folder: Path, base: Path):
    """After linking steps only, the base's weights are unchanged; joint steps change them."""
    before = load_run(base).system.state_dict()
    run = train_knowbert(folder, base, "linking", 3, linking_steps=10)
    after = RunFolder(run).load_checkpoint(print).model
    shared = [name for name in after if name in before]
    assert any(name.startswith("backbone.stack") for name in shared)
    assert all(torch.equal(after[name], before[name]) for name in shared)
    fresh = train_knowbert(folder, base, "joint", 3, linking_steps=0)
    joint = RunFolder(fresh).load_checkpoint(print).model
    assert not all(torch.equal(joint[name], before[name]) for name in shared)


def test_back_projection_is_pseudoinverse_after_linking(run: Path):
    system = load_run(run).system
    assert isinstance(system, KnowBERT)
    system.begin_step(0)
    trained = {name for name, p in system.named_parameters() if p.requires_grad}
    assert all(".project." in name or ".linker." in name for name in trained)
    with torch.no_grad():
        system.memories[0].back.weight.zero_()
    system.begin_step(system.objective.linking_steps)
    expected = torch.linalg.pinv(system.memories[0].project.weight)
    torch.testing.assert_close(system.memories[0].back.weight, expected)
    assert all(p.requires_grad for p in system.parameters())


def test_loaded_run_has_its_trained_entity_vectors(run: Path, base: Path):
    """Gloss vectors are computed from the base's weights, which a loaded run no longer has."""
    one, other = load_run(run).system, load_run(run).system
    assert isinstance(one, KnowBERT) and isinstance(other, KnowBERT)
    vectors = one.memories[0].linker.entities.vectors
    assert torch.equal(vectors, other.memories[0].linker.entities.vectors)
    assert vectors.abs().sum() > 0


def test_base_must_be_a_masked_lm(lmlab: Command, folder: Path, tmp_path: Path):
    train("lstm", data=folder, out=tmp_path / "lstm", size="tiny", steps=1, quiet=True)
    result = lmlab(
        *("train", "knowbert", "--data", folder, "--base", tmp_path / "lstm"),
        *("--knowledge", folder / "knowledge", "--out", tmp_path / "run", "--steps", 1),
    )
    assert result.code == 2 and "masked language model" in result.err
