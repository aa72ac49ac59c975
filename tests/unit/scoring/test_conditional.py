"""Conditional scores by the chain rule."""

from __future__ import annotations

import pytest

from lmlab.core.errors import UserError
from lmlab.data.corpus import Layout
from lmlab.scoring.conditional import conditional_scores
from lmlab.scoring.score import Scorer


@pytest.mark.parametrize("kind", ["sentences", "contiguous"])
def test_chain_rule(words, tiny_recurrent, kind):
    system = tiny_recurrent(words.vocabulary)
    scorer = Scorer(system, words, Layout(kind=kind))
    pairs = [("the cat", " sat on a mat"), ("a", " dog"), ("", "the cat"), ("the cat", "")]
    found = list(conditional_scores(scorer, pairs, end=True))
    for (prefix, continuation), each in zip(pairs, found, strict=True):
        whole = scorer.afresh().score_one(prefix + continuation)
        # log p(prefix …) = log p(prefix </s>) - log p(</s> | prefix)
        before = scorer.afresh().score_one(prefix)
        opening = before.total - before.per_token[-1].log_prob
        assert each.total == pytest.approx(whole.total - opening, abs=1e-9)
        assert each.tokens == len(continuation.split()) + 1
        assert each.characters == len(continuation)
        assert not each.divided
    without = list(conditional_scores(scorer, pairs))
    assert without[0].total == pytest.approx(
        found[0].total - found[0].per_token[-1].log_prob, abs=1e-9
    )
    assert (without[3].total, without[3].tokens) == (0, 0)


def test_a_token_across_the_boundary_is_told(words, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(words.vocabulary), words, Layout())
    (found,) = conditional_scores(scorer, [("the ca", "t sat")])
    assert found.divided
    assert [token.token for token in found.per_token] == ["cat", "sat"]


def test_places_are_those_of_the_joined_text_and_unknown_words_count(words, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(words.vocabulary), words, Layout())
    (found,) = conditional_scores(scorer, [("the zebra", " saw a yak")])
    assert [(t.token, t.start, t.end) for t in found.per_token] == [
        ("saw", 10, 13),
        ("a", 14, 15),
        ("yak", 16, 19),
    ]
    assert found.unknown == 1


def test_only_systems_that_go_from_left_to_right(words, tiny_recurrent):
    class Whole:
        """Scores, and can't step."""

        vocabulary = words.vocabulary
        log_prob = tiny_recurrent.log_prob

    with pytest.raises(UserError, match="Step"):
        list(conditional_scores(Scorer(Whole(), words, Layout()), [("a", " cat")]))
