"""Beam search against exhaustive search and an example where greedy search fails."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.sampling.beam_expansion import top_values
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import greedy_search


def exhaustive(system, penalty: float = 0.0) -> list[tuple[tuple[int, ...], float]]:
    """Every complete sequence with its log-probability, best first by the penalised score."""
    complete = [
        (tokens[:-1], math.log(mass))
        for tokens, mass in system.mass.items()
        if tokens[-1:] == (system.vocabulary.end,) and mass > 0
    ]
    return sorted(complete, key=lambda scored: -scored[1] / (len(scored[0]) + 1) ** penalty)


def test_beam_of_two_finds_what_greedy_misses(greedy_trap):
    system, tokens = greedy_trap
    prefix = [tokens.index(character) for character in "我爱"]
    ((best, second),) = beam_search(system, BeamConfig(width=2, best=2), prefix=prefix)
    assert "".join(tokens[token] for token in best.tokens) == "我爱苹果"
    assert best.log_prob == pytest.approx(math.log(0.45), abs=1e-12)
    assert "".join(tokens[token] for token in second.tokens) == "我爱大妈"
    assert second.log_prob == pytest.approx(math.log(0.12), abs=1e-12)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_beam_as_wide_as_the_space_is_exhaustive(random_table, penalty):
    beam = BeamConfig(width=27, best=40, length_penalty=penalty, max_length=4)
    (hypotheses,) = beam_search(random_table, beam)
    expected = exhaustive(random_table, penalty)
    assert len(expected) == 40  # 1 + 3 + 9 + 27 sequences
    assert [hypothesis.tokens for hypothesis in hypotheses] == [tokens for tokens, _ in expected]
    assert [hypothesis.log_prob for hypothesis in hypotheses] == pytest.approx(
        [value for _, value in expected]
    )
    assert all(hypothesis.finished for hypothesis in hypotheses)


@pytest.mark.parametrize("ahead", [None, 0, 1])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 5, 27])
def test_top_hypotheses_do_not_depend_on_best(random_table, width, penalty, ahead):
    beam = BeamConfig(width=width, length_penalty=penalty, max_length=4, ahead=ahead)
    lists = [beam_search(random_table, replace(beam, best=best))[0] for best in (1, 2, 3, 10)]
    for shorter, longer in itertools.pairwise(lists):
        assert longer[: len(shorter)] == shorter
        assert [e.score for e in longer] == sorted((e.score for e in longer), reverse=True)


def test_beam_of_one_is_never_worse_than_greedy(random_table):
    for first in (5, 6, 7):
        (greedy,) = greedy_search(random_table, max_length=3, prefix=[first])
        ((hypothesis,),) = beam_search(
            random_table, BeamConfig(width=1, max_length=3), prefix=[first]
        )
        assert hypothesis.log_prob >= greedy.log_prob


def test_search_stops_when_no_open_hypothesis_can_win(table):
    # The end comes first with 0.9, so no longer sequence can be more probable than that.
    system = table({(): 0.9, (5, 5, 5): 0.1}, 6)
    ((hypothesis,),) = beam_search(system, BeamConfig(width=3, max_length=50))
    assert hypothesis.tokens == () and hypothesis.log_prob == pytest.approx(math.log(0.9))
    assert system.steps == 1
    # By the mean the long one wins, so the search must go on: log 0.1 / 4 > log 0.9 is false,
    # but log 0.3 / 4 = -0.30 > log 0.7 / 1 = -0.36 holds.
    system = table({(): 0.7, (5, 5, 5): 0.3}, 6)
    ((hypothesis,),) = beam_search(system, BeamConfig(width=3, length_penalty=1.0, max_length=50))
    assert hypothesis.tokens == (5, 5, 5)
    assert hypothesis.score == pytest.approx(math.log(0.3) / 4)
    assert hypothesis.log_prob == pytest.approx(math.log(0.3))


@pytest.mark.parametrize(("ahead", "expected"), [(0, ()), (1, ()), (2, (5, 5, 5))])
def test_look_ahead_delays_stopping(table, ahead, expected):
    # After one token log 0.3 / (2 + ahead) must beat log 0.7 = -0.36: -0.60, -0.40, -0.30.
    system = table({(): 0.7, (5, 5, 5): 0.3}, 6)
    beam = BeamConfig(width=3, length_penalty=1.0, max_length=50, ahead=ahead)
    ((hypothesis,),) = beam_search(system, beam)
    assert hypothesis.tokens == expected


@pytest.mark.parametrize(("within", "expected"), [(math.inf, (6, 7, 7)), (0.8, (5,)), (0.0, (5,))])
def test_hypotheses_far_behind_the_best_are_pruned(table, within, expected):
    # 6 starts log 0.7 - log 0.3 = 0.85 nats behind 5; of the two texts the longer one wins, if it
    # is not pruned: log 0.3 / 4² = -0.075, log 0.7 / 2² = -0.089.
    system = table({(5,): 0.7, (6, 7, 7): 0.3}, 8)
    beam = BeamConfig(width=3, length_penalty=2.0, within=within)
    ((hypothesis,),) = beam_search(system, beam)
    assert hypothesis.tokens == expected


def test_truncated_hypotheses_are_marked_and_ranked_last(table):
    system = table({(): 0.1, (5, 5, 5): 0.6, (6, 6, 6): 0.3}, 7)
    (hypotheses,) = beam_search(system, BeamConfig(width=4, best=3, max_length=2))
    assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in hypotheses] == [
        ((), True),
        ((5, 5), False),
        ((6, 6), False),
    ]
    assert hypotheses[1].log_prob == pytest.approx(math.log(0.6))


def test_impossible_sequences_are_never_returned(table):
    system = table({(5,): 1.0}, 9)
    (hypotheses,) = beam_search(system, BeamConfig(width=4, best=4, max_length=5))
    assert [hypothesis.tokens for hypothesis in hypotheses] == [(5,)]


def test_batched_beam_search_equals_single_searches(random_table):
    condition = Batch.collate([[2, 5], [2, 6], [2, 7]], 0)
    beam = BeamConfig(width=3, best=2, max_length=3)
    together = beam_search(random_table, beam, condition=condition)
    for row in range(3):
        (alone,) = beam_search(random_table, beam, condition=condition.select([row]))
        assert [e.tokens for e in together[row]] == [e.tokens for e in alone]
        assert [e.log_prob for e in together[row]] == pytest.approx([e.log_prob for e in alone])
    assert len({together[row][0].log_prob for row in range(3)}) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"width": 0},
        {"best": 0},
        {"max_length": 0},
        {"length_penalty": -1.0},
        {"ahead": -1},
        {"within": -0.1},
    ],
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(UserError):
        BeamConfig(**bad)


def test_grad_mode_is_unchanged(random_table):
    beam_search(random_table, BeamConfig(width=2, max_length=3))
    assert torch.is_grad_enabled()


def surviving_prefixes(system, width: int, longest: int) -> list[set[tuple[int, ...]]]:
    """The open prefixes of each length that a textbook beam search keeps: the `width` likeliest
    continuations of the prefixes kept before."""
    survivors: list[set[tuple[int, ...]]] = [{()}]
    for _ in range(longest - 1):
        grown = [
            (*prefix, token)
            for prefix in survivors[-1]
            for token in range(system.vocabulary.size)
            if token != system.vocabulary.end and system.mass.get((*prefix, token), 0.0) > 0
        ]
        survivors.append(
            set(sorted(grown, key=lambda prefix_tokens: -system.mass[prefix_tokens])[:width])
        )
    return survivors


def test_wider_beam_is_worse_only_through_pruning(table):
    """Over random tables: if a narrower beam finds a better text, the wider one pruned its prefix
    for likelier prefixes of the same length; no finished hypothesis is lost."""
    pruned_count, longest, widths = 0, 6, range(1, 8)
    space = list(itertools.product((5, 6, 7), repeat=longest))
    for seed in range(20):
        weights = torch.rand(len(space), generator=torch.Generator().manual_seed(seed)).double()
        shares = (weights**4 / (weights**4).sum()).tolist()
        system = table(dict(zip(space, shares, strict=True)), 8)
        best = {k: beam_search(system, BeamConfig(width=k, max_length=7))[0][0] for k in widths}
        for narrow, wide in itertools.combinations(widths, 2):
            better = best[narrow].tokens
            if best[narrow].log_prob > best[wide].log_prob + 1e-12:
                pruned_count += 1
                survivors = surviving_prefixes(system, wide, longest + 1)
                assert any(better[:n] not in survivors[n] for n in range(longest + 1))
    assert pruned_count > 0, (
        "nothing is tested: choose tables where a wide beam prunes the better text"
    )


@pytest.mark.parametrize("size", [7, 1199, 1200, 1250, 8000])
def test_top_values_equal_topk(size):
    values = torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    values[:, ::3] = -math.inf
    values[7] = -math.inf
    top, indices = top_values(values, 6)
    assert torch.equal(top, values.topk(6).values)
    assert torch.equal(values.gather(1, indices), top)
    assert all(len(set(row)) == 6 for row in indices.tolist())


@pytest.mark.parametrize("size", [9, 3000])
def test_nan_scores_are_reported(table, size):
    wrong = table({(5,): 0.5, (6,): math.nan}, size)
    with pytest.raises(UserError, match="are NaN"):
        beam_search(wrong, BeamConfig(width=3))
