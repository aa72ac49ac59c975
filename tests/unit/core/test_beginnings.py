"""Beginnings that rows share are found, read and asked once, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.prefix_sharing import PrefixIndex
from lmlab.core.view import causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import gpt, lstm, parent

VOCABULARY = Vocabulary(size=12)
TEXTS = [[2, 5, 6, 7, 3], [2, 5, 6, 8, 9, 3], [2, 5, 6, 7, 3], [2, 5, 6], [2, 6, 5, 7, 3], [2]]
"""Rows that begin alike, one twice, one the beginning of others, one of the start alone."""


def batch() -> Batch:
    return Batch.collate(TEXTS, pad=0)


@torch.no_grad()
def test_they_are_those_of_a_set_of_tuples():
    given = batch()
    found = PrefixIndex.from_tokens(given.tokens, given.lengths)
    assert found is not None
    every = [[tuple(text[: place + 1]) for place in range(len(text))] for text in TEXTS]
    different = {beginning for row in every for beginning in row}
    assert len(found.first_positions) == len(different) == 12
    numbers = {}
    for row, beginnings in enumerate(every):
        for place, beginning in enumerate(beginnings):
            number = int(found.index[row, place])
            assert numbers.setdefault(beginning, number) == number
    assert sorted(numbers.values()) == list(range(12))
    time = given.tokens.shape[1]
    for beginning, number in numbers.items():
        row, place = divmod(int(found.first_positions[number]), time)
        assert every[row][place] == beginning


def test_padding_is_no_token_even_where_it_is_one():
    """A row that ends where another goes on by the padding's own number."""
    tokens = torch.tensor([[2, 5, 0, 0], [2, 5, 0, 0]])
    with torch.no_grad():
        found = PrefixIndex.from_tokens(tokens, torch.tensor([2, 4]))
    assert found is not None and len(found.first_positions) == 4


def test_nothing_is_shared_where_little_is_alike_or_gradients_are_wanted():
    different = torch.arange(12).view(3, 4)
    lengths = torch.full((3,), 4)
    with torch.no_grad():
        assert PrefixIndex.from_tokens(different, lengths) is None
        assert PrefixIndex.from_tokens(different[:1].repeat(3, 1), lengths) is not None
    assert PrefixIndex.from_tokens(different[:1].repeat(3, 1), lengths) is None


@pytest.mark.parametrize("positions", ["learned", "buckets", "shaw", "alibi", "rotary"])
def test_a_transformer_reads_each_once(positions: str):
    torch.manual_seed(0)
    system = gpt.build(replace(gpt.SIZES["tiny"], positions=positions), VOCABULARY).eval()
    fed: list[int] = []
    for block in system.backbone.stack.blocks:
        block.feed_forward.register_forward_pre_hook(
            lambda _, given: fed.append(given[0].shape[:2].numel())
        )
    view = causal_view(batch())
    with torch.no_grad():
        found = system.hidden(view).values
    clear = system.hidden(view).values
    real = torch.arange(view.inputs.shape[1]) < view.lengths[:, None]
    torch.testing.assert_close(found[real], clear[real], atol=1e-5, rtol=1e-5)
    # Of the twelve beginnings three are whole texts, whose last token is not read.
    layers = len(system.backbone.stack.blocks)
    assert fed == [9] * layers + [view.inputs.numel()] * layers


@pytest.mark.parametrize("zoo", [gpt, lstm, parent], ids=lambda z: z.__name__[10:])
def test_what_comes_after_the_same_is_asked_once(zoo):
    torch.manual_seed(0)
    system = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval()
    asked: list[tuple[int, int]] = []
    inner = system.emission.log_prob_by_index

    def counted(hidden, which, targets):
        asked.append((len(hidden), len(targets)))
        return inner(hidden, which, targets)

    system.emission.log_prob_by_index = counted
    with torch.no_grad():
        found = system.log_prob(batch()).per_token
    clear = system.log_prob(batch()).per_token
    torch.testing.assert_close(found, clear, atol=1e-5, rtol=1e-5)
    # Nine beginnings go on, two of them in two ways; of 19 places in all.
    # `parent` normalises each source once, and does not ask so.
    assert asked == ([] if zoo is parent else [(9, 11)])


def test_a_token_that_cannot_come_leaves_no_trace_at_padding():
    """log 0 stays where it is: padding counts nothing, whatever its number points at."""
    system = gpt.build(gpt.SIZES["tiny"], VOCABULARY).eval()
    given = Batch.collate([[2, 5, 2, 3], [2, 5, 2, 3], [2, 5]], pad=0)
    with torch.no_grad():
        found = system.log_prob(given).per_token
    assert found[:2, 1].tolist() == [-torch.inf] * 2
    assert found[2, 1:].tolist() == [0.0, 0.0]
    assert found[:, 0].isfinite().all()
