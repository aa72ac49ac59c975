"""The remixes and local chains by brute force: every assignment of states, from the raw weights."""

from __future__ import annotations

from itertools import product
from math import exp, log, prod, sqrt

import pytest
import torch

from lmlab.backbones.local_states import WORTH_SHARING, LocalStates, TwoTokenStates
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=9)
PREDICTED = [1, 3, 5, 6, 7, 8]  # no <pad>, <s>, <mask>
SENTENCES = [[2, 5, 6, 6, 8, 3], [2, 7, 3]]
Vector = list[float]


def make(name: str, **settings):
    """A small system whose every parameter has moved from its start."""
    torch.manual_seed(0)
    module = system_module(name)
    changes = {"width": 4, "states": 3, **settings}
    if hasattr(module.SIZES["tiny"], "dropout"):
        changes["dropout"] = 0.0
    system = module.build(module.Config(**changes), VOCABULARY)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return system.eval()


def raw(system, name: str):
    return system.get_parameter(name).tolist()


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: Vector) -> Vector:
    total = sum(exp(score) for score in scores)
    return [exp(score) / total for score in scores]


def times(matrix: list[Vector], vector: Vector) -> Vector:
    return [dot(row, vector) for row in matrix]


def token_given_state(outputs: list[Vector], vectors: list[Vector]) -> list[dict[int, float]]:
    """P(s | z) of each state, as a table by token."""
    tables = (softmax([dot(outputs[k], vector) for k in PREDICTED]) for vector in vectors)
    return [dict(zip(PREDICTED, table, strict=True)) for table in tables]


def choice(system, hidden: Vector, prefix: str = "emission.choose") -> Vector:
    """P(z | h) = softmax_z(c_z · h + b_z)."""
    scores = times(raw(system, f"{prefix}.weight"), hidden)
    return softmax([s + b for s, b in zip(scores, raw(system, f"{prefix}.bias"), strict=True)])


def check(system, predict) -> None:
    """log p of each sentence's tokens, and of all tokens after a prefix, against `predict`.

    `predict(prefix, token)` is the probability of a token after a list of tokens.
    """
    batch = Batch.collate(SENTENCES, pad=0)
    got = system.log_prob(batch).per_token
    for row, sentence in enumerate(SENTENCES):
        expected = [log(predict(sentence[:i], sentence[i])) for i in range(1, len(sentence))]
        positions = got[row, : len(expected)].tolist()
        assert positions == pytest.approx(expected, abs=1e-5)
    state = system.advance(system.start(1), torch.tensor([5]))
    whole = system.peek(state).log_probs[0]
    expected = [log(predict([2, 5], token)) for token in PREDICTED]
    assert whole[PREDICTED].tolist() == pytest.approx(expected, abs=1e-5)


def test_remix_sums_over_states():
    system = make("remix")
    embedding = raw(system, "backbone.embedding.weight")
    tables = token_given_state(embedding, raw(system, "emission.states.vectors"))

    def predict(prefix: list[int], token: int) -> float:
        weights = choice(system, embedding[prefix[-1]])
        return sum(weights[z] * tables[z][token] for z in range(3))

    check(system, predict)


def window_vector(system, embedding: list[Vector], prefix: list[int], size: int) -> Vector:
    """Σ_j W_j e(s_{i-j}); the mix matrix holds the oldest distance first."""
    total = [0.0] * 4
    mix = raw(system, "backbone.mix.weight")
    for distance, token in enumerate(reversed(prefix[-size:]), start=1):
        columns = slice(4 * (size - distance), 4 * (size - distance + 1))
        moved = times([row[columns] for row in mix], embedding[token])
        total = [a + b for a, b in zip(total, moved, strict=True)]
    return total


@pytest.mark.parametrize("name", ["window-remix", "window-remix-free"])
def test_window_remix_sums_over_states(name):
    system = make(name, size=2)
    embedding = raw(system, "backbone.embedding.weight")
    outputs = system.emission.states.weight.tolist()
    assert (outputs == embedding) == (name == "window-remix")
    tables = token_given_state(outputs, raw(system, "emission.states.vectors"))

    def predict(prefix: list[int], token: int) -> float:
        weights = choice(system, window_vector(system, embedding, prefix, 2))
        return sum(weights[z] * tables[z][token] for z in range(3))

    check(system, predict)


def unit(vector: Vector) -> Vector:
    return [x / sqrt(dot(vector, vector)) for x in vector]


def test_window_remix_on_the_sphere():
    system = make("window-remix-sphere", size=2)
    embedding = raw(system, "backbone.embedding.weight")
    scales = [exp(s) for s in raw(system, "emission.states.log_scales")]
    vectors = raw(system, "emission.states.vectors")
    states = [[b * x for x in unit(v)] for b, v in zip(scales, vectors, strict=True)]
    tables = token_given_state([unit(e) for e in embedding], states)
    inputs = [[2.0 * x for x in unit(e)] for e in embedding]  # √W = 2

    def predict(prefix: list[int], token: int) -> float:
        weights = choice(system, window_vector(system, inputs, prefix, 2))
        return sum(weights[z] * tables[z][token] for z in range(3))

    check(system, predict)


