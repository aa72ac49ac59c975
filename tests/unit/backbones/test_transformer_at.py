"""Hidden states at some places alone are those of a pass that computes all of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import albert, bert, gpt, mpnet, unilm

VOCABULARY = Vocabulary(size=19)
LENGTHS = torch.tensor([7, 4, 2])


def seen(kind: str):
    if kind == "explicit":
        drawn = torch.rand(3, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
        return ExplicitMask(drawn | torch.eye(7, dtype=torch.bool))
    return FullMask() if kind == "full" else CausalMask()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["full", "causal", "explicit"])
@pytest.mark.parametrize("zoo", [bert, albert, gpt, mpnet, unilm], ids=lambda z: z.__name__[10:])
def test_some_places_alone(zoo, kind):
    torch.manual_seed(0)
    backbone = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval().backbone
    tokens = torch.randint(5, 19, (3, 7))
    view = View(
        inputs=tokens,
        lengths=LENGTHS,
        attention_mask=seen(kind),
        segments=(tokens % 2) if zoo is bert else None,
    )
    places = torch.tensor([[0, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0], [0] * 7]).bool()
    whole = backbone(view).values[places]
    torch.testing.assert_close(backbone.hidden_at(view, places), whole, atol=1e-5, rtol=1e-5)
    assert whole.std(0).max() > 0.01
    nowhere = torch.zeros_like(places)
    assert backbone.hidden_at(view, nowhere).shape == (0, backbone.width)


@torch.no_grad()
@pytest.mark.parametrize("zoo", [bert, albert, unilm], ids=lambda z: z.__name__[10:])
@pytest.mark.parametrize("told", [False, True])
def test_copies_of_one_text(zoo, told):
    """Each with another place hidden: most of their inputs are the same."""
    torch.manual_seed(0)
    backbone = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval().backbone
    text = torch.randint(5, 19, (9,))
    places = torch.eye(9, dtype=torch.bool)
    tokens = text.repeat(9, 1).masked_fill(places, 4)
    segments = (torch.arange(9) // 5).repeat(9, 1) if told else None
    view = View(
        inputs=tokens, lengths=torch.full((9,), 9), attention_mask=FullMask(), segments=segments
    )
    embedded: list[int] = []
    backbone.embedding.register_forward_pre_hook(lambda _, given: embedded.append(given[0].numel()))
    found = backbone.hidden_at(view, places)
    torch.testing.assert_close(found, backbone(view).values[places], atol=1e-5, rtol=1e-5)
    # Nine tokens and nine masks at as many places; then all of them.
    assert embedded == [18, 81]


def test_what_is_dropped_in_training_differs():
    """Copies share nothing then, so that each draws its own."""
    torch.manual_seed(0)
    config = dataclasses.replace(bert.SIZES["tiny"], dropout=0.5)
    backbone = bert.build(config, VOCABULARY).train().backbone
    view = View(
        inputs=torch.randint(5, 19, (1, 6)).repeat(4, 1),
        lengths=torch.full((4,), 6),
        attention_mask=FullMask(),
    )
    places = torch.zeros(4, 6, dtype=torch.bool)
    places[:, 2] = True
    found = backbone.hidden_at(view, places)
    assert torch.pdist(found).min() > 1e-3


def test_the_last_layer_is_fed_forward_for_them_alone():
    backbone = bert.build(bert.SIZES["tiny"], VOCABULARY).eval().backbone
    counts: list[int] = []
    for block in backbone.stack.blocks:
        block.feed_forward.register_forward_pre_hook(
            lambda _, given: counts.append(given[0].shape[:2].numel())
        )
    view = View(
        inputs=torch.randint(5, 19, (2, 9)), lengths=torch.tensor([9, 9]), attention_mask=FullMask()
    )
    places = torch.zeros(2, 9, dtype=torch.bool)
    places[0, 3] = places[1, 8] = True
    with torch.no_grad():
        backbone.hidden_at(view, places)
    assert counts == [18, 2]
