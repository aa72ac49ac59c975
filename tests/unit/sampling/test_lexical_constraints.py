"""Lexical constraints in beam search, against enumeration of all sequences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.unit.sampling.test_beam_search import exhaustive

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


def contains(tokens: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    size = len(phrase)
    positions = range(len(tokens) - size + 1)
    return any(tokens[position : position + size] == phrase for position in positions)


def allowed(system, constraints: LexicalConstraints) -> list[tuple[tuple[int, ...], float]]:
    """All sequences that satisfy the constraints, where each token is a word."""
    return [
        (tokens, value)
        for tokens, value in exhaustive(system)
        if all(
            any(contains(tokens, phrase) for phrase in phrases) for phrases in constraints.required
        )
        and not any(contains(tokens, banned) for banned in constraints.banned)
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
def test_wide_search_finds_all_allowed_sequences_in_order(random_table, constraints):
    (hypotheses,) = beam_search(random_table, WIDE, constraints=constraints)
    expected = allowed(random_table, constraints)
    assert 0 < len(expected) < 40
    assert [hypothesis.tokens for hypothesis in hypotheses if hypothesis.finished] == [
        tokens for tokens, _ in expected
    ]
    finished = [hypothesis.log_prob for hypothesis in hypotheses if hypothesis.finished]
    assert finished == pytest.approx([value for _, value in expected])


def test_narrow_search_satisfies_required_phrases(random_table):
    """The likeliest sequences lack the phrase: an unconstrained beam of two misses it."""
    plain = beam_search(random_table, BeamConfig(width=2, best=2, max_length=4))[0]
    pairs = itertools.product((5, 6, 7), repeat=2)
    needed = next(pair for pair in pairs if not any(contains(e.tokens, pair) for e in plain))
    constraints = LexicalConstraints(required=((needed,),))
    (best,) = beam_search(random_table, BeamConfig(width=2, max_length=4), constraints=constraints)[
        0
    ]
    assert best.finished and contains(best.tokens, needed)


def test_constrained_log_prob_is_the_models_own(random_table):
    (best,) = beam_search(random_table, WIDE, constraints=LexicalConstraints(banned=((5,),)))[0][:1]
    assert dict(exhaustive(random_table))[best.tokens] == pytest.approx(best.log_prob)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_forced_prefix_is_scored(random_table, penalty):
    """The same hypotheses and scores as an unconstrained search finds with that prefix."""
    beam = BeamConfig(width=40, best=40, max_length=4, length_penalty=penalty)
    (unconstrained,) = beam_search(random_table, beam)
    (prefixed,) = beam_search(random_table, beam, constraints=LexicalConstraints(prefix=(6, 5)))
    expected = [hypothesis for hypothesis in unconstrained if hypothesis.tokens[:2] == (6, 5)]
    assert (
        [hypothesis.tokens for hypothesis in prefixed]
        == [hypothesis.tokens for hypothesis in expected]
        != []
    )
    for one, other in zip(prefixed, expected, strict=True):
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
"""Tokens of the sequences below; each set spells `run` in its tokenizer's way only."""


def test_constraints_match_whole_words_only(table, tokenizer):
    """Every sequence of the tokens: the word matches where the decoded text has it as a word."""
    ids = [tokenizer.id(token) for token in TOKENS[tokenizer.kind]]
    assert None not in ids
    longest = 4 if tokenizer.kind == "char" else 3
    space = [sequence for n in range(longest + 1) for sequence in itertools.product(ids, repeat=n)]
    weights = torch.rand(len(space), generator=torch.Generator().manual_seed(1)).double()
    shares = (weights / weights.sum()).tolist()
    system = table(dict(zip(space, shares, strict=True)), tokenizer.vocabulary.size)
    spellings, borders = token_spellings("run", tokenizer, "word"), word_boundaries(tokenizer)
    beam = BeamConfig(width=len(space), best=len(space), max_length=longest + 1)

    def holds(tokens: tuple[int, ...]) -> bool:
        text = tokenizer.decode(tokens).replace("(", " ").replace("##", "")
        return "run" in text.split()

    all_sequences = [tokens for tokens, _ in exhaustive(system)]
    assert 0 < sum(map(holds, all_sequences)) < len(all_sequences)
    banning = LexicalConstraints(banned=spellings, boundaries=borders)
    (hypotheses,) = beam_search(system, beam, constraints=banning)
    assert {sequence.tokens for sequence in hypotheses} == {
        sequence for sequence in all_sequences if not holds(sequence)
    }
    requiring = LexicalConstraints(required=(spellings,), boundaries=borders)
    (hypotheses,) = beam_search(system, beam, constraints=requiring)
    assert {sequence.tokens for sequence in hypotheses} == {
        sequence for sequence in all_sequences if holds(sequence)
    }


def test_narrow_search_ends_a_required_word(table):
    """5 is `run`, 6 continues the word: after 5 comes 6 in all but one of a thousand texts."""
    system = table({(5, 6): 0.999, (5, 7): 0.001}, 8)
    constraints = LexicalConstraints(
        required=(((5,),),), boundaries=WordBoundaries(continuation_tokens=frozenset({6}))
    )
    ((hypothesis,),) = beam_search(
        system, BeamConfig(width=1, max_length=3), constraints=constraints
    )
    assert hypothesis.tokens == (5, 7) and hypothesis.log_prob == pytest.approx(math.log(0.001))


def test_truncated_text_does_not_end_in_a_banned_word(table):
    system = table({(6, 5, 6): 0.9, (6, 7, 6): 0.1}, 8)
    banned = LexicalConstraints(
        banned=((5,),), boundaries=WordBoundaries(continuation_tokens=frozenset({6}))
    )
    for max_length, expected in ((2, (6, 7)), (3, (6, 5, 6))):
        ((hypothesis,),) = beam_search(
            system, BeamConfig(width=2, max_length=max_length), constraints=banned
        )
        assert (hypothesis.tokens, hypothesis.finished) == (expected, False)


def test_missing_required_phrases_are_reported(table):
    system = table({(5, 5, 5): 1.0}, 8)
    constraints = LexicalConstraints(required=(((7,), (6, 6)), ((5,),)))
    ((hypothesis,),) = beam_search(
        system, BeamConfig(width=2, max_length=2), constraints=constraints
    )
    assert (hypothesis.tokens, hypothesis.missing) == ((5, 5), ((7,),))


def test_punctuation_is_a_word_boundary():
    words = train_tokenizer("bpe", ["grün. grün, don't 大象run"] * 5, size=400)
    borders = word_boundaries(words)
    green, stop = words.encode("grün.")
    assert borders.is_boundary(green, stop) and not borders.always_ends_word(green)
    half = next(id for id in range(words.vocabulary.size) if words.token(id) == "Ã")
    assert (
        half in borders.continuation_tokens
    )  # the first byte of ü is ambiguous, so it counts as a letter


def test_contradictory_constraints_are_refused():
    with pytest.raises(UserError, match="a required phrase contains a banned one"):
        LexicalConstraints(banned=((5,),), required=(((4, 5),),))
    with pytest.raises(UserError, match="the prefix contains a banned phrase"):
        LexicalConstraints(banned=((5,),), prefix=(4, 5))
    with pytest.raises(UserError, match="at least one token"):
        LexicalConstraints(banned=((),))
    # Where 5 continues a word, 4 5 is another word than 4.
    inside = WordBoundaries(continuation_tokens=frozenset({5}))
    assert LexicalConstraints(banned=((4,),), required=(((4, 5),),), boundaries=inside).violates(
        (4, 6)
    )
