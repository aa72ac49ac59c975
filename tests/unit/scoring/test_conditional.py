"""Conditional scores by the chain rule."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from lmlab.core.distribution import Categorical
from lmlab.core.protocols import LogProbs
from lmlab.core.registry import system_module
from lmlab.core.system import System
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.conditional import conditional_scores
from lmlab.scoring.scorer import Scorer


@pytest.mark.parametrize("kind", ["sentences", "contiguous"])
def test_continuation_score_follows_the_chain_rule(word_tokenizer, tiny_recurrent, kind):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scorer = Scorer(system, word_tokenizer, Layout(kind=kind))
    pairs = [("the cat", " sat on a mat"), ("a", " dog"), ("", "the cat"), ("the cat", "")]
    scores = list(conditional_scores(scorer, pairs, end=True))
    for (prefix, continuation), each in zip(pairs, scores, strict=True):
        whole = scorer.with_method().score_one(prefix + continuation)
        # log p(prefix …) = log p(prefix </s>) - log p(</s> | prefix)
        before = scorer.with_method().score_one(prefix)
        prefix_total = before.total - before.per_token[-1].log_prob
        assert each.total == pytest.approx(whole.total - prefix_total, abs=1e-9)
        assert each.tokens == len(continuation.split()) + 1
        assert each.characters == len(continuation)
        assert not each.token_crosses_boundary
    without = list(conditional_scores(scorer, pairs))
    assert without[0].total == pytest.approx(
        scores[0].total - scores[0].per_token[-1].log_prob, abs=1e-9
    )
    assert (without[3].total, without[3].tokens) == (0, 0)
    assert all(each.convention.end for each in scores)
    assert not any(each.convention.end for each in without)


def test_token_across_the_boundary_is_flagged(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    (score,) = conditional_scores(scorer, [("the ca", "t sat")])
    assert score.token_crosses_boundary
    assert [token.token for token in score.per_token] == ["cat", "sat"]


def test_offsets_refer_to_the_joined_text(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    (score,) = conditional_scores(scorer, [("the zebra", " saw a yak")])
    assert [(t.token, t.start, t.end) for t in score.per_token] == [
        ("saw", 10, 13),
        ("a", 14, 15),
        ("yak", 16, 19),
    ]
    assert score.unknown == 1


def test_whole_text_system_gives_joint_score_up_to_constant(word_tokenizer, tiny_recurrent):
    """Differences between continuations of a prefix equal those of the true conditional."""
    stepping = tiny_recurrent(word_tokenizer.vocabulary).eval()

    class Whole(System):
        """Scores whole texts only, and cannot decode step by step."""

        vocabulary = word_tokenizer.vocabulary

        def log_prob(self, batch, **options):
            scored = stepping.log_prob(batch, **options)
            nothing = torch.zeros_like(scored.per_token)
            return LogProbs(
                per_token=nothing,
                per_sequence=scored.totals,
                kind=scored.kind,
                whole_text_only=True,
            )

    pairs = [("the cat", " sat on a mat"), ("the cat", " saw"), ("the cat", "")]
    whole = list(conditional_scores(Scorer(Whole(), word_tokenizer, Layout()), pairs))
    true = list(conditional_scores(Scorer(stepping, word_tokenizer, Layout()), pairs, end=True))
    for score in whole:
        assert (score.kind, score.convention.method, score.per_token) == (
            "unnormalised",
            "whole text",
            (),
        )
    for one, other in ((0, 1), (0, 2)):
        assert whole[one].total - whole[other].total == pytest.approx(
            true[one].total - true[other].total, abs=1e-9
        )
    assert all(a.total < b.total for a, b in zip(whole, true, strict=True))


def test_pcfg_continuation_score_is_exact(monkeypatch):
    """Against sums over all sentences of a grammar without recursion: of at most three words."""
    tokenizer = train_tokenizer("word", ["a b c"])
    module = system_module("pcfg")
    torch.manual_seed(0)
    config = module.Config(nonterminals=2, preterminals=2, width=4)
    system = module.build(config, tokenizer.vocabulary).double().eval()
    with torch.no_grad():
        grammar = system.rules.grammar()
        allowed = torch.zeros(2, 4, 4, dtype=torch.bool)
        allowed[:, 2:, 2:] = True  # both → leaf leaf
        allowed[0, 1, 2:] = True  # the first → second leaf
        binary = grammar.rules.binary.masked_fill(~allowed, -torch.inf)
        binary = binary.flatten(1).log_softmax(-1).view(2, 4, 4)
    finite = replace(grammar, rules=replace(grammar.rules, binary=binary))
    monkeypatch.setattr(system.rules, "grammar", lambda: finite)
    scorer = Scorer(system, tokenizer, Layout())
    words = ("a", "b", "c", "<unk>")
    texts = [" ".join(each) for n in range(4) for each in itertools.product(words, repeat=n)]
    mass = {score.text: math.exp(score.total) for score in scorer.score(texts)}
    assert sum(mass.values()) == pytest.approx(1, abs=1e-9)

    def prefix_mass(prefix: str) -> float:
        return sum(m for text, m in mass.items() if (text + " ").startswith(prefix + " "))

    for prefix, continuation in (("a", " c"), ("c a", " b"), ("b", " a a")):
        both = [(prefix, continuation)]
        [open_end] = conditional_scores(scorer, both)
        [ended] = conditional_scores(scorer, both, end=True)
        whole, prefix_probability = prefix + continuation, prefix_mass(prefix)
        assert open_end.total == pytest.approx(
            math.log(prefix_mass(whole) / prefix_probability), abs=1e-9
        )
        assert ended.total == pytest.approx(math.log(mass[whole] / prefix_probability), abs=1e-9)
        assert (open_end.kind, ended.kind) == ("exact", "exact")
        assert ended.tokens == open_end.tokens + 1 == len(continuation.split()) + 1


class NeighbourFill(System):
    """Fills a position from a distribution given its two neighbours; has no log_prob."""

    scorer_kind = "masked"

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        size = vocabulary.size
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(size, size, size, generator=generator, dtype=torch.float64)
        self.table = logits.log_softmax(-1)
        self.queries = 0

    def log_prob(self, batch, **options):
        raise AssertionError("not asked for")

    def fill(self, batch, masked, *, generator=None):
        rows, positions = masked.nonzero(as_tuple=True)
        self.queries += len(rows)
        before, after = batch.tokens[rows, positions - 1], batch.tokens[rows, positions + 1]
        return Categorical(self.table[before, after])


def test_masked_model_scores_only_continuation_positions(word_tokenizer):
    system = NeighbourFill(word_tokenizer.vocabulary)
    pairs = [("the cat", " sat on a mat"), ("a", " dog"), ("", "the cat"), ("the cat", "")]
    scores = list(conditional_scores(Scorer(system, word_tokenizer, Layout()), pairs))
    assert system.queries == 4 + 1 + 2 + 0
    for (prefix, continuation), each in zip(pairs, scores, strict=True):
        ids = [2, *word_tokenizer.encode(prefix + continuation), 3]
        first = 1 + len(prefix.split())
        expected = sum(
            float(system.table[ids[p - 1], ids[p + 1], ids[p]]) for p in range(first, len(ids) - 1)
        )
        assert each.total == pytest.approx(expected, abs=1e-9)
        assert each.tokens == len(continuation.split())
        assert (each.kind, each.convention.method, each.convention.end) == ("pseudo", "norm", False)


def test_energy_model_scores_the_whole_text(word_tokenizer):
    class Ising(System):
        """E = the number of equal neighbours."""

        scorer_kind = "energy"
        vocabulary = word_tokenizer.vocabulary

        def energy(self, batch, blanks=None):
            return (batch.tokens[:, 1:] == batch.tokens[:, :-1]).sum(1).double()

        def log_prob(self, batch, **options):
            nothing = torch.zeros(len(batch), batch.tokens.shape[1] - 1)
            return LogProbs(
                per_token=nothing, per_sequence=-self.energy(batch), kind="unnormalised"
            )

    for method in (None, "energy"):
        scorer = Scorer(Ising(), word_tokenizer, Layout(), method=method)
        (score,) = conditional_scores(scorer, [("the the", " the cat")])
        assert (score.total, score.kind) == (-2.0, "unnormalised")


def test_bound_on_the_whole_text_stays_a_bound(word_tokenizer):
    class Bounded(System):
        vocabulary = word_tokenizer.vocabulary

        def log_prob(self, batch, **options):
            values = torch.full((len(batch), batch.tokens.shape[1] - 1), -1.5)
            return LogProbs(
                per_token=values, per_sequence=torch.full((len(batch),), -0.5), kind="bound"
            )

    (score,) = conditional_scores(Scorer(Bounded(), word_tokenizer, Layout()), [("the", " cat")])
    assert (score.kind, score.total, score.tokens) == ("bound", -1.5 * 3 - 0.5, 3)