def test_norms_on_the_sphere_are_exact():
    """Inputs have length √W, outputs length 1, states their own scale, whatever the raw lengths."""
    system = make("window-remix-sphere")
    inputs = system.backbone.embedding(torch.arange(9))
    outputs, points = system.emission.states.factors()
    scales = system.emission.states.log_scales.exp()
    torch.testing.assert_close(inputs.norm(dim=1), torch.full((9,), 2.0))
    torch.testing.assert_close(outputs.norm(dim=1), torch.ones(9))
    torch.testing.assert_close(points.norm(dim=1), scales)
    with torch.no_grad():
        before = system.log_prob(Batch.collate(SENTENCES, pad=0)).per_token
        system.backbone.embedding.weight.mul_(7.0)
        system.emission.states.vectors.mul_(torch.tensor([[0.1], [3.0], [50.0]]))
        after = system.log_prob(Batch.collate(SENTENCES, pad=0)).per_token
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)


def state_posterior(system, tables: list[dict[int, float]], token: int) -> Vector:
    """P(z | s) ∝ P(z) P(s | z); the start token's is learned separately."""
    if token == 2:
        return softmax(raw(system, "backbone.posterior.unpredictable_logits"))
    prior = softmax(raw(system, "backbone.posterior.prior"))
    joint = [prior[z] * tables[z][token] for z in range(3)]
    return [p / sum(joint) for p in joint]


def local_tables(system) -> list[dict[int, float]]:
    states = system.emission.states
    return token_given_state(states.weight.tolist(), states.vectors.tolist())


def transition_scores(system) -> list[Vector]:
    """a_z · b_z'."""
    arriving = raw(system, "backbone.transition.arriving")
    return [times(arriving, vector) for vector in raw(system, "backbone.transition.leaving")]


def test_local_hmm_sums_over_pairs_of_states():
    system = make("local-hmm")
    tables = local_tables(system)
    transition = [softmax(row) for row in transition_scores(system)]

    def predict(prefix: list[int], token: int) -> float:
        here = state_posterior(system, tables, prefix[-1])
        pairs = product(range(3), repeat=2)
        return sum(here[z] * transition[z][after] * tables[after][token] for z, after in pairs)

    check(system, predict)


def crf_transition(system, token: int) -> list[Vector]:
    """P(z' | z) = softmax_z'(a_z · b_z' + c_z' · e(s))."""
    vector = system.backbone.transition.embedding.weight[token].tolist()
    pulls = times(raw(system, "backbone.transition.pull.weight"), vector)
    scores = transition_scores(system)
    return [softmax([a + c for a, c in zip(row, pulls, strict=True)]) for row in scores]


def test_local_crf_sums_over_pairs_of_states():
    system = make("local-crf")
    tables = local_tables(system)

    def predict(prefix: list[int], token: int) -> float:
        here = state_posterior(system, tables, prefix[-1])
        transition = crf_transition(system, prefix[-1])
        pairs = product(range(3), repeat=2)
        return sum(here[z] * transition[z][after] * tables[after][token] for z, after in pairs)

    check(system, predict)


def test_local_crf_2_sums_over_states_of_two_words():
    system = make("local-crf-2")
    tables = local_tables(system)

    def expected_after(token: int) -> Vector:
        here, transition = state_posterior(system, tables, token), crf_transition(system, token)
        return [sum(here[z] * transition[z][after] for z in range(3)) for after in range(3)]

    def predict(prefix: list[int], token: int) -> float:
        joined = state_posterior(system, tables, prefix[-1])
        if len(prefix) > 1:
            earlier = expected_after(prefix[-2])
            joined = [a * b for a, b in zip(joined, earlier, strict=True)]
        joined = [p / sum(joined) for p in joined]
        transition = crf_transition(system, prefix[-1])
        pairs = product(range(3), repeat=2)
        return sum(joined[z] * transition[z][after] * tables[after][token] for z, after in pairs)

    check(system, predict)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_token_transition_equals_explicit_matrices(scale):
    """Products of exponentials against the log-softmax of every (K, K).

    At the larger scale state and token prefer different states by tens of nats, which single
    precision would round to nothing.
    """
    step = make("local-crf").backbone.transition
    tokens = torch.tensor([5, 6, 2, 8])
    log_from = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    with torch.no_grad():
        step.leaving.mul_(scale)
        step.pull.weight.mul_(scale)
        got = step(log_from, tokens)
        expected = step.forward_clear(log_from, tokens)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-5)
    assert got.exp().sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "kind"), [("local-crf", LocalStates), ("local-crf-2", TwoTokenStates)]
)
def test_shared_computation_of_repeated_tokens_changes_nothing(name, kind):
    """A batch of many tokens computes each distinct one once; its rows alone do not."""
    system = make(name)
    assert type(system.backbone) is kind
    sentence = SENTENCES[0]
    rows = WORTH_SHARING // len(sentence) + 1
    many = system.log_prob(Batch.collate([sentence] * rows, pad=0)).per_token
    alone = system.log_prob(Batch.collate([sentence], pad=0)).per_token
    torch.testing.assert_close(many, alone.expand_as(many), atol=1e-5, rtol=0)


