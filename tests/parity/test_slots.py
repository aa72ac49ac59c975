"""Slots against the enumeration of all S^N choices, from raw weights in plain loops.

The marginals must be those of the enumeration. The prediction is that of the expected vectors, not
of the full mixture over choices: how far apart the two are is measured, and what must hold of it is
asserted.
"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM

VOCABULARY = Vocabulary(size=9)
SENTENCE = [2, 5, 6, 8, 5, 7, 3]
OUTCOMES = [1, 3, 5, 6, 7, 8]
"""Tokens that can be predicted."""
LENGTH, MOVES, WIDTH = 4, 2, 4


def build(kind: str, slots: int) -> AutoregressiveLM:
    """A system with every weight sampled anew."""
    module = system_module(kind)
    settings = {"max_move": MOVES} if kind == "slots-chain" else {}
    config = module.Config(width=WIDTH, slots=slots, length=LENGTH, dropout=0.0, **settings)
    system = module.build(config, VOCABULARY).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in system.named_parameters():
            spread = 0.1 if name.endswith("table") else 0.8  # the entries of a prior count eight
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return system


class Enumeration:
    """All choices of a system's slots at each position of a sentence, one after another."""

    def __init__(self, system: AutoregressiveLM, sentence: list[int]) -> None:
        self.weights = {k: v.double().numpy() for k, v in system.state_dict().items()}
        self.sentence = sentence
        self.slots = len(self.weights["backbone.token_scores.weight"])
        self.vectors = self.weights["backbone.embedding.weight"]

    def potential(self, slot: int, position: int, j: int) -> float:
        """P_m(j | i) exp(u_m · e(s_j)), up to a factor that is the same for all j."""
        row = min(position, LENGTH - 1)
        column = row - (position - j)
        if column < 0:
            return 0.0
        table = self.weights[f"backbone.priors.{slot}.table"]
        liking = self.weights["backbone.token_scores.weight"][slot] @ self.vectors[self.sentence[j]]
        return float(np.exp(8 * table[row * (row + 1) // 2 + column] + liking))

    def move(self, start: int, end: int) -> float:
        moves = self.weights.get("backbone.log_moves", np.zeros(2 * MOVES + 1))
        return float(np.exp(moves[min(max(end - start, -MOVES), MOVES) + MOVES]))

    def choices(self, position: int) -> dict[tuple[int, ...], float]:
        """P(j_1 … j_N) of all choices among the tokens so far."""
        result = {}
        for choice in product(range(position + 1), repeat=self.slots):
            weight = 1.0
            for slot, j in enumerate(choice):
                weight *= self.potential(slot, position, j)
            for start, end in pairwise(choice):
                weight *= self.move(start, end)
            result[choice] = weight
        total = sum(result.values())
        return {choice: weight / total for choice, weight in result.items()}

    def marginals(self, position: int) -> np.ndarray:
        """(N, T) P(j_m = j)."""
        result = np.zeros((self.slots, len(self.sentence) - 1))
        for choice, share in self.choices(position).items():
            for slot, j in enumerate(choice):
                result[slot, j] += share
        return result

    def hidden(self, held: list[np.ndarray]) -> np.ndarray:
        """Σ_m W_m b_m."""
        mix = self.weights["backbone.mix.weight"]
        blocks = [mix[:, m * WIDTH : (m + 1) * WIDTH] for m in range(self.slots)]
        return sum((block @ b for block, b in zip(blocks, held, strict=True)), np.zeros(WIDTH))

    def log_probs(self, hidden: np.ndarray) -> np.ndarray:
        """(outcomes,) log softmax_k(e(k) · h + b_k)."""
        weights, bias = self.weights["emission.weight"], self.weights["emission.bias"]
        scores = np.array([weights[k] @ hidden + bias[k] for k in OUTCOMES])
        return scores - np.log(np.exp(scores).sum())

    def of_expected_vectors(self, position: int) -> np.ndarray:
        """What the systems predict: the window rule on what each slot holds on average."""
        known = self.vectors[self.sentence[:-1]]
        return self.log_probs(self.hidden(list(self.marginals(position) @ known)))

    def of_each_choice(self, position: int) -> list[tuple[float, np.ndarray]]:
        """Share of each choice and what it predicts."""
        return [
            (share, self.log_probs(self.hidden([self.vectors[self.sentence[j]] for j in choice])))
            for choice, share in self.choices(position).items()
        ]

    def full_mixture(self, position: int) -> np.ndarray:
        """log Σ over all choices of P(choice) p(k | choice)."""
        return np.log(sum(share * np.exp(log_p) for share, log_p in self.of_each_choice(position)))

    def gap(self) -> float:
        """The largest difference in nats between both predictions, over positions and outcomes."""
        positions = range(len(self.sentence) - 1)
        return max(
            float(np.abs(self.of_expected_vectors(i) - self.full_mixture(i)).max())
            for i in positions
        )


def scored(system: AutoregressiveLM, sentence: list[int] = SENTENCE) -> list[float]:
    with torch.no_grad():
        return system.log_prob(Batch.collate([sentence], pad=0)).per_token[0].tolist()


BOTH_SYSTEMS = pytest.mark.parametrize("name", ["slots", "slots-chain"])


@BOTH_SYSTEMS
@pytest.mark.parametrize("slots", [2, 3])
def test_marginals_equal_the_enumeration_of_all_choices(name, slots):
    system = build(name, slots)
    oracle = Enumeration(system, SENTENCE)
    attention = system.capture_internals(Batch.collate([SENTENCE], pad=0))["slot attention"]
    assert attention.axes == ("batch", "slot", "time", "source")
    for position in range(len(SENTENCE) - 1):
        result = attention.values[0, :, position].numpy()
        np.testing.assert_allclose(result, oracle.marginals(position), atol=2e-6)


@BOTH_SYSTEMS
def test_prediction_is_the_window_rule_on_expected_vectors(name):
    system = build(name, 3)
    oracle = Enumeration(system, SENTENCE)
    expected = [
        oracle.of_expected_vectors(position)[OUTCOMES.index(target)]
        for position, target in enumerate(SENTENCE[1:])
    ]
    assert scored(system) == pytest.approx(expected, abs=2e-5)


def test_chain_with_uniform_moves_equals_slots():
    chained, free = build("slots-chain", 3), build("slots", 3)
    with torch.no_grad():
        chained.backbone.log_moves.fill_(0.7)
        free.load_state_dict(
            {k: v for k, v in chained.state_dict().items() if k != "backbone.log_moves"}
        )
    assert scored(chained) == pytest.approx(scored(free), abs=1e-6)


@BOTH_SYSTEMS
def test_gap_to_the_full_mixture_respects_jensen(name, record_property):
    """Both predictions are at least the mean log-probability of the choices, by Jensen.

    log p(k | h) = e(k) · h + b_k - log Σ exp(…) is concave in h, so at the expected h it is at
    least its expectation; and the log of a mean is at least the mean of the logs. Neither is always
    the larger, so no more can be said than that, and the gap is measured.
    """
    oracle = Enumeration(build(name, 2), SENTENCE)
    for position in range(len(SENTENCE) - 1):
        choices = oracle.of_each_choice(position)
        mean = sum((share * log_p for share, log_p in choices), np.zeros(len(OUTCOMES)))
        assert (oracle.of_expected_vectors(position) >= mean - 1e-9).all()
        assert (oracle.full_mixture(position) >= mean - 1e-9).all()
    gap = oracle.gap()
    record_property("gap in nats", gap)
    print(f"{name}: expected vectors and the full sum differ by at most {gap:.4f} nats")
    assert gap > 0.01, "the choices are uncertain here, so the two must differ"


@BOTH_SYSTEMS
def test_gap_shrinks_with_the_mix_weights(name):
    """With a tenth of W_m the spread of h is a tenth, and the gap falls with its square."""
    gaps = []
    for share in (1.0, 0.1):
        system = build(name, 2)
        with torch.no_grad():
            system.backbone.mix.weight.mul_(share)
        gaps.append(Enumeration(system, SENTENCE).gap())
    # Second order in the spread of h: a hundredth, were it small from the start.
    assert gaps[1] < gaps[0] / 10


@BOTH_SYSTEMS
def test_no_gap_when_one_choice_has_all_mass(name):
    """Slot m attends m + 1 positions back and nowhere else: the window model itself."""
    system = build(name, 2)
    with torch.no_grad():
        for slot, prior in enumerate(system.backbone.priors):
            prior.table.fill_(-8.0)
            for row in range(LENGTH):
                column = max(0, row - slot)
                prior.table[row * (row + 1) // 2 + column] = 8.0
    oracle = Enumeration(system, SENTENCE)
    assert oracle.gap() < 1e-9
    window = system_module("window")
    twin = window.build(window.Config(width=WIDTH, size=2, dropout=0.0), VOCABULARY).eval()
    with torch.no_grad():
        twin.emission.load_state_dict(system.emission.state_dict())
        nearest, second = system.backbone.mix.weight.chunk(2, dim=1)
        twin.backbone.mix.weight.copy_(torch.cat([second, nearest], dim=1))
    # The first position has one token for both slots, where `window` counts the second as zero.
    assert scored(system)[1:] == pytest.approx(scored(twin)[1:], abs=1e-5)


@BOTH_SYSTEMS
def test_no_gap_when_all_tokens_are_equal(name):
    """Whatever the choice, the same vector is held."""
    oracle = Enumeration(build(name, 2), [5, 5, 5, 5, 5])
    assert oracle.gap() < 1e-9
