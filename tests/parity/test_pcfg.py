"""`pcfg` against sums over all trees of a few words, by plain loops over its rules."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.pcfg import sample_sentences

VOCABULARY = Vocabulary(size=7)
START, END = 2, 3
WORDS = (1, 5, 6)  # the unknown word is a word
N, P = 2, 2


@pytest.fixture(scope="module")
def system():
    module = system_module("pcfg")
    torch.manual_seed(0)
    config = module.Config(nonterminals=N, preterminals=P, width=4, max_length=8)
    return module.build(config, VOCABULARY).double().eval()


class Plain:
    """Probabilities of a grammar by name, and what loops over all trees make of them."""

    def __init__(self, system) -> None:
        with torch.no_grad():
            grammar = system.rules.grammar()
        self.root, self.empty = grammar.rules.root.exp().tolist(), grammar.empty.exp().item()
        self.binary, self.words = grammar.rules.binary.exp().tolist(), grammar.words.exp().tolist()
        self.derivations = cache(self._derivations)

    def _derivations(self, symbol: int, words: tuple[int, ...]) -> tuple[float, ...]:
        """The probability of every tree under a symbol: one number for each tree."""
        if symbol >= N:
            return (self.words[words[0]][symbol - N],) if len(words) == 1 else ()
        return tuple(
            self.binary[symbol][b][c] * left * right
            for cut in range(1, len(words))
            for b in range(N + P)
            for c in range(N + P)
            for left in self.derivations(b, words[:cut])
            for right in self.derivations(c, words[cut:])
        )

    def trees(self, words: tuple[int, ...]) -> list[float]:
        return [
            self.root[symbol] * tree
            for symbol in range(N + P)
            for tree in self.derivations(symbol, words)
        ]

    def probability(self, words: tuple[int, ...]) -> float:
        return math.fsum(self.trees(words)) if words else self.empty


@pytest.fixture(scope="module")
def plain(system) -> Plain:
    return Plain(system)


def batch_of(texts) -> Batch:
    return Batch.collate(texts, pad=0)


SENTENCES = [(), (5,), (5, 6), (6, 6, 5), (5, 1, 6, 5), (5, 6, 5, 6, 1)]


def test_rules_are_distributions(plain: Plain):
    assert sum(plain.root) + plain.empty == pytest.approx(1)
    for rules in plain.binary:
        assert sum(map(sum, rules)) == pytest.approx(1)
    for leaf in range(P):
        assert sum(word[leaf] for word in plain.words) == pytest.approx(1)
    for symbol in (0, START, END, 4):
        assert plain.words[symbol] == [0.0] * P


def test_log_prob_is_the_sum_over_trees(system, plain: Plain):
    batch = batch_of([[START, *words, END] for words in SENTENCES])
    with torch.no_grad():
        scored, lost = system.log_prob(batch).totals, system.loss(batch)[0]
    expected = [math.log(plain.probability(words)) for words in SENTENCES]
    assert scored.tolist() == pytest.approx(expected, abs=1e-10)
    assert lost.total.item() == pytest.approx(-sum(expected), abs=1e-9)
    assert lost.count.item() == sum(len(words) + 1 for words in SENTENCES)


def test_all_trees_of_six_words_are_counted(system, plain: Plain):
    """Catalan(5) = 42 shapes, N symbols at 5 inner nodes, P at 6 leaves."""
    words = (5, 6, 5, 5, 6, 5)
    trees = plain.trees(words)
    assert len(trees) == 42 * N**5 * P**6
    with torch.no_grad():
        result = system.log_prob(batch_of([[START, *words, END]])).totals.item()
    assert result == pytest.approx(math.log(math.fsum(trees)), abs=1e-10)


def prefix_probability(plain: Plain, words: tuple[int, ...], depth: int = 2500) -> float:
    """By leftmost derivation: all derivations whose yield begins with these words.

    The words and the stack of symbols that is left are followed together. A left spine may be of
    any length, so it is rewritten `depth` times, after which next to nothing is left of it.
    """

    @cache
    def yields_exactly(symbol: int, part: tuple[int, ...]) -> float:
        """The symbol yields exactly these words."""
        return math.fsum(plain.derivations(symbol, part))

    @cache
    def yields_prefix(part: tuple[int, ...]) -> tuple[float, ...]:
        """For each symbol: what it yields begins with these words."""
        result = [
            plain.words[part[0]][s - N] if s >= N and len(part) == 1 else 0.0 for s in range(N + P)
        ]
        through = [0.0] * N
        for a in range(N):
            for cut in range(1, len(part)):
                rest = yields_prefix(part[cut:])
                through[a] += math.fsum(
                    plain.binary[a][b][c] * yields_exactly(b, part[:cut]) * rest[c]
                    for b in range(N + P)
                    for c in range(N + P)
                )
        for _ in range(depth):
            result[:N] = [
                through[a] + math.fsum(sum(plain.binary[a][b]) * result[b] for b in range(N + P))
                for a in range(N)
            ]
        return tuple(result)

    return math.fsum(root * p for root, p in zip(plain.root, yields_prefix(words), strict=True))


def test_token_scores_are_prefix_probability_ratios(system, plain: Plain):
    words = (5, 6, 1)
    with torch.no_grad():
        actual = system.log_prob(batch_of([[START, *words, END]])).per_token[0]
    prefix_probabilities = [1.0] + [prefix_probability(plain, words[:k]) for k in (1, 2, 3)]
    expected = [math.log(b / a) for a, b in itertools.pairwise(prefix_probabilities)]
    expected.append(math.log(plain.probability(words) / prefix_probabilities[-1]))
    assert actual.tolist() == pytest.approx(expected, abs=1e-9)


def test_sentences_and_prefixes_sum_to_one(system, plain: Plain):
    """Sentences of at most three words have at most one in all; longer ones have the rest."""
    bodies = [b for length in range(4) for b in itertools.product(WORDS, repeat=length)]
    finished = math.fsum(plain.probability(body) for body in bodies)
    assert finished < 1
    cut = [[START, *body] for body in itertools.product(WORDS, repeat=4)]
    with torch.no_grad():
        longer = system.log_prob(batch_of(cut)).totals.exp().sum().item()
    assert finished + longer == pytest.approx(1, abs=1e-9)


def test_truncated_sentences_are_trained_as_prefixes(system):
    batch = batch_of([[START, 5, 6], [START, 6, END]])
    with torch.no_grad():
        lost, scored = system.loss(batch)[0].total, system.log_prob(batch).totals
    assert lost.item() == pytest.approx(-scored.sum().item(), abs=1e-9)


def test_endless_derivation_is_truncated(system):
    """Nine inner nodes in ten have two inner children, so that most trees grow for ever."""
    grammar = system.rules.grammar()
    binary = torch.full((N, N + P, N + P), -math.inf, dtype=torch.float64)
    binary[:, :N, :N] = math.log(0.9 / N**2)
    binary[:, N:, N:] = math.log(0.1 / P**2)
    samples = sample_sentences(
        type(grammar)(
            rules=type(grammar.rules)(root=grammar.rules.root, binary=binary),
            empty=grammar.empty,
            words=grammar.words,
        ),
        200,
        20,
        torch.Generator().manual_seed(0),
    )
    assert max(len(words) for words, _ in samples) == 20
    assert all(over or len(words) == 20 for words, over in samples)


def score_of(plain: Plain, tree, words) -> float:
    """P(tree and its words), read off the nested spans."""
    if not tree.children:
        assert tree.last == tree.first + 1
        return plain.words[words[tree.first]][tree.label - N]
    left, right = tree.children
    assert (left.first, left.last, right.last) == (tree.first, right.first, tree.last)
    rule = plain.binary[tree.label][left.label][right.label]
    return rule * score_of(plain, left, words) * score_of(plain, right, words)


def test_best_tree_equals_enumeration(system, plain: Plain):
    trees = system.best_tree(batch_of([[START, *words, END] for words in SENTENCES]))
    assert trees[0] is None
    for tree, words in zip(trees[1:], SENTENCES[1:], strict=True):
        assert (tree.first, tree.last) == (0, len(words))
        score = plain.root[tree.label] * score_of(plain, tree, words)
        assert score == pytest.approx(max(plain.trees(words)))


def test_tree_bracket_notation(system):
    (tree,) = system.best_tree(batch_of([[START, 5, 6, END]]))
    left, right = tree.children
    assert tree.brackets(["a", "b"]) == f"({tree.label} ({left.label} a) ({right.label} b))"


def test_captures_are_posteriors(system, plain: Plain):
    captures = system.capture_internals(batch_of([[START, *words, END] for words in SENTENCES]))
    spans = captures["spans"].values
    for row, words in enumerate(SENTENCES):
        # A tree of n words has n - 1 inner nodes, and the whole sentence is one of them.
        assert spans[row].sum().item() == pytest.approx(max(len(words) - 1, 0))
        if len(words) > 1:
            assert spans[row, len(words) - 1, 0].item() == pytest.approx(1)
        doubt = 0.0
        if words:
            whole = plain.probability(words)
            doubt = -math.fsum(p / whole * math.log(p / whole) for p in plain.trees(words))
        assert captures["tree entropy"].values[row].item() == pytest.approx(doubt, abs=1e-9)
    assert captures["symbol use"].values.sum().item() == pytest.approx(1)


def test_long_sentences_and_contiguous_text_are_refused(system):
    with pytest.raises(UserError, match="at most 8 words, got 9"):
        system.log_prob(batch_of([[START] + [5] * 9 + [END]]))
    with pytest.raises(UserError, match="contiguous"):
        system.log_prob(batch_of([[START, 5, END, 6, END]]))


def test_a_text_that_is_too_long_is_refused_before_training(system) -> None:
    system.check_length(10)  # <s>, eight words, </s>
    with pytest.raises(UserError, match=r"at most 8 words, got 9 .* --set max_length=9"):
        system.check_length(11)
