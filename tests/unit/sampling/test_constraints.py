"""Banned and required words in a search, against all sequences there are."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.sampling.test_beam import exhaustive

from lmlab.core.errors import UserError
from lmlab.sampling.beam import Beam, beam_search
from lmlab.sampling.constraints import Constraints, begun, contains

WIDE = Beam(width=40, best=40, max_length=4)


def allowed(system, constraints: Constraints) -> list[tuple[tuple[int, ...], float]]:
    return [
        (tokens, value)
        for tokens, value in exhaustive(system)
        if constraints.met(tokens)
        and not any(contains(tokens, phrase) for phrase in constraints.banned)
    ]


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(banned=((5,),)),
        Constraints(banned=((5, 6), (7, 7))),
        Constraints(required=((7,),)),
        Constraints(required=((5,), (7,))),
        Constraints(required=((6, 5),), banned=((7,),)),
    ],
)
def test_a_wide_search_finds_all_that_keep_to_them_in_order(random_table, constraints):
    (found,) = beam_search(random_table, WIDE, constraints=constraints)
    expected = allowed(random_table, constraints)
    assert 0 < len(expected) < 40
    assert [each.tokens for each in found if each.finished] == [tokens for tokens, _ in expected]
    finished = [each.log_prob for each in found if each.finished]
    assert finished == pytest.approx([value for _, value in expected])


def test_a_narrow_search_still_holds_what_is_required(random_table):
    """Its likeliest sequences are without it: a plain beam of two does not find it."""
    plain = beam_search(random_table, Beam(width=2, best=2, max_length=4))[0]
    pairs = itertools.product((5, 6, 7), repeat=2)
    needed = next(pair for pair in pairs if not any(contains(e.tokens, pair) for e in plain))
    wanted = Constraints(required=(needed,))
    (best,) = beam_search(random_table, Beam(width=2, max_length=4), constraints=wanted)[0]
    assert best.finished and contains(best.tokens, needed)


def test_the_log_probability_is_the_models_own(random_table):
    (best,) = beam_search(random_table, WIDE, constraints=Constraints(banned=((5,),)))[0][:1]
    assert dict(exhaustive(random_table))[best.tokens] == pytest.approx(best.log_prob)


def test_begun_and_contained():
    assert contains((1, 2, 3), (2, 3)) and not contains((1, 2, 3), (1, 3))
    assert begun((1, 2, 3), (2, 3, 4)) == 2
    assert begun((1, 2), (1, 2)) == 0  # whole, not begun: fewer than all of it are there
    assert begun((), (4,)) == 0


def test_what_can_not_be_is_refused():
    with pytest.raises(UserError, match="what is required holds what is banned"):
        Constraints(banned=((5,),), required=((4, 5),))
    with pytest.raises(UserError, match="at least one token"):
        Constraints(banned=((),))
