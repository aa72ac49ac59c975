"""The notes' normalisation over time: later tokens move earlier probabilities, which don't sum to
one; divided by its own entries instead, the same model does neither."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
CELLS = ("lstm", "rnn", "gru-minimal", "mgru")
SIZE, LENGTH = 4, 4
"""Words of the tiny vocabulary, and predicted tokens of a text."""


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "notes"))
    return importlib.import_module(name)


@pytest.fixture
def notes_lm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return benchmark("notes_lm", monkeypatch)


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return benchmark("leak", monkeypatch)


def model(notes_lm: ModuleType, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return notes_lm.NotesLM(SIZE, width=8, **{"states": 5, **options}).double()


@torch.no_grad()
def sum_over_texts(module: torch.nn.Module) -> float:
    """Sum over all texts of LENGTH tokens after token 0 of the product of their probabilities."""
    texts = torch.tensor(list(itertools.product(range(SIZE), repeat=LENGTH)))
    ids = torch.cat([torch.zeros(len(texts), 1, dtype=torch.long), texts], dim=1)
    log_probs = module(ids[:, :-1]).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return float(log_probs.sum(1).exp().sum())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("states", [5, 0])
def test_probabilities_of_all_texts_sum_to_one_unless_scaled_over_time(notes_lm, cell, states):
    sums = {
        scaling: sum_over_texts(model(notes_lm, cell=cell, scaling=scaling, states=states))
        for scaling in ("time", "channels", "none")
    }
    assert sums["channels"] == pytest.approx(1, abs=1e-12)
    assert sums["none"] == pytest.approx(1, abs=1e-12)
    assert abs(sums["time"] - 1) > 1e-4


@pytest.mark.parametrize("cell", CELLS)
def test_later_token_moves_earlier_probabilities_only_if_scaled_over_time(notes_lm, cell):
    text = torch.tensor([[0, 1, 2, 3, 1, 2]])
    other = text.clone()
    other[0, -1] = 3
    moved = {}
    for scaling in ("time", "channels", "none"):
        module = model(notes_lm, cell=cell, scaling=scaling)
        with torch.no_grad():
            moved[scaling] = (module(text)[:, :-1] - module(other)[:, :-1]).abs().amax((0, 2))
    assert (moved["time"] > 1e-4).all()
    assert (moved["channels"] == 0).all() and (moved["none"] == 0).all()


@pytest.mark.parametrize("states", [5, 0])
def test_target_log_probs_are_those_of_the_distribution(notes_lm, states):
    module = model(notes_lm, states=states)
    ids = torch.randint(SIZE, (3, 6), generator=torch.Generator().manual_seed(1))
    counted = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    whole = module(ids[:, :-1])
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(3, 5, dtype=torch.double))
    expected = whole.gather(-1, ids[:, 1:, None]).squeeze(-1)[counted]
    torch.testing.assert_close(module.target_log_probs(ids[:, :-1], ids[:, 1:], counted), expected)


# The trainings ------------------------------------------------------------------------------------


def tiny_splits(leak: ModuleType) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(SIZE, (40, 6), generator=generator)
    counted = torch.arange(1, 6) < torch.randint(2, 7, (40, 1), generator=generator)
    whole = leak.Sentences(ids=ids, counted=counted)
    return {"train": whole.select(torch.arange(30)), "test": whole.select(torch.arange(30, 40))}


def test_resumed_training_has_the_same_figures(leak, tmp_path, monkeypatch):
    monkeypatch.setattr(leak, "SENTENCES", 8)
    row = replace(leak.ROWS[0], states=5, rate=0.01)
    splits = tiny_splits(leak)

    def figures(name: str, *stops: int) -> list[dict[str, float]]:
        for epochs in stops:
            folders = {"runs": tmp_path / name, "records": tmp_path / f"{name}-records"}
            record = leak.run_row(row, splits, SIZE, epochs=epochs, **folders)
        return [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in record["epochs"]
        ]

    whole = figures("whole", 3)
    assert figures("stopped", 1, 3) == whole and [line["epoch"] for line in whole] == [0, 1, 2, 3]
    assert whole[3]["training"] < whole[1]["training"]
    assert figures("whole", 3) == whole  # finished: nothing is trained


def test_two_ways_of_averaging(leak, notes_lm):
    """Against a loop over sentences."""
    splits, module = tiny_splits(leak), model(notes_lm).float()
    held_out = splits["test"]
    totals, counts = [], []
    for ids, counted in zip(held_out.ids, held_out.counted, strict=True):
        with torch.no_grad():
            log_probs = module(ids[None, :-1])[0]
        chosen = log_probs[torch.arange(5), ids[1:]][counted]
        totals.append(-float(chosen.sum()))
        counts.append(int(counted.sum()))
    measured = leak.held_out_losses(module, held_out)
    means = [total / count for total, count in zip(totals, counts, strict=True)]
    assert measured["by sentence"] == pytest.approx(sum(means) / len(means), rel=1e-5)
    assert measured["by token"] == pytest.approx(sum(totals) / sum(counts), rel=1e-5)


def test_gradients_add_up_over_an_epoch(leak, notes_lm, monkeypatch):
    """After an epoch the gradient is the sum of all batches' (with a learning rate of 0)."""
    monkeypatch.setattr(leak, "SENTENCES", 10)
    module, train = model(notes_lm).float(), tiny_splits(leak)["train"]
    optimizer = torch.optim.RMSprop(module.parameters(), lr=0.0, eps=leak.EPSILON)
    leak.train_epoch(module, optimizer, train, 0)
    summed = module.embedding.weight.grad.clone()
    module.zero_grad()
    nats, tokens = leak.losses(module, train)
    (3 * (nats / tokens).mean()).backward()  # three batches of ten
    torch.testing.assert_close(module.embedding.weight.grad, summed)


def test_rows_have_names_of_their_own_and_pairs(leak):
    names = [row.name for row in leak.ROWS]
    assert len(set(names)) == len(names)
    for row in leak.ROWS:
        if row.scaling == "time":
            assert replace(row, scaling="channels").name in names


def test_table_in_the_notes_is_up_to_date(leak):
    text = (ROOT / "docs" / "notes.md").read_text(encoding="utf-8")
    assert leak.markdown() in text
