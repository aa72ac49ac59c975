"""Mixtures of learned initial states against the explicit sum, from raw weights."""

from __future__ import annotations

from itertools import pairwise
from math import log

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.models.initial_state_mixture import InitialStateMixtureLM

VOCABULARY = Vocabulary(size=9)
SENTENCES = [[2, 5, 6, 7, 8, 3], [2, 8, 3], [2, 7, 7, 3]]


def build(name: str, **settings) -> InitialStateMixtureLM:
    torch.manual_seed(3)
    module = system_module(name)
    system = module.build(module.Config(width=4, dropout=0.0, **settings), VOCABULARY).eval()
    for parameter in system.parameters():
        parameter.data.normal_(0, 0.8)
    return system


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def normed(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def next_token_probabilities(weights: dict[str, np.ndarray], hidden: np.ndarray) -> np.ndarray:
    """Σ_z P(z | h) P(s | z) with P(s | z) = softmax_s(β_z cos(e_s, v_z)), token by token."""
    chosen = softmax(weights["emission.choose.weight"] @ hidden + weights["emission.choose.bias"])
    outputs = normed(weights["emission.states.weight"])
    states = normed(weights["emission.states.vectors"])
    total = np.zeros(VOCABULARY.size)
    for z, share in enumerate(chosen):
        scores = np.exp(weights["emission.states.log_scales"][z]) * outputs @ states[z]
        scores[[0, 2, 4]] = -np.inf  # <pad>, <s> and <mask> are never predicted
        total += share * softmax(scores)
    return total


def by_hand(
    system: InitialStateMixtureLM, sentence: list[int], step
) -> tuple[list[float], list[float]]:
    """p(s_1 … s_t) for t = 1 … T as Σ_w π_w Π_u p(s_u | s_<u, w), and π given all of them."""
    weights = {name: value.numpy() for name, value in system.state_dict().items()}
    count = system.starts.count
    prior = softmax(weights["starts.logits"]) if count > 1 else np.ones(1)
    embedding = 2 * normed(weights["backbone.embedding.weight"])  # length √4
    paths = []
    for start in range(count):
        hidden, product, path = weights["starts.vectors.0_hidden"][start], 1.0, []
        for token, target in pairwise(sentence):
            hidden = step(weights, embedding[token], hidden)
            product *= next_token_probabilities(weights, hidden)[target]
            path.append(product)
        paths.append(path)
    sums = [sum(prior[w] * paths[w][t] for w in range(count)) for t in range(len(sentence) - 1)]
    return sums, [prior[w] * paths[w][-1] / sums[-1] for w in range(count)]


def tanh_step(weights, x, h):
    fused = {name.rpartition(".")[2]: v for name, v in weights.items() if ".fused." in name}
    from_input = fused["weight_ih_l0"] @ x + fused["bias_ih_l0"]
    return np.tanh(from_input + fused["weight_hh_l0"] @ h + fused["bias_hh_l0"])


def minimal_step(weights, x, h):
    w = {name.rpartition(".")[2]: v for name, v in weights.items() if "blocks.0." in name}
    f = sigmoid(x @ w["gate_input"] + h @ w["gate_hidden"] + w["gate_bias"])
    g = np.tanh(x @ w["candidate_input"] + (h * f) @ w["candidate_hidden"] + w["candidate_bias"])
    return (1 - f) * h + f * g


@pytest.mark.parametrize(
    ("name", "step"), [("rnn-mixture", tanh_step), ("gru-minimal", minimal_step)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_log_prob_is_the_sum_over_initial_states(name, step, count):
    system = build(name, starts=count, states=3).double()
    got = system.log_prob(Batch.collate(SENTENCES, pad=0)).per_token
    captured = system.capture_internals(Batch.collate(SENTENCES, pad=0))
    for row, sentence in enumerate(SENTENCES):
        sums, posterior = by_hand(system, sentence, step)
        expected = [log(b / a) for a, b in zip([1.0, *sums[:-1]], sums, strict=True)]
        assert got[row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-9)
        last = captured["posterior over starts"].values[row, len(expected) - 1]
        assert last.tolist() == pytest.approx(posterior, abs=1e-9)


@pytest.mark.parametrize("name", ["rnn-mixture", "lstm-mixture", "gru-mixture", "gru", "lstm"])
def test_one_zero_initial_state_equals_the_plain_model(name):
    mixed = build(name, starts=1)
    plain = build(name, starts=0)
    assert type(plain) is AutoregressiveLM
    for vector in mixed.starts.vectors.values():
        vector.data.zero_()
    plain.load_state_dict(mixed.state_dict(), strict=False)
    batch = Batch.collate(SENTENCES, pad=0)
    torch.testing.assert_close(mixed.log_prob(batch).per_token, plain.log_prob(batch).per_token)


@pytest.mark.parametrize(
    ("name", "settings"), [("lstm-mixture", {}), ("mgru", {"off": (4, 6, 11)})]
)
def test_continuing_from_a_state_equals_one_pass(name, settings):
    """Text in two segments, the second beginning with the last token of the first."""
    system = build(name, starts=3, **settings)
    whole = torch.tensor([[2, 5, 6, 7, 8, 5, 6], [2, 8, 8, 5, 5, 7, 6]])

    def batch(tokens):
        lengths = torch.full((2,), tokens.shape[1])
        return Batch(tokens=tokens, lengths=lengths, rows=torch.arange(2))

    first = system.log_prob(batch(whole[:, :4]))
    # Rows are forked and reordered as a beam does: the second, then the first.
    swapped = torch.tensor([1, 0])
    second = system.log_prob(batch(whole[swapped, 3:]), state=first.state.select(swapped))
    together = torch.cat([first.per_token, second.per_token[swapped]], 1)
    torch.testing.assert_close(together, system.log_prob(batch(whole)).per_token)
    assert second.state["log_weights"].exp().sum(1).tolist() == pytest.approx([1, 1])


def test_next_token_is_mixed_by_the_posterior():
    """p(next) after 5, 6 is Σ_w posterior_w p(next | w), worked by hand for two starts."""
    system = build("rnn-mixture", starts=2, states=3).double()
    state = system.advance(system.advance(system.start(1), torch.tensor([5])), torch.tensor([6]))
    sums, _ = by_hand(system, [2, 5, 6], tanh_step)
    for token in (1, 3, 5, 6, 7, 8):
        longer, _ = by_hand(system, [2, 5, 6, token], tanh_step)
        got = system.peek(state).log_probs[0, token].exp().item()
        assert got == pytest.approx(longer[-1] / sums[-1], abs=1e-10)


def test_padding_leaves_the_posterior_unchanged():
    system = build("rnn-mixture", starts=2)
    state = system.advance(system.start(2), torch.tensor([5, 3]))
    after = system.advance(state, torch.tensor([6, 0]))
    torch.testing.assert_close(after.log_weights[1], state.log_weights[1])
    assert after.log_weights.exp().sum(1).tolist() == pytest.approx([1, 1])


def test_initial_states_can_be_trained():
    """Two sentences that differ from the first word on: the best any model can give each is 1/2."""
    torch.manual_seed(0)
    module = system_module("rnn-mixture")
    system = module.build(module.Config(width=8, states=4, starts=2, dropout=0.0), VOCABULARY)
    batch = Batch.collate([[2, 5, 5, 5, 3], [2, 6, 6, 6, 3]], pad=0)
    optimizer = torch.optim.Adam(system.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        system.loss(batch)[0].total.backward()
        optimizer.step()
    assert system.log_prob(batch).per_token.sum(1).tolist() == pytest.approx([-log(2)] * 2, abs=0.2)
    captured = system.eval().capture_internals(batch)
    assert captured["starts"].values.sum().item() == pytest.approx(1)
    assert captured["posterior over starts"].values.shape == (2, 4, 2)
