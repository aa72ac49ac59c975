"""HMM parameters: token blocks, and when the cached tables are recomputed."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.hmm_parameters import NeuralHMMParameters, TabularHMMParameters, blocks_by_rank


@pytest.mark.parametrize(("size", "count"), [(8, 5), (9, 2), (1000, 8), (10_000, 64)])
def test_blocks_are_nonempty_and_ordered_by_rank(size: int, count: int):
    vocabulary = Vocabulary(size=size)
    block = blocks_by_rank(vocabulary, count)
    tokens = [i for i in range(size) if i not in vocabulary.unpredictable]
    assert sorted(set(block[tokens].tolist())) == list(range(count))
    assert (block[tokens].diff() >= 0).all()


def test_blocks_have_about_equal_mass_under_zipf():
    vocabulary = Vocabulary(size=10_000)
    block = blocks_by_rank(vocabulary, 8)
    tokens = [i for i in range(vocabulary.size) if i not in vocabulary.unpredictable]
    mass = torch.zeros(8).double()
    for rank, token in enumerate(tokens, start=1):
        mass[block[token]] += 1 / (rank + 2.7)
    # The heaviest token has a fifth of a block's share, and a block is over by one at most.
    assert mass.max() / mass.min() < 1.2


def test_more_blocks_than_tokens_is_refused():
    with pytest.raises(UserError, match="blocks"):
        blocks_by_rank(Vocabulary(size=8), 6)


def test_states_not_divisible_by_blocks_are_refused():
    with pytest.raises(UserError, match="got 7 states and 2 blocks"):
        TabularHMMParameters(7, Vocabulary(size=9), blocks=2)


@pytest.mark.parametrize("kind", ["free", "neural"])
def test_cached_tables_follow_parameter_updates(kind: str):
    """Cached while nothing changes, and recomputed after a step of any optimiser."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(size=9)
    tables = (
        TabularHMMParameters(4, vocabulary)
        if kind == "free"
        else NeuralHMMParameters(4, 3, vocabulary)
    )
    tables.eval()
    with torch.no_grad():
        before = tables.tables()
        assert tables.tables() is before
    for optimizer in (
        torch.optim.AdamW(tables.parameters(), lr=0.1, fused=True),
        torch.optim.SGD(tables.parameters(), lr=0.1),
    ):
        tables.tables().transition[0, 0].backward()
        optimizer.step()
        with torch.no_grad():
            after = tables.tables()
        assert not torch.equal(after.transition, before.transition)
        torch.testing.assert_close(after.transition, tables.compute(None).transition)
        before = after
    other = type(tables)(4, vocabulary) if kind == "free" else NeuralHMMParameters(4, 3, vocabulary)
    tables.load_state_dict(other.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(tables.tables().start, other.tables().start)


def test_set_blocks_reassigns_tokens():
    tables = TabularHMMParameters(4, Vocabulary(size=9), blocks=2)
    tables.set_blocks(torch.tensor([0, 1, 0, 0, 0, 1, 0, 1, 0]))
    computed = tables.tables()
    for block in (0, 1):
        mass = computed.emission[computed.block == block].exp().sum(0)
        torch.testing.assert_close(mass, torch.ones(2))
