"""Latent parents, orderings and renewals by brute force: every assignment in a plain loop.

The oracle reads raw weights into numpy and knows nothing of sources, components or states: it sums
P(assignment) · softmax(e(k) · h) over every assignment of the latent variables per position.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from math import exp, log

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM

VOCABULARY = Vocabulary(size=9)
SENTENCE = [2, 5, 6, 8, 5, 7, 1, 6, 3]
OUTCOMES = [1, 3, 5, 6, 7, 8]
"""Tokens that can be predicted."""

Assignments = Iterator[tuple[float, np.ndarray]]
"""Weight and hidden vector of every assignment at a position."""


def build(kind: str, **settings) -> AutoregressiveLM:
    """A system with every weight sampled anew, so that no prior is uniform by its start."""
    module = system_module(kind)
    system = module.build(module.Config(width=4, dropout=0.0, **settings), VOCABULARY).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in system.named_parameters():
            spread = 0.1 if name.endswith("table") else 0.8  # the entries of a prior count eight
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return system


def raw(system: AutoregressiveLM) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in system.state_dict().items()}


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def token_probabilities(weights: dict[str, np.ndarray], hidden: np.ndarray) -> dict[int, float]:
    """softmax_k(e(k) · h + b_k) over the tokens that can be predicted."""
    output, bias = weights["emission.weight"], weights["emission.bias"]
    powers = {k: exp(output[k] @ hidden + bias[k]) for k in OUTCOMES}
    return {k: power / sum(powers.values()) for k, power in powers.items()}


def log_marginal(weights: dict[str, np.ndarray], assignments: Assignments, target: int) -> float:
    """log Σ over all assignments, whose weights must sum to one."""
    terms = [
        (weight, token_probabilities(weights, hidden)[target]) for weight, hidden in assignments
    ]
    assert sum(weight for weight, _ in terms) == pytest.approx(1.0)
    return log(sum(weight * probability for weight, probability in terms))


def learned_rows(table: np.ndarray, length: int) -> list[np.ndarray]:
    """Row i of the packed triangle: P(a | i) = softmax_a(8 t_{i,a}) for a = 0 … i."""
    ends = np.cumsum(range(1, length + 1))
    return [softmax(8 * table[end - i - 1 : end]) for i, end in enumerate(ends)]


def prior_at(rows: list[np.ndarray], position: int) -> dict[int, float]:
    """P(a | i) by absolute position; after the last row it is shifted."""
    row = rows[min(position, len(rows) - 1)]
    first = position + 1 - len(row)
    return {first + j: float(p) for j, p in enumerate(row)}


def scored(system: AutoregressiveLM, sentence: list[int] = SENTENCE) -> list[float]:
    batch = Batch.collate([sentence], pad=0)
    with torch.no_grad():
        return system.log_prob(batch).per_token[0].tolist()


def check(system: AutoregressiveLM, assignments) -> None:
    """Every token of the sentence, scored by the system and by the sum over assignments."""
    weights = raw(system)
    expected = [
        log_marginal(weights, assignments(weights, position), SENTENCE[position + 1])
        for position in range(len(SENTENCE) - 1)
    ]
    assert scored(system) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("distance_limit", [1, 3, 5, None])
def test_parent_equals_brute_force(distance_limit):
    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        turn = weights["backbone.transitions.turn.weight"]
        parents = [
            a
            for a in range(position + 1)
            if distance_limit is None or position - a < distance_limit
        ]
        for a in parents:
            yield 1 / len(parents), turn @ weights["backbone.embedding.weight"][SENTENCE[a]]

    check(build("parent", max_distance=distance_limit), assignments)


def test_posterior_over_parents():
    """P(a | next token) = P(a) p(k | a) / Σ, for every token of the sentence."""
    system = build("parent", max_distance=3)
    weights = raw(system)
    turn = weights["backbone.transitions.turn.weight"]
    expected = np.zeros((len(SENTENCE) - 1, len(SENTENCE) - 1))
    for position in range(len(SENTENCE) - 1):
        for a in range(max(0, position - 2), position + 1):
            hidden = turn @ weights["backbone.embedding.weight"][SENTENCE[a]]
            expected[position, a] = token_probabilities(weights, hidden)[SENTENCE[position + 1]]
    expected /= expected.sum(1, keepdims=True)
    capture = system.capture_internals(Batch.collate([SENTENCE], pad=0))["posterior"]
    assert capture.axes == ("batch", "time", "source")
    np.testing.assert_allclose(capture.values[0].numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("length", [3, 20])
def test_parent_prior_equals_brute_force(length):
    """With a table shorter than the sentence, whose last row is shifted, and with a longer."""

    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        rows = learned_rows(weights["backbone.prior.table"], length)
        for a, share in prior_at(rows, position).items():
            vector = weights["backbone.embedding.weight"][SENTENCE[a]]
            yield share, weights["backbone.transitions.turn.weight"] @ vector

    check(build("parent-prior", length=length), assignments)


def matrices(stacked: np.ndarray) -> np.ndarray:
    """(R · W, W) as R matrices."""
    return stacked.reshape(-1, stacked.shape[1], stacked.shape[1])


@pytest.mark.parametrize("types", [1, 2, 3])
def test_parent_typed_equals_brute_force(types):
    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        rows = learned_rows(weights["backbone.prior.table"], 4)
        shares = softmax(weights.get("backbone.transitions.shares", np.zeros(1)))
        turns = matrices(weights["backbone.transitions.turn.weight"])
        for (a, chance), (r, share) in product(prior_at(rows, position).items(), enumerate(shares)):
            yield chance * share, turns[r] @ weights["backbone.embedding.weight"][SENTENCE[a]]

    check(build("parent-typed", length=4, types=types), assignments)


def test_type_posterior_sums_over_parents():
    system = build("parent-typed", length=4, types=3)
    weights, target = raw(system), SENTENCE[2]
    rows = learned_rows(weights["backbone.prior.table"], 4)
    shares = softmax(weights["backbone.transitions.shares"])
    turns = matrices(weights["backbone.transitions.turn.weight"])
    joint = np.zeros((2, 3))  # position 1 has the parents 0 and 1
    for a, r in product(range(2), range(3)):
        hidden = turns[r] @ weights["backbone.embedding.weight"][SENTENCE[a]]
        joint[a, r] = (
            prior_at(rows, 1)[a] * shares[r] * token_probabilities(weights, hidden)[target]
        )
    joint /= joint.sum()
    captures = system.capture_internals(Batch.collate([SENTENCE], pad=0))
    kinds, parents = captures["type posterior"].values, captures["posterior"].values
    assert kinds[0, 1].tolist() == pytest.approx(joint.sum(0).tolist(), abs=1e-6)
    assert parents[0, 1, :2].tolist() == pytest.approx(joint.sum(1).tolist(), abs=1e-6)


def test_renewal_sentence_by_hand():
    """Width 1, W = 0.5, q = 2, tokens a = 5 and b = 6; only </s>, <unk>, a, b can come next."""
    module = system_module("renewal")
    system = module.build(module.Config(width=1, dropout=0.0), Vocabulary(size=7)).eval()
    vectors = {0: 9.0, 1: 0.5, 2: 1.0, 3: -1.0, 4: 9.0, 5: 2.0, 6: -0.5}
    with torch.no_grad():
        system.emission.weight.copy_(torch.tensor([[v] for v in vectors.values()]))
        system.backbone.fresh.fill_(2.0)
        system.backbone.parents.transitions.turn.weight.fill_(0.5)

    def chance(hidden: float, target: int) -> float:
        return exp(vectors[target] * hidden) / sum(exp(vectors[k] * hidden) for k in (1, 3, 5, 6))

    expected = [
        log((chance(2.0, 5) + chance(0.5 * 1.0, 5)) / 2),  # afresh, or after <s>
        log((chance(2.0, 6) + chance(0.5 * 2.0, 6)) / 2),  # afresh, or after a
        log((chance(2.0, 3) + chance(0.5 * -0.5, 3)) / 2),  # afresh, or after b
    ]
    assert scored(system, [2, 5, 6, 3]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["renewal", "renewal-typed"])
@pytest.mark.parametrize("learned", [False, True])
def test_renewal_equals_brute_force(name, learned):
    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        afresh, onward = softmax(weights.get("backbone.balance", np.zeros(2)))
        shares = softmax(weights.get("backbone.parents.transitions.shares", np.zeros(1)))
        previous = weights["backbone.parents.embedding.weight"][SENTENCE[position]]
        yield afresh, weights["backbone.fresh"]
        turns = matrices(weights["backbone.parents.transitions.turn.weight"])
        for share, turn in zip(shares, turns, strict=True):
            yield onward * share, turn @ previous

    kinds = {"types": 3} if name == "renewal-typed" else {}
    system = build(name, learned_weight=learned, **kinds)
    assert ("backbone.balance" in system.state_dict()) == learned
    check(system, assignments)


def test_remix_aligned_equals_brute_force():
    """Σ_a P(a | i) Σ_z P(z | s_a) P(k | z), each sum a loop."""
    system = build("remix-aligned", length=4, states=3)
    weights = raw(system)
    vectors = weights["backbone.embedding.weight"]
    rows = learned_rows(weights["backbone.prior.table"], 4)
    of_state = []
    for state in weights["emission.states.vectors"]:
        powers = {k: exp(vectors[k] @ state) for k in OUTCOMES}
        of_state.append({k: power / sum(powers.values()) for k, power in powers.items()})
    expected = []
    for position, target in enumerate(SENTENCE[1:]):
        total = 0.0
        for a, share in prior_at(rows, position).items():
            chosen = softmax(
                weights["emission.choose.weight"] @ vectors[SENTENCE[a]]
                + weights["emission.choose.bias"]
            )
            for z in range(3):
                total += share * chosen[z] * of_state[z][target]
        expected.append(log(total))
    assert scored(system) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("prior", ["learned", "uniform"])
def test_two_parents_equals_brute_force(prior):
    distance_limit = 3

    def shares_of(weights: dict[str, np.ndarray], which: str, position: int) -> dict[int, float]:
        if prior == "learned":
            return prior_at(
                learned_rows(weights[f"backbone.{which}.table"], distance_limit), position
            )
        seen = [a for a in range(position + 1) if position - a < distance_limit]
        return dict.fromkeys(seen, 1 / len(seen))

    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        vectors = weights["backbone.embedding.weight"]
        first, second = (shares_of(weights, which, position) for which in ("first", "second"))
        for a, b in product(first, second):
            hidden = weights["backbone.turn_first.weight"] @ vectors[SENTENCE[a]]
            hidden = hidden + weights["backbone.turn_second.weight"] @ vectors[SENTENCE[b]]
            yield first[a] * second[b], hidden

    check(build("two-parents", max_distance=distance_limit, prior=prior), assignments)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_parent_permuted_equals_brute_force(size):
    """Every ordering of the window; positions before the sentence count as zero."""

    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        turns = matrices(weights["backbone.turn.weight"])  # W_1 … W_n
        shares = softmax(weights["backbone.orders"])
        for share, order in zip(shares, permutations(range(1, size + 1)), strict=True):
            hidden = np.zeros(4)
            for j, back in enumerate(order):
                stands = position + 1 - back
                if stands >= 0:
                    token = SENTENCE[stands]
                    hidden += turns[j] @ weights["backbone.embedding.weight"][token]
            yield share, hidden

    check(build("parent-permuted", size=size), assignments)


def test_parent_permuted_in_text_order_equals_window():
    permuted = build("parent-permuted", size=3)
    module = system_module("window")
    window = module.build(module.Config(width=4, size=3, dropout=0.0), VOCABULARY).eval()
    with torch.no_grad():
        permuted.backbone.orders.fill_(-60.0)
        permuted.backbone.orders[0] = 60.0
        window.emission.load_state_dict(permuted.emission.state_dict())
        # `window` holds its matrices side by side, the oldest distance first.
        nearest_first = permuted.backbone.turn.weight.view(3, 4, 4)
        window.backbone.mix.weight.copy_(nearest_first.flip(0).transpose(0, 1).reshape(4, 12))
    assert scored(permuted) == pytest.approx(scored(window), abs=1e-5)


def test_window_mixture_equals_brute_force():
    size, count = 3, 2

    def assignments(weights: dict[str, np.ndarray], position: int) -> Assignments:
        blocks = weights["backbone.mix.weight"].reshape(count, 4, size, 4)
        for k, share in enumerate(softmax(weights["backbone.shares"])):
            hidden = np.zeros(4)
            for back in range(1, size + 1):
                if position + 1 - back >= 0:
                    token = SENTENCE[position + 1 - back]
                    turn = blocks[k, :, size - back]
                    hidden += turn @ weights["backbone.embedding.weight"][token]
            yield share, hidden

    check(build("window-mixture", size=size, windows=count), assignments)
