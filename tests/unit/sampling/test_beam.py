"""Beam search against exhaustive search and the notes' example."""

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
    return sorted(complete, key=lambda each: -each[1] / (len(each[0]) + 1) ** penalty)


def test_a_beam_of_two_finds_what_greedy_misses(notes_example):
    system, tokens = notes_example
    prefix = [tokens.index(character) for character in "我爱"]
    ((best, second),) = beam_search(system, BeamConfig(width=2, best=2), prefix=prefix)
    assert "".join(tokens[token] for token in best.tokens) == "我爱苹果"
    assert best.log_prob == pytest.approx(math.log(0.45), abs=1e-12)
    assert "".join(tokens[token] for token in second.tokens) == "我爱大妈"
    assert second.log_prob == pytest.approx(math.log(0.12), abs=1e-12)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_as_wide_as_the_space_is_exhaustive(random_table, penalty):
    beam = BeamConfig(width=27, best=40, length_penalty=penalty, max_length=4)
    (found,) = beam_search(random_table, beam)
    expected = exhaustive(random_table, penalty)
    assert len(expected) == 40  # 1 + 3 + 9 + 27 sequences
    assert [each.tokens for each in found] == [tokens for tokens, _ in expected]
    assert [each.log_prob for each in found] == pytest.approx([value for _, value in expected])
    assert all(each.finished for each in found)


@pytest.mark.parametrize("ahead", [None, 0, 1])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 5, 27])
def test_the_best_is_the_same_however_many_are_asked_for(random_table, width, penalty, ahead):
    beam = BeamConfig(width=width, length_penalty=penalty, max_length=4, ahead=ahead)
    lists = [beam_search(random_table, replace(beam, best=best))[0] for best in (1, 2, 3, 10)]
    for shorter, longer in itertools.pairwise(lists):
        assert longer[: len(shorter)] == shorter
        assert [e.score for e in longer] == sorted((e.score for e in longer), reverse=True)


def test_a_beam_of_one_is_never_worse_than_greedy(random_table):
    for first in (5, 6, 7):
        (following,) = greedy_search(random_table, max_length=3, prefix=[first])
        ((found,),) = beam_search(random_table, BeamConfig(width=1, max_length=3), prefix=[first])
        assert found.log_prob >= following.log_prob


def test_the_search_stops_when_nothing_open_can_win(table):
    # The end comes first with 0.9, so no longer sequence can be more probable than that.
    system = table({(): 0.9, (5, 5, 5): 0.1}, 6)
    ((found,),) = beam_search(system, BeamConfig(width=3, max_length=50))
    assert found.tokens == () and found.log_prob == pytest.approx(math.log(0.9))
    assert system.steps == 1
    # By the mean the long one wins, so the search must go on: log 0.1 / 4 > log 0.9 is false,
    # but log 0.3 / 4 = -0.30 > log 0.7 / 1 = -0.36 holds.
    system = table({(): 0.7, (5, 5, 5): 0.3}, 6)
    ((found,),) = beam_search(system, BeamConfig(width=3, length_penalty=1.0, max_length=50))
    assert found.tokens == (5, 5, 5)
    assert found.score == pytest.approx(math.log(0.3) / 4)
    assert found.log_prob == pytest.approx(math.log(0.3))


@pytest.mark.parametrize(("ahead", "expected"), [(0, ()), (1, ()), (2, (5, 5, 5))])
def test_a_search_waits_for_a_longer_one_as_far_as_it_looks_ahead(table, ahead, expected):
    # After one token log 0.3 / (2 + ahead) must beat log 0.7 = -0.36: -0.60, -0.40, -0.30.
    system = table({(): 0.7, (5, 5, 5): 0.3}, 6)
    beam = BeamConfig(width=3, length_penalty=1.0, max_length=50, ahead=ahead)
    ((found,),) = beam_search(system, beam)
    assert found.tokens == expected


