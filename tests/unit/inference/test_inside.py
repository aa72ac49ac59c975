"""The inside algorithm against the enumeration of every labelled binary tree."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from lmlab.inference import inside
from lmlab.inference.inside import Rules
from lmlab.inference.semirings import LOG

N, P = 2, 3
LENGTHS = torch.tensor([4, 1, 3, 2])


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw(4, 4, P), Rules(root=draw(N + P), binary=draw(N, N + P, N + P))


def trees(words, rules, symbol: int, first: int, last: int):
    """All trees of words first … last - 1 under a grammar symbol: (score, labelled spans)."""
    if symbol >= N:
        if last - first == 1:
            yield float(words[first, symbol - N]), frozenset({(first, last, symbol)})
        return
    for middle in range(first + 1, last):
        for b in range(N + P):
            for c in range(N + P):
                for left_score, left in trees(words, rules, b, first, middle):
                    for right_score, right in trees(words, rules, c, middle, last):
                        score = float(rules.binary[symbol, b, c]) + left_score + right_score
                        yield score, left | right | {(first, last, symbol)}


def all_trees(words, rules, length: int) -> dict[frozenset, float]:
    return {
        spans: score + float(rules.root[symbol])
        for symbol in range(N + P)
        for score, spans in trees(words, rules, symbol, 0, length)
    }


_enumerated: dict[int, dict[frozenset, float]] = {}


def scores_of(case, row: int) -> dict[frozenset, float]:
    """The fixture is the same in every test, so one enumeration serves all."""
    if row not in _enumerated:
        _enumerated[row] = all_trees(case[0][row], case[1], int(LENGTHS[row]))
    return _enumerated[row]


def posterior_of(case, row: int) -> dict[frozenset, float]:
    scores = scores_of(case, row)
    whole = math.fsum(math.exp(score) for score in scores.values())
    return {spans: math.exp(score) / whole for spans, score in scores.items()}


@cache
def catalan(n: int) -> int:
    return math.comb(2 * n, n) // (n + 1)


def test_tree_enumeration_is_complete(case):
    """Catalan(3) shapes of four words: N symbols at 3 inner nodes, P at 4 leaves."""
    assert len(scores_of(case, 0)) == catalan(3) * N**3 * P**4
    assert len(scores_of(case, 1)) == P


@pytest.mark.parametrize("function", [inside.log_partition, inside.total])
def test_log_partition_is_the_sum_over_trees(case, function):
    log_partition = function(*case, lengths=LENGTHS)
    for row in range(4):
        expected = math.log(math.fsum(math.exp(s) for s in scores_of(case, row).values()))
        assert log_partition[row].item() == pytest.approx(expected, abs=1e-10)


def test_scaled_inside_gradient_equals_reference(case):
    gradients = []
    for function in (inside.log_partition, inside.total):
        words = case[0].clone().requires_grad_()
        rules = Rules(
            root=case[1].root.clone().requires_grad_(),
            binary=case[1].binary.clone().requires_grad_(),
        )
        function(words, rules, lengths=LENGTHS).sum().backward()
        gradients.append((words.grad, rules.root.grad, rules.binary.grad))
    for fast, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, reference, atol=1e-10, rtol=1e-10)


def as_indicators(spans) -> tuple[torch.Tensor, torch.Tensor]:
    of_words, of_spans = torch.zeros(4, P).double(), torch.zeros(4, 4, N).double()
    for first, last, symbol in spans:
        if symbol >= N:
            of_words[first, symbol - N] = 1
        else:
            of_spans[first, last - first - 1, symbol] = 1
    return of_words, of_spans


def test_viterbi_tree_is_the_best_tree(case):
    of_words, of_spans = inside.viterbi_tree(*case, lengths=LENGTHS)
    for row in range(4):
        scores = scores_of(case, row)
        expected = as_indicators(max(scores, key=lambda spans: scores[spans]))
        assert torch.equal(of_words[row], expected[0])
        assert torch.equal(of_spans[row], expected[1])


def test_span_marginals_are_sums_of_posteriors(case):
    of_words, of_spans = inside.span_marginals(*case, lengths=LENGTHS)
    for row in range(4):
        expected = [torch.zeros(4, P).double(), torch.zeros(4, 4, N).double()]
        for spans, p in posterior_of(case, row).items():
            for sums, indicators in zip(expected, as_indicators(spans), strict=True):
                sums += p * indicators
        torch.testing.assert_close(of_words[row], expected[0], atol=1e-10, rtol=0)
        torch.testing.assert_close(of_spans[row], expected[1], atol=1e-10, rtol=0)


def test_entropy_is_that_of_the_posterior(case):
    entropy = inside.entropy(*case, lengths=LENGTHS)
    for row in range(4):
        expected = -math.fsum(p * math.log(p) for p in posterior_of(case, row).values())
        assert entropy[row].item() == pytest.approx(expected, abs=1e-10)


def test_samples_follow_the_posterior(case):
    words, rules = case
    samples = 5_000
    of_words, of_spans = inside.sample_tree(
        words[3, :2].expand(samples, -1, -1), rules, generator=torch.Generator().manual_seed(0)
    )
    # A tree of two words is its root's symbol and its two leaves'.
    code = of_spans[:, 0, 1].argmax(-1) * P * P
    code += of_words[:, 0].argmax(-1) * P + of_words[:, 1].argmax(-1)
    counts = torch.bincount(code, minlength=N * P * P)
    for spans, p in posterior_of(case, 3).items():
        labels = {(first, last): symbol for first, last, symbol in spans}
        key = labels[0, 2] * P * P + (labels[0, 1] - N) * P + labels[1, 2] - N
        # Five standard deviations of a binomial count.
        assert abs(counts[key].item() - samples * p) <= 5 * math.sqrt(samples * p * (1 - p))


def test_sampled_tree_is_a_valid_tree(case):
    of_words, of_spans = inside.sample_tree(*case, generator=torch.Generator().manual_seed(1))
    assert of_words.sum(-1).eq(1).all()
    assert of_spans.sum((1, 2, 3)).eq(3).all()  # four words have three inner nodes


def test_single_precision_is_accurate_on_a_long_sentence():
    generator = torch.Generator().manual_seed(0)
    rules = Rules(
        root=torch.log_softmax(torch.randn(5, generator=generator), 0),
        binary=torch.log_softmax(torch.randn(2, 25, generator=generator), 1).view(2, 5, 5),
    )
    words = torch.log_softmax(torch.randn(1, 40, 3, generator=generator) * 3, 1)
    reference = inside.total(
        words.double(), Rules(root=rules.root.double(), binary=rules.binary.double())
    )
    assert inside.log_partition(words, rules).item() == pytest.approx(reference.item(), rel=1e-5)
    assert inside.total(words, rules, semiring=LOG).item() == pytest.approx(
        reference.item(), rel=1e-5
    )