def test_remix_rotated_mixes_k_plus_one_components():
    system = make("remix-rotated")
    embedding = raw(system, "backbone.embedding.weight")
    tables = token_given_state(embedding, raw(system, "emission.states.vectors"))
    rotation = raw(system, "emission.rotate.weight")

    def predict(prefix: list[int], token: int) -> float:
        vector = embedding[prefix[-1]]
        weights = choice(system, vector)
        turned = token_given_state(embedding, [times(rotation, vector)])[0]
        components = [*tables, turned]
        return sum(weights[component] * components[component][token] for component in range(4))

    check(system, predict)
    batch = Batch.collate(SENTENCES, pad=0)
    share = system.capture_internals(batch)["share of the rotation"]
    assert share.axes == ("batch", "time")
    assert share.values[0, 1].item() == pytest.approx(choice(system, embedding[5])[3], abs=1e-6)


def product_score(system, embedding, tables, previous: int, token: int) -> float:
    """Σ over all tuples of states of Π_g P_g(s | z_g) P_g(z_g | previous)."""
    count = len(tables)
    weights = [
        choice(system, embedding[previous], f"emission.factors.{g}.choose") for g in range(count)
    ]
    return sum(
        prod(weights[g][z] * tables[g][z][token] for g, z in enumerate(states))
        for states in product(range(len(weights[0])), repeat=count)
    )


@pytest.mark.parametrize(("factors", "states"), [(2, 3), (4, 2)], ids=["two", "bernoulli"])
def test_product_is_normalised_and_above_its_bound(factors, states):
    system = make("product-bound", factors=factors, states=states)
    embedding = raw(system, "backbone.embedding.weight")
    tables = [
        token_given_state(embedding, raw(system, f"emission.factors.{g}.states.vectors"))
        for g in range(factors)
    ]

    def score(prefix: list[int], token: int) -> float:
        return product_score(system, embedding, tables, prefix[-1], token)

    def predict(prefix: list[int], token: int) -> float:
        return score(prefix, token) / sum(score(prefix, other) for other in PREDICTED)

    check(system, predict)
    batch = Batch.collate(SENTENCES, pad=0)
    bound = -system.loss(batch)[0].total.item()
    by_hand = sum(log(score(s[:i], s[i])) for s in SENTENCES for i in range(1, len(s)))
    assert bound == pytest.approx(by_hand, abs=1e-4)
    log_prob = system.log_prob(batch)
    exact = log_prob.totals.sum().item()
    assert bound <= exact
    assert log_prob.kind == "exact"
    # The captured looseness of all positions sums to the gap.
    loose = system.capture_internals(batch)["looseness"].values
    gap = loose[0].sum() + loose[1, :2].sum()
    assert gap.item() == pytest.approx(exact - bound, abs=1e-4)


def test_product_next_token_loss_is_exact_log_probability():
    system = make("product-bound", objective="next-token")
    batch = Batch.collate(SENTENCES, pad=0)
    exact = system.log_prob(batch).totals.sum().item()
    assert -system.loss(batch)[0].total.item() == pytest.approx(exact, abs=1e-5)


def test_product_bound_is_tight_for_one_factor():
    system = make("product-bound", factors=1)
    batch = Batch.collate(SENTENCES, pad=0)
    exact = system.log_prob(batch).totals.sum().item()
    assert -system.loss(batch)[0].total.item() == pytest.approx(exact, abs=1e-5)


def test_local_crf_captures_equal_its_tables():
    system = make("local-crf")
    captures = system.capture_internals(Batch.collate(SENTENCES[:1], pad=0))
    tables = local_tables(system)
    # The last input of the first sentence is token 8.
    assert captures["transitions"].axes == ("state", "next state")
    for row, expected in zip(
        captures["transitions"].values, crf_transition(system, 8), strict=True
    ):
        assert row.tolist() == pytest.approx(expected, abs=1e-6)
    here = captures["state posterior"].values[0, 1].tolist()
    assert here == pytest.approx(state_posterior(system, tables, 5), abs=1e-6)
    assert captures["state prior"].values.sum().item() == pytest.approx(1.0)
    use = captures["mixture use"].values
    assert use.sum().item() == pytest.approx(1.0, abs=1e-6)