@pytest.mark.parametrize(("within", "expected"), [(math.inf, (6, 7, 7)), (0.8, (5,)), (0.0, (5,))])
def test_what_falls_far_behind_the_best_is_dropped(table, within, expected):
    # 6 begins log 0.7 - log 0.3 = 0.85 nats behind 5; of the two texts the longer one wins, if it
    # is still there: log 0.3 / 4² = -0.075, log 0.7 / 2² = -0.089.
    system = table({(5,): 0.7, (6, 7, 7): 0.3}, 8)
    beam = BeamConfig(width=3, length_penalty=2.0, within=within)
    ((found,),) = beam_search(system, beam)
    assert found.tokens == expected


def test_what_is_cut_off_is_marked_and_comes_last(table):
    system = table({(): 0.1, (5, 5, 5): 0.6, (6, 6, 6): 0.3}, 7)
    (found,) = beam_search(system, BeamConfig(width=4, best=3, max_length=2))
    assert [(each.tokens, each.finished) for each in found] == [
        ((), True),
        ((5, 5), False),
        ((6, 6), False),
    ]
    assert found[1].log_prob == pytest.approx(math.log(0.6))


def test_impossible_sequences_never_come(table):
    system = table({(5,): 1.0}, 9)
    (found,) = beam_search(system, BeamConfig(width=4, best=4, max_length=5))
    assert [each.tokens for each in found] == [(5,)]


def test_each_source_has_its_own_search(random_table):
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


def test_the_callers_grad_mode_is_left_alone(random_table):
    beam_search(random_table, BeamConfig(width=2, max_length=3))
    assert torch.is_grad_enabled()


def kept_prefixes(system, width: int, longest: int) -> list[set[tuple[int, ...]]]:
    """The open prefixes of each length that a textbook search keeps: the `width` likeliest of all
    that go on from those kept before."""
    kept: list[set[tuple[int, ...]]] = [{()}]
    for _ in range(longest - 1):
        grown = [
            (*prefix, token)
            for prefix in kept[-1]
            for token in range(system.vocabulary.size)
            if token != system.vocabulary.end and system.mass.get((*prefix, token), 0.0) > 0
        ]
        kept.append(set(sorted(grown, key=lambda each: -system.mass[each])[:width]))
    return kept


def test_a_wider_beam_is_worse_only_where_the_search_lost_the_better_one(table):
    """Over random tables: what a narrower beam found and a wider one does not beat was really
    pruned on the way, by likelier prefixes of the same length; nothing finished is lost."""
    lost, longest, widths = 0, 6, range(1, 8)
    space = list(itertools.product((5, 6, 7), repeat=longest))
    for seed in range(20):
        weights = torch.rand(len(space), generator=torch.Generator().manual_seed(seed)).double()
        shares = (weights**4 / (weights**4).sum()).tolist()
        system = table(dict(zip(space, shares, strict=True)), 8)
        best = {k: beam_search(system, BeamConfig(width=k, max_length=7))[0][0] for k in widths}
        for narrow, wide in itertools.combinations(widths, 2):
            better = best[narrow].tokens
            if best[narrow].log_prob > best[wide].log_prob + 1e-12:
                lost += 1
                kept = kept_prefixes(system, wide, longest + 1)
                assert any(better[:n] not in kept[n] for n in range(longest + 1))
    assert lost > 0, "the law is put to no test: choose tables where a wide beam loses something"


@pytest.mark.parametrize("size", [7, 1199, 1200, 1250, 8000])
def test_the_largest_of_a_long_row_are_those_of_topk(size):
    values = torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    values[:, ::3] = -math.inf
    values[7] = -math.inf
    found, places = top_values(values, 6)
    assert torch.equal(found, values.topk(6).values)
    assert torch.equal(values.gather(1, places), found)
    assert all(len(set(row)) == 6 for row in places.tolist())


@pytest.mark.parametrize("size", [9, 3000])
def test_a_model_gone_wrong_is_told(table, size):
    wrong = table({(5,): 0.5, (6,): math.nan}, size)
    with pytest.raises(UserError, match="are NaN"):
        beam_search(wrong, BeamConfig(width=3))
