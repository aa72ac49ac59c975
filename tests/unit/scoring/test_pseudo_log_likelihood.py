"""Pseudo-log-likelihood scores against loops that mask one copy at a time and use all logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.scoring.pseudo_log_likelihood import (
    MASKED_METHODS,
    masked_score_kind,
    masked_token_scores,
)
from lmlab.zoo import bert, electra, hmm, mpnet, ngram, xlnet

VOCABULARY = Vocabulary(size=23)
SEQUENCES = [
    [2, 7, 8, 9, 10, 11, 3],
    [2, 12, 13, 3],
    [2, 20, 6, 6, 22, 17, 18, 19, 5, 3],
    [2, 3],
    [2, 14, 15, 16],
]
WORDS = [
    [-1, 0, 0, 0, 1, 1, -2],
    [-1, 0, 1, -2],
    [-1, 0, 1, 1, 1, 2, 3, 3, 3, -2],
    [-1, -2],
    [-1, 0, 0, 1],
]


def randomise_weights(system: torch.nn.Module) -> torch.nn.Module:
    """Set weights so large that every token influences every other."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in system.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.4 * values + (1.0 if "norm" in name and "weight" in name else 0.0)
    return system.eval()


@pytest.fixture(scope="module")
def system():
    return randomise_weights(bert.build(bert.SIZES["tiny"], VOCABULARY))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.collate(SEQUENCES, VOCABULARY.pad)


@pytest.fixture(scope="module")
def words() -> Tensor:
    longest = max(map(len, WORDS))
    return torch.tensor([[*row, *[-3] * (longest - len(row))] for row in WORDS])


@torch.no_grad()
def score_by_loop(system, method: str, head: str, shown: set[int] = frozenset()) -> Tensor:
    """Each text alone, each masked copy alone, all logits: the bare definitions."""
    scores = torch.zeros(len(SEQUENCES), max(map(len, SEQUENCES)))
    for row, sequence in enumerate(SEQUENCES):
        ordinary = [p for p in range(1, len(sequence)) if sequence[p] != VOCABULARY.end]
        for position in ordinary:
            masked = {
                "simple": [],
                "raw": [position],
                "norm": [position],
                "within-word": [
                    p for p in ordinary if p >= position and WORDS[row][p] == WORDS[row][position]
                ],
                "k-mask": [p for p in ordinary if p not in shown],
                "raw-k-mask": [p for p in ordinary if p not in shown],
            }[method]
            inputs = [VOCABULARY.mask if p in masked else t for p, t in enumerate(sequence)]
            view = View(
                inputs=torch.tensor([inputs]),
                lengths=torch.tensor([len(inputs)]),
                attention_mask=FullMask(),
            )
            state = system.backbone(view).values[0, position]
            if head == "own":
                logits = system.emission.logits(state)
            else:
                logits = system.backbone.embedding.tokens.weight @ state
            logits[list(VOCABULARY.unpredictable)] = -float("inf")
            if method in ("norm", "within-word", "k-mask"):
                logits = logits.log_softmax(0)
            scores[row, position] = logits[sequence[position]]
    return scores


@pytest.mark.parametrize("head", ["own", "none"])
@pytest.mark.parametrize("method", MASKED_METHODS)
def test_masked_methods_match_their_definitions(system, batch, words, method, head):
    scores = masked_token_scores(system, batch, method=method, head=head, words=words)
    expected = score_by_loop(system, method, head)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert expected[0, 1:6].std() > 0.1


@pytest.mark.parametrize("method", MASKED_METHODS)
def test_mpnet_scores_like_a_single_stream_encoder(batch, words, method):
    """MPNet: visible tokens are encoded as in any encoder, so its scores compare with BERT's."""
    system = randomise_weights(mpnet.build(mpnet.SIZES["tiny"], VOCABULARY))
    scores = masked_token_scores(system, batch, method=method, words=words)
    expected = score_by_loop(system, method, "own")
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


def test_masked_methods_differ_from_each_other(system, batch, words):
    """Otherwise the test above could not distinguish them."""
    scores = [
        masked_token_scores(system, batch, method=method, words=words)[0]
        for method in MASKED_METHODS
    ]
    for index, one in enumerate(scores):
        assert all((one - other).abs().max() > 0.05 for other in scores[:index])


