"""NgramTable as an emission: lookups in any shape and order, saving and loading."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.ngram_table import NgramTable

SIZE, START, END = 20, 2, 3


def corpus(seed: int = 0, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    sequences = [
        [START, *(4 + generator.geometric(0.3, size=generator.integers(0, 12)).clip(1, 14)), END]
        for _ in range(count)
    ]
    tokens = np.concatenate(sequences).astype(np.uint16)
    return tokens, np.cumsum([0] + [len(s) for s in sequences])


def contexts_of(tokens: np.ndarray, offsets: np.ndarray, width: int) -> tuple[torch.Tensor, ...]:
    """(N, width) contexts and (N,) targets of all predicted tokens, in reading order."""
    rows, targets = [], []
    for low, high in pairwise(offsets):
        padded = [-1] * width + tokens[low:high].tolist()
        for position in range(1, high - low):
            rows.append(padded[position : position + width])
            targets.append(padded[position + width])
    return torch.tensor(rows).reshape(len(rows), width), torch.tensor(targets)


def fitted(order: int) -> NgramTable:
    table = NgramTable(order, Vocabulary(size=SIZE))
    table.fit(*corpus())
    return table


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_log_prob_is_an_entry_of_log_probs(order):
    table = fitted(order)
    contexts, targets = contexts_of(*corpus(seed=1, count=30), width=order - 1)
    whole = table.log_probs(contexts)
    assert whole.shape == (len(targets), SIZE)
    entries = whole[torch.arange(len(targets)), targets]
    assert torch.allclose(table.log_prob(contexts, targets), entries, rtol=0, atol=1e-13)
    assert torch.allclose(whole.exp().sum(1), torch.ones(len(targets)).double(), atol=1e-12)
    assert torch.isneginf(whole[:, [0, 2, 4]]).all()


@pytest.mark.parametrize("order", [2, 4])
def test_lookups_do_not_depend_on_the_batch(order):
    """Rows in reading order share lookups; a row must not depend on its neighbours."""
    table = fitted(order)
    contexts, targets = contexts_of(*corpus(seed=2, count=30), width=order - 1)
    together = table.log_prob(contexts, targets)
    shuffled = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    assert torch.equal(table.log_prob(contexts[shuffled], targets[shuffled]), together[shuffled])
    alone = [table.log_prob(contexts[i : i + 1], targets[i : i + 1]) for i in range(40)]
    assert torch.equal(torch.cat(alone), together[:40])


def test_log_probs_keep_the_batch_shape():
    table = fitted(3)
    contexts, _ = contexts_of(*corpus(seed=2, count=30), width=2)
    batch = contexts[:24].reshape(4, 6, 2)
    assert torch.equal(table.log_probs(batch), table.log_probs(contexts[:24]).view(4, 6, SIZE))
    assert fitted(1).log_probs(torch.empty(4, 6, 0, dtype=torch.long)).shape == (4, 6, SIZE)
    assert table.log_probs(contexts[:0]).shape == (0, SIZE)
    assert table.log_prob(contexts[:0], contexts[:0, 0]).shape == (0,)


def test_matched_order_is_the_longest_ngram_of_the_corpus():
    table = NgramTable(3, Vocabulary(size=SIZE))
    table.fit(np.array([START, 5, 6, 7, END]), np.array([0, 5]))
    contexts = torch.tensor([[-1, START], [5, 6], [9, 6], [5, 9], [5, 6], [6, 7]])
    targets = torch.tensor([5, 7, 7, 7, 9, END])
    # <s> 5; 5 6 7; only 6 7; only 7; 9 was never seen but is in the vocabulary; 6 7 </s>
    assert table.matched_order(contexts, targets).tolist() == [2, 3, 2, 1, 1, 3]


def test_unfitted_table_is_uniform():
    table = NgramTable(4, Vocabulary(size=SIZE))
    whole = table.log_probs(torch.tensor([[-1, START, 7]]))[0].exp()
    assert whole.sum().item() == pytest.approx(1)
    assert whole[[1, 3, 5, 19]].tolist() == pytest.approx([1 / 17] * 4)


def test_fit_reports_fallback_discounts():
    table = NgramTable(3, Vocabulary(size=SIZE))
    record = table.fit(np.array([START, 5, END]), np.array([0, 3]))
    assert record.fallback_orders == (1, 2, 3)
    assert record.discounts.tolist() == [[0.5, 1.0, 1.5]] * 3


def test_state_dict_round_trip_into_an_empty_table(tmp_path):
    table = fitted(4)
    save_file(table.state_dict(), tmp_path / "table.safetensors")
    other = torch.nn.Sequential(NgramTable(4, Vocabulary(size=SIZE)))
    other[0].log_probs(torch.tensor([[5, 6, 7]]))  # its empty index must not be kept
    stored = {
        f"0.{name}": value for name, value in load_file(tmp_path / "table.safetensors").items()
    }
    other.load_state_dict(stored)
    for name, value in table.state_dict().items():
        assert other[0].state_dict()[name].dtype == value.dtype
        assert torch.equal(other[0].state_dict()[name], value)
    contexts, targets = contexts_of(*corpus(seed=1, count=30), width=3)
    assert torch.equal(other[0].log_prob(contexts, targets), table.log_prob(contexts, targets))


def test_loading_copies_tensors_and_is_strict():
    table, other = fitted(2), NgramTable(2, Vocabulary(size=SIZE))
    state = table.state_dict()
    other.load_state_dict(state)
    other.table_log_probs.zero_()
    assert table.table_log_probs.min() < -1
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({name: state[name] for name in ("keys", "level_ends")} | {"x": 1})


def test_inconsistent_tables_are_refused():
    state = dict(fitted(2).state_dict())
    state["keys"] = state["keys"][:-1]
    with pytest.raises(UserError, match="do not belong together"):
        NgramTable(2, Vocabulary(size=SIZE)).load_state_dict(state)


def test_precision_changes_leave_the_tables_alone():
    table = fitted(3)
    before = {name: value.clone() for name, value in table.state_dict().items()}
    moved = torch.nn.Sequential(table).to(torch.bfloat16).half()[0]
    for name, value in moved.state_dict().items():
        assert value.dtype == before[name].dtype and torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("contexts", "targets", "message"),
    [
        ([[5, 6, 7]], [5], "contexts of 2 words"),
        ([[5, 99]], [5], "from -1 to 19"),
        ([[5, 6]], [-1], "from 0 to 19"),
    ],
)
def test_invalid_contexts_and_targets_are_refused(contexts, targets, message):
    with pytest.raises(UserError, match=message):
        fitted(3).log_prob(torch.tensor(contexts), torch.tensor(targets))


def test_tables_for_another_vocabulary_are_refused():
    with pytest.raises(UserError, match="vocabulary that belongs to the tables"):
        NgramTable(3, Vocabulary(size=9)).set_tables(fitted(3).tables)
