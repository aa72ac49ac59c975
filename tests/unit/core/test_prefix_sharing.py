"""Prefix sharing: prefixes common to several rows are computed once, with equal results."""

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
"""Rows with shared prefixes: one repeated, one a prefix of others, one only a start token."""


def batch() -> Batch:
    return Batch.collate(TEXTS, pad=0)


@torch.no_grad()
def test_prefix_index_equals_set_of_prefix_tuples():
    given = batch()
    index = PrefixIndex.from_tokens(given.tokens, given.lengths)
    assert index is not None
    prefixes = [[tuple(text[: position + 1]) for position in range(len(text))] for text in TEXTS]
    unique = {prefix for row in prefixes for prefix in row}
    assert len(index.first_positions) == len(unique) == 12
    numbers = {}
    for row, row_prefixes in enumerate(prefixes):
        for position, prefix in enumerate(row_prefixes):
            number = int(index.index[row, position])
            assert numbers.setdefault(prefix, number) == number
    assert sorted(numbers.values()) == list(range(12))
    time = given.tokens.shape[1]
    for prefix, number in numbers.items():
        row, position = divmod(int(index.first_positions[number]), time)
        assert prefixes[row][position] == prefix


def test_padding_is_distinct_from_the_pad_token():
    """One row ends where another continues with the id of the padding token."""
    tokens = torch.tensor([[2, 5, 0, 0], [2, 5, 0, 0]])
    with torch.no_grad():
        index = PrefixIndex.from_tokens(tokens, torch.tensor([2, 4]))
    assert index is not None and len(index.first_positions) == 4


def test_no_sharing_with_few_repeats_or_gradients():
    distinct = torch.arange(12).view(3, 4)
    lengths = torch.full((3,), 4)
    with torch.no_grad():
        assert PrefixIndex.from_tokens(distinct, lengths) is None
        assert PrefixIndex.from_tokens(distinct[:1].repeat(3, 1), lengths) is not None
    assert PrefixIndex.from_tokens(distinct[:1].repeat(3, 1), lengths) is None


@pytest.mark.parametrize("positions", ["learned", "buckets", "shaw", "alibi", "rotary"])
def test_transformer_computes_each_shared_prefix_once(positions: str):
    torch.manual_seed(0)
    system = gpt.build(replace(gpt.SIZES["tiny"], positions=positions), VOCABULARY).eval()
    computed: list[int] = []
    for block in system.backbone.stack.blocks:
        block.feed_forward.register_forward_pre_hook(
            lambda _, given: computed.append(given[0].shape[:2].numel())
        )
    view = causal_view(batch())
    with torch.no_grad():
        shared = system.hidden(view).values
    full = system.hidden(view).values
    real = torch.arange(view.inputs.shape[1]) < view.lengths[:, None]
    torch.testing.assert_close(shared[real], full[real], atol=1e-5, rtol=1e-5)
    # Three of the twelve prefixes are whole texts, whose last token is not an input.
    layers = len(system.backbone.stack.blocks)
    assert computed == [9] * layers + [view.inputs.numel()] * layers


@pytest.mark.parametrize("zoo", [gpt, lstm, parent], ids=lambda z: z.__name__[10:])
def test_emission_queries_each_prefix_target_pair_once(zoo):
    torch.manual_seed(0)
    system = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval()
    queried: list[tuple[int, int]] = []
    inner = system.emission.log_prob_by_index

    def counted(hidden, which, targets):
        queried.append((len(hidden), len(targets)))
        return inner(hidden, which, targets)

    system.emission.log_prob_by_index = counted
    with torch.no_grad():
        shared = system.log_prob(batch()).per_token
    full = system.log_prob(batch()).per_token
    torch.testing.assert_close(shared, full, atol=1e-5, rtol=1e-5)
    # Nine prefixes continue, two of them with two targets; 19 positions in all.
    # `parent` normalises each source once and does not use this method.
    assert queried == ([] if zoo is parent else [(9, 11)])


def test_impossible_token_does_not_affect_padding():
    """A log-probability of -inf stays at its position: padding scores 0."""
    system = gpt.build(gpt.SIZES["tiny"], VOCABULARY).eval()
    given = Batch.collate([[2, 5, 2, 3], [2, 5, 2, 3], [2, 5]], pad=0)
    with torch.no_grad():
        log_probs = system.log_prob(given).per_token
    assert log_probs[:2, 1].tolist() == [-torch.inf] * 2
    assert log_probs[2, 1:].tolist() == [0.0, 0.0]
    assert log_probs[:, 0].isfinite().all()