@pytest.mark.parametrize("method", ["k-mask", "raw-k-mask"])
def test_k_mask_scores_unmasked_positions_too(system, batch, method):
    """Some positions are masked, and all are scored."""
    masked = batch.mask()
    masked[:, [0, 2, 3]] = False
    masked &= batch.tokens != VOCABULARY.end
    scores = masked_token_scores(system, batch, method=method, masked=masked)
    expected = score_by_loop(system, method, "own", shown={2, 3})
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    only = masked_token_scores(system, batch, method=method, scored=masked)
    torch.testing.assert_close(only, expected * masked, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", MASKED_METHODS)
def test_masked_scores_do_not_depend_on_batching(system, batch, words, method):
    whole = masked_token_scores(system, batch, method=method, words=words)
    little = masked_token_scores(system, batch, method=method, words=words, tokens_at_once=1)
    torch.testing.assert_close(little, whole, atol=1e-5, rtol=1e-5)
    order = torch.tensor([3, 0, 4, 2, 1])
    reordered = masked_token_scores(system, batch.select(order), method=method, words=words[order])
    torch.testing.assert_close(reordered, whole[order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("budget", [10, 25, 64])
def test_forward_passes_stay_within_token_budget(system, batch, budget):
    """The longest text has 10 positions; inputs are counted at the first layer."""
    passes: list[Tensor] = []
    hook = system.backbone.stack.blocks[0].feed_forward.register_forward_pre_hook(
        lambda _, given: passes.append(given[0][..., 0])
    )
    try:
        masked_token_scores(system, batch, method="norm", tokens_at_once=budget)
    finally:
        hook.remove()
    assert max(inputs.numel() for inputs in passes) <= budget
    positions = sum(len(s) - 2 + (s[-1] != 3) for s in SEQUENCES)
    assert sum(len(inputs) for inputs in passes) == positions
    # Copies of similar length are batched together, so that there is little padding.
    real = sum(len(s) * (len(s) - 2 + (s[-1] != 3)) for s in SEQUENCES)
    assert sum(inputs.numel() for inputs in passes) <= 1.3 * real


def test_only_selected_positions_are_scored_and_mode_kept(system, batch):
    scored = torch.zeros_like(batch.mask())
    scored[0, 2] = scored[2, 5] = True
    system.train()
    scores = masked_token_scores(system, batch, method="norm", scored=scored)
    assert system.training and not scores.requires_grad
    system.eval()
    whole = masked_token_scores(system, batch, method="norm")
    torch.testing.assert_close(scores, whole * scored, atol=1e-5, rtol=1e-5)
    nothing = masked_token_scores(system, batch, method="raw", scored=torch.zeros_like(scored))
    assert nothing.shape == batch.tokens.shape and not nothing.any()


@pytest.mark.parametrize("zoo", [hmm, xlnet, mpnet, electra], ids=lambda zoo: zoo.__name__[10:])
def test_norm_equals_the_fill_distribution(zoo, batch):
    system = randomise_weights(zoo.build(zoo.SIZES["tiny"], VOCABULARY))
    scores = masked_token_scores(system, batch, method="norm")
    for row, sequence in enumerate(SEQUENCES):
        alone = Batch.collate([sequence], VOCABULARY.pad)
        for position in range(1, len(sequence)):
            if sequence[position] == VOCABULARY.end:
                assert scores[row, position] == 0
                continue
            masked = torch.zeros_like(alone.mask())
            masked[0, position] = True
            with torch.no_grad():
                log_probs = system.fill(alone, masked).log_probs
            assert scores[row, position] == pytest.approx(
                float(log_probs[0, sequence[position]]), abs=1e-4
            )


def test_masked_model_default_score_is_norm(system, batch):
    with torch.no_grad():
        own = system.log_prob(batch)
    assert own.kind == masked_score_kind("norm") == "pseudo"
    norm = masked_token_scores(system, batch, method="norm")
    torch.testing.assert_close(own.per_token, norm[:, 1:])


def test_invalid_method_or_system_is_reported(system, batch):
    with pytest.raises(UserError, match="did you mean 'norm'"):
        masked_token_scores(system, batch, method="nrom")
    with pytest.raises(UserError, match="no words"):
        masked_token_scores(system, batch, method="within-word")
    other = hmm.build(hmm.SIZES["tiny"], VOCABULARY)
    for method, head in (("raw", "own"), ("norm", "none"), ("simple", "own")):
        with pytest.raises(UserError, match=r"Logits.*bert"):
            masked_token_scores(other, batch, method=method, head=head)
    with pytest.raises(UserError, match=r"norm.*Fill.*bert"):
        masked_token_scores(ngram.build(ngram.SIZES["tiny"], VOCABULARY), batch, method="norm")


def test_masked_score_kinds():
    kinds = {method: masked_score_kind(method) for method in MASKED_METHODS}
    unnormalised = {method for method, kind in kinds.items() if kind == "unnormalised"}
    assert unnormalised == {"simple", "raw", "raw-k-mask"}
    assert set(kinds.values()) == {"unnormalised", "pseudo"}
