"""Banned and required words in a search, against all sequences there are."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.unit.sampling.test_beam import exhaustive

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import Tokenizer, train_tokenizer
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.lexical_constraints import (
    LexicalConstraints,
    WordBoundaries,
    token_spellings,
    word_boundaries,
)

WIDE = BeamConfig(width=40, best=40, max_length=4)


def contains(written: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    size = len(phrase)
    places = range(len(written) - size + 1)
    return any(written[place : place + size] == phrase for place in places)


def allowed(system, constraints: LexicalConstraints) -> list[tuple[tuple[int, ...], float]]:
    """Where each token is a word: by the tokens one after another."""
    return [
        (tokens, value)
        for tokens, value in exhaustive(system)
        if all(any(contains(tokens, one) for one in each) for each in constraints.required)
        and not any(contains(tokens, phrase) for phrase in constraints.banned)
    ]


@pytest.mark.parametrize(
    "constraints",
    [
        LexicalConstraints(banned=((5,),)),
        LexicalConstraints(banned=((5, 6), (7, 7))),
        LexicalConstraints(required=(((7,),),)),
        LexicalConstraints(required=(((5,),), ((7,),))),
        LexicalConstraints(required=(((5, 5), (7,)),)),
        LexicalConstraints(required=(((6, 5),),), banned=((7,),)),
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
    plain = beam_search(random_table, BeamConfig(width=2, best=2, max_length=4))[0]
    pairs = itertools.product((5, 6, 7), repeat=2)
    needed = next(pair for pair in pairs if not any(contains(e.tokens, pair) for e in plain))
    wanted = LexicalConstraints(required=((needed,),))
    (best,) = beam_search(random_table, BeamConfig(width=2, max_length=4), constraints=wanted)[0]
    assert best.finished and contains(best.tokens, needed)


def test_the_log_probability_is_the_models_own(random_table):
    (best,) = beam_search(random_table, WIDE, constraints=LexicalConstraints(banned=((5,),)))[0][:1]
    assert dict(exhaustive(random_table))[best.tokens] == pytest.approx(best.log_prob)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beginning_counts_as_found(random_table, penalty):
    """The same records as without it: those of all sequences that begin so."""
    beam = BeamConfig(width=40, best=40, max_length=4, length_penalty=penalty)
    (every,) = beam_search(random_table, beam)
    (begun,) = beam_search(random_table, beam, constraints=LexicalConstraints(prefix=(6, 5)))
    expected = [each for each in every if each.tokens[:2] == (6, 5)]
    assert [each.tokens for each in begun] == [each.tokens for each in expected] != []
    for one, other in zip(begun, expected, strict=True):
        assert (one.log_prob, one.score) == pytest.approx((other.log_prob, other.score))


TEXTS = ["run runs running ( run ) . run , runs run rerun"] * 3


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "char"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, TEXTS, size=400)


TOKENS = {
    "wordpiece": ("run", "##s", "##n", "(", "##run"),
    "bpe": ("Ġrun", "s", "Ġ(", "run", "Ġ"),
    "char": (*"runs", " "),
}
"""What the sequences below are made of: each spells `run` in the tokeniser's own way alone."""


def test_words_are_whole_against_all_texts(table, tokenizer):
    """Every sequence of the tokens: the word stands there where the text has it between signs."""
    ids = [tokenizer.id(token) for token in TOKENS[tokenizer.kind]]
    assert None not in ids
    longest = 4 if tokenizer.kind == "char" else 3
    space = [each for n in range(longest + 1) for each in itertools.product(ids, repeat=n)]
    weights = torch.rand(len(space), generator=torch.Generator().manual_seed(1)).double()
    shares = (weights / weights.sum()).tolist()
    system = table(dict(zip(space, shares, strict=True)), tokenizer.vocabulary.size)
    spellings, borders = token_spellings("run", tokenizer, "word"), word_boundaries(tokenizer)
    beam = BeamConfig(width=len(space), best=len(space), max_length=longest + 1)

    def holds(tokens: tuple[int, ...]) -> bool:
        text = tokenizer.decode(tokens).replace("(", " ").replace("##", "")
        return "run" in text.split()

    every = [tokens for tokens, _ in exhaustive(system)]
    assert 0 < sum(map(holds, every)) < len(every)
    banning = LexicalConstraints(banned=spellings, boundaries=borders)
    (found,) = beam_search(system, beam, constraints=banning)
    assert {each.tokens for each in found} == {each for each in every if not holds(each)}
    requiring = LexicalConstraints(required=(spellings,), boundaries=borders)
    (found,) = beam_search(system, beam, constraints=requiring)
    assert {each.tokens for each in found} == {each for each in every if holds(each)}


def test_a_word_that_stands_at_the_end_is_closed_by_a_narrow_search(table):
    """5 is `run`, 6 goes on with it: after 5 comes 6 in all but one of a thousand texts."""
    system = table({(5, 6): 0.999, (5, 7): 0.001}, 8)
    wanted = LexicalConstraints(
        required=(((5,),),), boundaries=WordBoundaries(continuation_tokens=frozenset({6}))
    )
    ((found,),) = beam_search(system, BeamConfig(width=1, max_length=3), constraints=wanted)
    assert found.tokens == (5, 7) and found.log_prob == pytest.approx(math.log(0.001))


def test_what_is_cut_off_does_not_end_in_a_banned_word(table):
    system = table({(6, 5, 6): 0.9, (6, 7, 6): 0.1}, 8)
    banned = LexicalConstraints(
        banned=((5,),), boundaries=WordBoundaries(continuation_tokens=frozenset({6}))
    )
    for most, expected in ((2, (6, 7)), (3, (6, 5, 6))):
        ((found,),) = beam_search(system, BeamConfig(width=2, max_length=most), constraints=banned)
        assert (found.tokens, found.finished) == (expected, False)


def test_what_is_missing_is_told(table):
    system = table({(5, 5, 5): 1.0}, 8)
    wanted = LexicalConstraints(required=(((7,), (6, 6)), ((5,),)))
    ((found,),) = beam_search(system, BeamConfig(width=2, max_length=2), constraints=wanted)
    assert (found.tokens, found.missing) == ((5, 5), ((7,),))


def test_signs_are_no_part_of_a_word():
    words = train_tokenizer("bpe", ["grün. grün, don't 大象run"] * 5, size=400)
    borders = word_boundaries(words)
    green, stop = words.encode("grün.")
    assert borders.is_boundary(green, stop) and not borders.continues_word(green)
    half = next(id for id in range(words.vocabulary.size) if words.token(id) == "Ã")
    assert (
        half in borders.continuation_tokens
    )  # the first byte of ü: it can't be told, so it is a letter


def test_what_can_not_be_is_refused():
    with pytest.raises(UserError, match="a required phrase contains a banned one"):
        LexicalConstraints(banned=((5,),), required=(((4, 5),),))
    with pytest.raises(UserError, match="the prefix contains a banned phrase"):
        LexicalConstraints(banned=((5,),), prefix=(4, 5))
    with pytest.raises(UserError, match="at least one token"):
        LexicalConstraints(banned=((),))
    # Where 5 goes on with a word, 4 5 is another word than 4.
    inside = WordBoundaries(continuation_tokens=frozenset({5}))
    assert LexicalConstraints(banned=((4,),), required=(((4, 5),),), boundaries=inside).violates(
        (4, 6)
    )
