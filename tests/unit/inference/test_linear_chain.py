"""Linear-chain inference against the enumeration of every assignment."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lmlab.inference import linear_chain


def potentials(rows: int, count: int, states: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(rows, count, states, generator=generator, dtype=torch.float64)
    pairwise = torch.randn(rows, count - 1, states, states, generator=generator).double()
    pairwise[0, 0, 0, 1] = -math.inf  # a forbidden transition
    unary[0, 1, 1] = -math.inf  # a forbidden state
    return unary, pairwise


def enumerate_row(unary, pairwise) -> dict[tuple[int, ...], float]:
    """Score of every assignment of one row, by plain loops."""
    count, states = unary.shape
    scores = {}
    for z in itertools.product(range(states), repeat=count):
        score = sum(float(unary[i, z[i]]) for i in range(count))
        score += sum(float(pairwise[i, z[i], z[i + 1]]) for i in range(count - 1))
        scores[z] = score
    return scores


def probabilities(scores: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    total = math.fsum(math.exp(score) for score in scores.values())
    return {z: math.exp(score) / total for z, score in scores.items()}


def rows_of(unary, pairwise, lengths):
    for row, length in enumerate(lengths.tolist()):
        yield row, length, enumerate_row(unary[row, :length], pairwise[row, : length - 1])


LENGTHS = torch.tensor([5, 1, 3, 4])


@pytest.fixture
def case():
    return potentials(4, 5, 3)


def test_log_partition_is_the_sum_over_assignments(case):
    log_partition = linear_chain.log_partition(*case, lengths=LENGTHS)
    for row, _, scores in rows_of(*case, LENGTHS):
        expected = math.log(math.fsum(math.exp(score) for score in scores.values()))
        assert log_partition[row].item() == pytest.approx(expected, abs=1e-12)


def test_viterbi_is_the_best_assignment(case):
    score, states = linear_chain.viterbi(*case, lengths=LENGTHS)
    for row, length, scores in rows_of(*case, LENGTHS):
        z = max(scores, key=lambda z: scores[z])
        assert tuple(states[row, :length].tolist()) == z
        assert score[row].item() == pytest.approx(scores[z], abs=1e-12)
        assert states[row, length:].eq(0).all()


def test_marginals_are_sums_of_posteriors(case):
    marginals = linear_chain.forward_backward(*case, lengths=LENGTHS)
    pairs = linear_chain.pair_marginals(*case, lengths=LENGTHS)
    for row, length, scores in rows_of(*case, LENGTHS):
        expected, expected_pairs = torch.zeros(5, 3).double(), torch.zeros(4, 3, 3).double()
        for z, p in probabilities(scores).items():
            for i in range(length):
                expected[i, z[i]] += p
            for i in range(length - 1):
                expected_pairs[i, z[i], z[i + 1]] += p
        torch.testing.assert_close(marginals[row], expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(pairs[row], expected_pairs, atol=1e-12, rtol=0)


def test_marginals_are_the_gradient_of_the_log_partition():
    unary, pairwise = (x.nan_to_num(neginf=-1.0) for x in potentials(2, 4, 3))
    unary.requires_grad_()
    (gradient,) = torch.autograd.grad(linear_chain.log_partition(unary, pairwise).sum(), unary)
    torch.testing.assert_close(linear_chain.forward_backward(unary, pairwise).detach(), gradient)


def test_marginals_are_differentiable():
    unary, pairwise = (x.nan_to_num(neginf=-1.0) for x in potentials(2, 3, 2))
    unary.requires_grad_()
    pairwise.requires_grad_()
    lengths = torch.tensor([3, 2])
    assert torch.autograd.gradcheck(
        lambda u, p: linear_chain.forward_backward(u, p, lengths=lengths), (unary, pairwise)
    )


def test_forbidden_steps_leave_finite_gradients(case):
    unary, pairwise = (x.clone().requires_grad_() for x in case)
    linear_chain.log_partition(unary, pairwise, lengths=LENGTHS).sum().backward()
    assert unary.grad.isfinite().all()
    assert pairwise.grad.isfinite().all()


def test_entropy_is_that_of_the_posterior(case):
    entropy = linear_chain.entropy(*case, lengths=LENGTHS)
    for row, _, scores in rows_of(*case, LENGTHS):
        expected = -math.fsum(p * math.log(p) for p in probabilities(scores).values() if p > 0)
        assert entropy[row].item() == pytest.approx(expected, abs=1e-12)


def test_samples_follow_the_posterior():
    unary, pairwise = potentials(1, 3, 2)
    sample_count = 20_000
    many = unary.expand(sample_count, -1, -1), pairwise.expand(sample_count, -1, -1, -1)
    states = linear_chain.sample(*many, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(states @ torch.tensor([4, 2, 1]), minlength=8).double()
    posterior = probabilities(enumerate_row(unary[0], pairwise[0]))
    for code, count in enumerate(counts.tolist()):
        p = posterior[(code // 4, code // 2 % 2, code % 2)]
        # Five standard deviations of a binomial count; impossible states are never sampled.
        assert abs(count - sample_count * p) <= 5 * math.sqrt(sample_count * p * (1 - p))


def test_one_seed_gives_one_sample(case):
    first = linear_chain.sample(*case, generator=torch.Generator().manual_seed(7))
    assert torch.equal(
        first, linear_chain.sample(*case, generator=torch.Generator().manual_seed(7))
    )


def test_expanded_transition_equals_copied_transitions(case):
    unary, pairwise = case
    transition = pairwise[1, 0]
    copied = transition.repeat(4, 4, 1, 1)
    for function in (
        linear_chain.log_partition,
        linear_chain.forward_backward,
        linear_chain.entropy,
    ):
        torch.testing.assert_close(
            function(unary, transition.expand(4, 3, 3)), function(unary, copied)
        )


def test_inputs_are_not_modified(case):
    unary, pairwise = case
    before = unary.clone(), pairwise.clone()
    linear_chain.viterbi(unary, pairwise)
    linear_chain.forward_backward(unary, pairwise, lengths=LENGTHS)
    assert torch.equal(unary, before[0])
    assert torch.equal(pairwise, before[1])
    assert not unary.requires_grad
