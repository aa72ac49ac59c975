"""Scores by masked models against loops that mask one copy at a time and read all of its logits."""

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


def spread_out(system: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that each token has a say in every other."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in system.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.4 * drawn + (1.0 if "norm" in name and "weight" in name else 0.0)
    return system.eval()


@pytest.fixture(scope="module")
def system():
    return spread_out(bert.build(bert.SIZES["tiny"], VOCABULARY))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.collate(SEQUENCES, VOCABULARY.pad)


@pytest.fixture(scope="module")
def words() -> Tensor:
    longest = max(map(len, WORDS))
    return torch.tensor([[*row, *[-3] * (longest - len(row))] for row in WORDS])


@torch.no_grad()
def score_by_loop(system, method: str, head: str, shown: set[int] = frozenset()) -> Tensor:
    """Each text by itself, each copy by itself, all logits: the definitions and nothing else."""
    found = torch.zeros(len(SEQUENCES), max(map(len, SEQUENCES)))
    for row, sequence in enumerate(SEQUENCES):
        ordinary = [p for p in range(1, len(sequence)) if sequence[p] != VOCABULARY.end]
        for place in ordinary:
            hidden = {
                "simple": [],
                "raw": [place],
                "norm": [place],
                "within-word": [
                    p for p in ordinary if p >= place and WORDS[row][p] == WORDS[row][place]
                ],
                "k-mask": [p for p in ordinary if p not in shown],
                "raw-k-mask": [p for p in ordinary if p not in shown],
            }[method]
            inputs = [VOCABULARY.mask if p in hidden else t for p, t in enumerate(sequence)]
            view = View(
                inputs=torch.tensor([inputs]),
                lengths=torch.tensor([len(inputs)]),
                attention_mask=FullMask(),
            )
            state = system.backbone(view).values[0, place]
            if head == "own":
                logits = system.emission.logits(state)
            else:
                logits = system.backbone.embedding.tokens.weight @ state
            logits[list(VOCABULARY.unpredictable)] = -float("inf")
            if method in ("norm", "within-word", "k-mask"):
                logits = logits.log_softmax(0)
            found[row, place] = logits[sequence[place]]
    return found


@pytest.mark.parametrize("head", ["own", "none"])
@pytest.mark.parametrize("method", MASKED_METHODS)
def test_every_method_is_its_definition(system, batch, words, method, head):
    found = masked_token_scores(system, batch, method=method, head=head, words=words)
    expected = score_by_loop(system, method, head)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected[0, 1:6].std() > 0.1


@pytest.mark.parametrize("method", MASKED_METHODS)
def test_two_streams_are_read_as_one_where_texts_are_scored(batch, words, method):
    """MPNet: what is seen is content like any encoder's, so its scores mean what BERT's do."""
    other = spread_out(mpnet.build(mpnet.SIZES["tiny"], VOCABULARY))
    found = masked_token_scores(other, batch, method=method, words=words)
    expected = score_by_loop(other, method, "own")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_methods_differ(system, batch, words):
    """Else the test above would not tell them apart."""
    found = [
        masked_token_scores(system, batch, method=method, words=words)[0]
        for method in MASKED_METHODS
    ]
    for place, one in enumerate(found):
        assert all((one - other).abs().max() > 0.05 for other in found[:place])


@pytest.mark.parametrize("method", ["k-mask", "raw-k-mask"])
def test_what_is_hidden_together_need_not_be_what_is_scored(system, batch, method):
    """000's score_4mask: some places are hidden, and all have a score."""
    masked = batch.mask()
    masked[:, [0, 2, 3]] = False
    masked &= batch.tokens != VOCABULARY.end
    found = masked_token_scores(system, batch, method=method, masked=masked)
    expected = score_by_loop(system, method, "own", shown={2, 3})
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    only = masked_token_scores(system, batch, method=method, scored=masked)
    torch.testing.assert_close(only, expected * masked, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", MASKED_METHODS)
def test_the_score_does_not_depend_on_what_is_read_together(system, batch, words, method):
    whole = masked_token_scores(system, batch, method=method, words=words)
    little = masked_token_scores(system, batch, method=method, words=words, tokens_at_once=1)
    torch.testing.assert_close(little, whole, atol=1e-5, rtol=1e-5)
    order = torch.tensor([3, 0, 4, 2, 1])
    turned = masked_token_scores(system, batch.select(order), method=method, words=words[order])
    torch.testing.assert_close(turned, whole[order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("budget", [10, 25, 64])
def test_no_pass_reads_more_than_the_budget(system, batch, budget):
    """The longest text has 10 places; what is read is counted at the first layer."""
    read: list[Tensor] = []
    door = system.backbone.stack.blocks[0].feed_forward.register_forward_pre_hook(
        lambda _, given: read.append(given[0][..., 0])
    )
    try:
        masked_token_scores(system, batch, method="norm", tokens_at_once=budget)
    finally:
        door.remove()
    assert max(inputs.numel() for inputs in read) <= budget
    places = sum(len(s) - 2 + (s[-1] != 3) for s in SEQUENCES)
    assert sum(len(inputs) for inputs in read) == places
    # Copies of like length are read together, so that little is padding.
    real = sum(len(s) * (len(s) - 2 + (s[-1] != 3)) for s in SEQUENCES)
    assert sum(inputs.numel() for inputs in read) <= 1.3 * real


def test_only_chosen_places_are_scored_and_modes_stay(system, batch):
    scored = torch.zeros_like(batch.mask())
    scored[0, 2] = scored[2, 5] = True
    system.train()
    found = masked_token_scores(system, batch, method="norm", scored=scored)
    assert system.training and not found.requires_grad
    system.eval()
    whole = masked_token_scores(system, batch, method="norm")
    torch.testing.assert_close(found, whole * scored, atol=1e-5, rtol=1e-5)
    nothing = masked_token_scores(system, batch, method="raw", scored=torch.zeros_like(scored))
    assert nothing.shape == batch.tokens.shape and not nothing.any()


@pytest.mark.parametrize("zoo", [hmm, xlnet, mpnet, electra], ids=lambda zoo: zoo.__name__[10:])
def test_norm_needs_no_more_than_fill(zoo, batch):
    other = spread_out(zoo.build(zoo.SIZES["tiny"], VOCABULARY))
    found = masked_token_scores(other, batch, method="norm")
    for row, sequence in enumerate(SEQUENCES):
        alone = Batch.collate([sequence], VOCABULARY.pad)
        for place in range(1, len(sequence)):
            if sequence[place] == VOCABULARY.end:
                assert found[row, place] == 0
                continue
            masked = torch.zeros_like(alone.mask())
            masked[0, place] = True
            with torch.no_grad():
                log_probs = other.fill(alone, masked).log_probs
            assert found[row, place] == pytest.approx(
                float(log_probs[0, sequence[place]]), abs=1e-4
            )


def test_the_default_score_of_a_masked_model_is_norm(system, batch):
    with torch.no_grad():
        own = system.log_prob(batch)
    assert own.kind == masked_score_kind("norm") == "pseudo"
    norm = masked_token_scores(system, batch, method="norm")
    torch.testing.assert_close(own.per_token, norm[:, 1:])


def test_mistakes_are_told(system, batch):
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


def test_kinds():
    kinds = {method: masked_score_kind(method) for method in MASKED_METHODS}
    unnormalised = {method for method, kind in kinds.items() if kind == "unnormalised"}
    assert unnormalised == {"simple", "raw", "raw-k-mask"}
    assert set(kinds.values()) == {"unnormalised", "pseudo"}
