"""Hidden states at some places alone are those of a pass that computes all of them."""

from __future__ import annotations

import pytest
import torch

from lmlab.core.view import View
from lmlab.core.visibility import Causal, Explicit, Full
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import albert, bert, gpt, mpnet, unilm

VOCABULARY = Vocabulary(size=19)
LENGTHS = torch.tensor([7, 4, 2])


def seen(kind: str):
    if kind == "explicit":
        drawn = torch.rand(3, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
        return Explicit(drawn | torch.eye(7, dtype=torch.bool))
    return Full() if kind == "full" else Causal()


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
        visibility=seen(kind),
        segments=(tokens % 2) if zoo is bert else None,
    )
    places = torch.tensor([[0, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0], [0] * 7]).bool()
    whole = backbone(view).values[places]
    torch.testing.assert_close(backbone.at(view, places), whole, atol=1e-5, rtol=1e-5)
    assert whole.std(0).max() > 0.01
    nowhere = torch.zeros_like(places)
    assert backbone.at(view, nowhere).shape == (0, backbone.width)


def test_the_last_layer_is_fed_forward_for_them_alone():
    backbone = bert.build(bert.SIZES["tiny"], VOCABULARY).eval().backbone
    counts: list[int] = []
    for block in backbone.stack.blocks:
        block.feed_forward.register_forward_pre_hook(
            lambda _, given: counts.append(given[0].shape[:2].numel())
        )
    view = View(
        inputs=torch.randint(5, 19, (2, 9)), lengths=torch.tensor([9, 9]), visibility=Full()
    )
    places = torch.zeros(2, 9, dtype=torch.bool)
    places[0, 3] = places[1, 8] = True
    with torch.no_grad():
        backbone.at(view, places)
    assert counts == [18, 2]
