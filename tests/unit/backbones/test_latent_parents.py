"""Latent parents: normalised priors, bounded state, segment-wise scoring, captures."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from lmlab.backbones.latent_parents import (
    FactoredParents,
    LatentParents,
    LearnedPrior,
    Renewal,
    TwoLatentParents,
    TypedTransitions,
    UniformPrior,
)
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.registry import system_module
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.pair_softmax import PairSoftmax
from lmlab.emissions.softmax import Softmax
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

SYSTEMS = {
    "parent": {"max_distance": 3},
    "parent-permuted": {"size": 3},
    "window-mixture": {"size": 3, "windows": 2},
    "parent-prior": {"length": 4},
    "parent-typed": {"length": 4, "types": 3},
    "renewal": {"learned_weight": True},
    "renewal-typed": {"types": 3},
    "remix-aligned": {"length": 4, "states": 5},
    "two-parents": {"max_distance": 3},
    "slots": {"length": 4, "slots": 2},
    "slots-chain": {"length": 4, "slots": 3, "max_move": 2},
}
"""Settings whose memory is shorter than the text below."""
EVERY_SYSTEM = pytest.mark.parametrize("name", SYSTEMS)
TEXT = [2, 5, 6, 8, 5, 7, 1, 6, 3, 5, 5, 8]
LIKE = torch.zeros(())


def build(name: str, **settings) -> AutoregressiveLM:
    """With random weights, so that no prior is uniform by initialisation."""
    module = system_module(name)
    config = module.Config(width=4, dropout=0.0, **{**SYSTEMS[name], **settings})
    system = module.build(config, Vocabulary(size=9)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in system.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return system


def batch_of(*rows: list[int]) -> Batch:
    return Batch.collate(rows, pad=0)


def view_of(*rows: list[int]) -> View:
    batch = batch_of(*rows)
    return View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=CausalMask())


def test_uniform_prior_is_uniform_within_max_distance():
    prior = UniformPrior(max_distance=3)(0, 5, LIKE).exp()
    third = 1 / 3
    expected = [
        [1, 0, 0, 0, 0],
        [0.5, 0.5, 0, 0, 0],
        [third, third, third, 0, 0],
        [0, third, third, third, 0],
        [0, 0, third, third, third],
    ]
    torch.testing.assert_close(prior, torch.tensor(expected))


def test_uniform_prior_without_max_distance_covers_all_tokens():
    prior = UniformPrior(max_distance=None)(2, 2, LIKE).exp()
    third = 1 / 3
    torch.testing.assert_close(prior, torch.tensor([[third] * 3 + [0], [0.25] * 4]))


def test_learned_prior_has_a_row_per_position_and_shifts_it():
    prior = LearnedPrior(length=3)
    with torch.no_grad():  # rows (1), (1, 3), (1, 2, 5), as weights; entries are scaled by eight
        prior.table.copy_(torch.tensor([1.0, 1.0, 3.0, 1.0, 2.0, 5.0]).log() / 8)
    expected = [
        [1, 0, 0, 0, 0],
        [1 / 4, 3 / 4, 0, 0, 0],
        [1 / 8, 2 / 8, 5 / 8, 0, 0],
        [0, 1 / 8, 2 / 8, 5 / 8, 0],
        [0, 0, 1 / 8, 2 / 8, 5 / 8],
    ]
    torch.testing.assert_close(prior(0, 5, LIKE).exp(), torch.tensor(expected))
    # After two stored tokens every position uses the last row.
    torch.testing.assert_close(prior(2, 3, LIKE).exp(), torch.tensor(expected)[2:])


def test_learned_prior_has_no_parameters_for_the_future():
    assert LearnedPrior(length=5).table.shape == (5 + 4 + 3 + 2 + 1,)


@EVERY_SYSTEM
@pytest.mark.parametrize("cuts", [(1,), (3, 4), tuple(range(1, 11))])
def test_scores_do_not_depend_on_segmentation(name, cuts):
    system = build(name)
    rows = [TEXT, TEXT[::-1]]
    rows = [[t if t != 2 else 7 for t in row] for row in rows]  # <s> is never predicted
    with torch.no_grad():
        whole = system.log_prob(batch_of(*rows)).per_token
        state, parts = None, []
        for first, last in pairwise((0, *cuts, len(TEXT) - 1)):
            segment = batch_of(*(row[first : last + 1] for row in rows))
            result = system.log_prob(segment, state=state)
            state = result.state
            parts.append(result.per_token)
    assert whole.isfinite().all()
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-6, rtol=1e-5)


@EVERY_SYSTEM
def test_long_text_is_scored_in_segments_with_the_same_result(name, monkeypatch):
    """Rows of different lengths: at a cut a row has ended, has one token left, or continues."""
    system = build(name)
    batch = batch_of(TEXT, TEXT[:6], TEXT[:3])
    with torch.no_grad():
        whole = system.log_prob(batch).per_token
        monkeypatch.setattr(f"{type(system).__module__}.MAX_LENGTH", 5)
        cut = system.log_prob(batch)
    torch.testing.assert_close(cut.per_token, whole, atol=2e-6, rtol=1e-5)
    assert cut.state is not None


def test_state_keeps_all_tokens_without_max_distance():
    system = build("parent", max_distance=None)
    row = [7, *TEXT[1:]]
    with torch.no_grad():
        whole = system.log_prob(batch_of(row)).per_token
        first = system.log_prob(batch_of(row[:5]))
        second = system.log_prob(batch_of(row[4:]), state=first.state)
    torch.testing.assert_close(torch.cat([first.per_token, second.per_token], 1), whole)


@EVERY_SYSTEM
def test_recurrent_state_is_bounded(name):
    """Never more than the tokens that the next position can still attend to."""
    system = build(name)
    state = system.start(2)
    sizes = []
    for token in TEXT[1:]:
        state = system.advance(state, torch.tensor([token, token]))
        sizes.append(state.memory["tokens"].shape[1])
    longest = {"renewal": 0, "renewal-typed": 0}
    settings = SYSTEMS[name]
    max_distance = settings.get("length") or settings.get("max_distance") or settings.get("size", 1)
    assert max(sizes) == sizes[-1] == longest.get(name, max_distance - 1)


@EVERY_SYSTEM
def test_all_gradients_are_finite_and_nonzero(name):
    """Sums with zero weights still have gradients."""
    system = build(name)
    loss, _ = system.loss(batch_of([2, 5, 6, 8, 5, 7, 3], [2, 3]))
    loss.total.backward()
    for parameter in system.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


def test_parent_pairs_are_shared_across_positions():
    """Of 3 · 3 pairs per position only 5 are new: 5 · S, less those out of range at both ends."""
    embedding = nn.Embedding(9, 4)
    backbone = TwoLatentParents(embedding, UniformPrior(3), UniformPrior(3))
    hidden = backbone(view_of(TEXT))
    assert hidden.values.shape == (1, 5 * len(TEXT) - 2 * (1 + 2), 4)
    assert hidden.log_weights is not None
    pair_counts = hidden.log_weights[0].isfinite().sum(1).tolist()
    assert pair_counts == [1, 4] + [9] * (len(TEXT) - 2)


def two_parents(
    backbone: type[TwoLatentParents], emission: type[Softmax], **options
) -> AutoregressiveLM:
    torch.manual_seed(0)
    vocabulary, embedding = Vocabulary(size=9), nn.Embedding(9, 4)
    return AutoregressiveLM(
        vocabulary=vocabulary,
        backbone=backbone(embedding, LearnedPrior(3), LearnedPrior(3)),
        emission=emission(4, vocabulary, tied=embedding, **options),
        objective=NextToken(),
    )


def test_factored_parents_equal_the_reference_implementation():
    """Fast and reference implementations: the same probabilities and the same gradients."""
    reference = two_parents(TwoLatentParents, Softmax)
    factored = two_parents(FactoredParents, PairSoftmax, max_distance=3)
    factored.load_state_dict(reference.state_dict())
    batch = batch_of([2, *TEXT[1:]], [2, 3])
    for system in (reference, factored):
        system.loss(batch)[0].total.backward()
    torch.testing.assert_close(
        factored.log_prob(batch).per_token, reference.log_prob(batch).per_token
    )
    expected = dict(reference.named_parameters())
    for name, parameter in factored.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-4)


def test_renewal_weight_applies_to_typed_parents():
    """The renewal weight λ is taken from all parents, types and positions together."""
    embedding = nn.Embedding(9, 4)
    backbone = Renewal(
        LatentParents(embedding, LearnedPrior(4), TypedTransitions(4, 2)), learned=True
    )
    with torch.no_grad():
        backbone.balance.copy_(torch.tensor([0.2, 0.8]).log())
    hidden = backbone(view_of(TEXT))
    assert hidden.log_weights is not None
    shares = hidden.log_weights.exp()
    torch.testing.assert_close(shares[..., 0], torch.full((1, len(TEXT)), 0.2))
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, len(TEXT)))


CAPTURES = {
    "parent": {"parent prior", "posterior"},
    "parent-permuted": {"ordering prior", "posterior"},
    "window-mixture": {"window shares", "posterior"},
    "parent-prior": {"parent prior", "posterior"},
    "parent-typed": {"parent prior", "posterior", "type shares", "type posterior"},
    "renewal": {"parent prior", "renewal weight", "posterior"},
    "renewal-typed": {"parent prior", "renewal weight", "posterior", "type shares"},
    "remix-aligned": {"parent prior", "posterior", "mixture use"},
    "two-parents": {
        "first parent prior",
        "second parent prior",
        "first parent posterior",
        "second parent posterior",
    },
    "slots": {"slot prior", "slot attention"},
    "slots-chain": {"slot prior", "slot attention", "slot moves"},
}


@EVERY_SYSTEM
def test_captures_are_distributions(name):
    """Every latent variable is captured, and each capture sums to one over its values."""
    captures = build(name).capture_internals(batch_of(TEXT, TEXT[:5]))
    assert set(captures) == CAPTURES[name]
    for title, capture in captures.items():
        sums = capture.values.sum(-1)
        if "posterior" in title:  # padding has no posterior
            assert sums[1, 4:].abs().max() == 0
            sums = torch.cat([sums[0], sums[1, :4]])
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_posterior_sources_are_text_positions():
    """Not pairs, types or renewals: rows and columns are the tokens of the sentence."""
    time = len(TEXT) - 1
    for name in ("parent", "parent-typed", "remix-aligned"):
        posterior = build(name).capture_internals(batch_of(TEXT))["posterior"]
        assert posterior.axes[-1] == "source" and posterior.values.shape == (1, time, time)
    renewal: Capture = build("renewal-typed").capture_internals(batch_of(TEXT))["posterior"]
    assert renewal.axes[-1] == "choice" and renewal.values.shape == (1, time, 1 + 3)


def test_two_parent_posteriors_are_marginals_of_pairs():
    """By hand where a position attends to tokens 0 and 1: the pairs (0,0), (0,1), (1,0), (1,1)."""
    embedding = nn.Embedding(9, 4)
    backbone = TwoLatentParents(embedding, UniformPrior(3), UniformPrior(3))
    a, b = backbone.pairs(2)
    assert list(zip(a.tolist(), b.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    captures = backbone.explain(torch.tensor([[[1.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]]]))
    first, second = captures["first parent posterior"], captures["second parent posterior"]
    torch.testing.assert_close(first.values[0, 1], torch.tensor([0.1 + 0.2, 0.3 + 0.4]))
    torch.testing.assert_close(second.values[0, 1], torch.tensor([0.1 + 0.3, 0.2 + 0.4]))
