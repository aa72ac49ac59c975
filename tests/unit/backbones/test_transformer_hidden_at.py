"""hidden_at: hidden states at selected positions equal those of a full forward pass."""

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


def make_mask(kind: str):
    if kind == "explicit":
        sampled = torch.rand(3, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
        return ExplicitMask(sampled | torch.eye(7, dtype=torch.bool))
    return FullMask() if kind == "full" else CausalMask()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["full", "causal", "explicit"])
@pytest.mark.parametrize("zoo", [bert, albert, gpt, mpnet, unilm], ids=lambda z: z.__name__[10:])
def test_hidden_at_equals_full_forward_at_selected_positions(zoo, kind):
    torch.manual_seed(0)
    backbone = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval().backbone
    tokens = torch.randint(5, 19, (3, 7))
    view = View(
        inputs=tokens,
        lengths=LENGTHS,
        attention_mask=make_mask(kind),
        segments=(tokens % 2) if zoo is bert else None,
    )
    positions = torch.tensor([[0, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0], [0] * 7]).bool()
    whole = backbone(view).values[positions]
    torch.testing.assert_close(backbone.hidden_at(view, positions), whole, atol=1e-5, rtol=1e-5)
    assert whole.std(0).max() > 0.01
    nowhere = torch.zeros_like(positions)
    assert backbone.hidden_at(view, nowhere).shape == (0, backbone.width)


@torch.no_grad()
@pytest.mark.parametrize("zoo", [bert, albert, unilm], ids=lambda z: z.__name__[10:])
@pytest.mark.parametrize("with_segments", [False, True])
def test_hidden_at_embeds_repeated_inputs_once(zoo, with_segments):
    """Each copy has another position masked: most of their inputs are the same."""
    torch.manual_seed(0)
    backbone = zoo.build(zoo.SIZES["tiny"], VOCABULARY).eval().backbone
    text = torch.randint(5, 19, (9,))
    positions = torch.eye(9, dtype=torch.bool)
    tokens = text.repeat(9, 1).masked_fill(positions, 4)
    segments = (torch.arange(9) // 5).repeat(9, 1) if with_segments else None
    view = View(
        inputs=tokens, lengths=torch.full((9,), 9), attention_mask=FullMask(), segments=segments
    )
    embedded: list[int] = []
    backbone.embedding.register_forward_pre_hook(
        lambda _, inputs: embedded.append(inputs[0].numel())
    )
    hidden = backbone.hidden_at(view, positions)
    torch.testing.assert_close(hidden, backbone(view).values[positions], atol=1e-5, rtol=1e-5)
    # Nine tokens and nine masks at nine positions; then all 81 inputs.
    assert embedded == [18, 81]


def test_hidden_at_samples_dropout_per_row_in_training():
    """In training rows share nothing, so each samples its own dropout mask."""
    torch.manual_seed(0)
    config = dataclasses.replace(bert.SIZES["tiny"], dropout=0.5)
    backbone = bert.build(config, VOCABULARY).train().backbone
    view = View(
        inputs=torch.randint(5, 19, (1, 6)).repeat(4, 1),
        lengths=torch.full((4,), 6),
        attention_mask=FullMask(),
    )
    positions = torch.zeros(4, 6, dtype=torch.bool)
    positions[:, 2] = True
    hidden = backbone.hidden_at(view, positions)
    assert torch.pdist(hidden).min() > 1e-3


def test_last_feed_forward_runs_on_selected_positions_only():
    backbone = bert.build(bert.SIZES["tiny"], VOCABULARY).eval().backbone
    counts: list[int] = []
    for block in backbone.stack.blocks:
        block.feed_forward.register_forward_pre_hook(
            lambda _, inputs: counts.append(inputs[0].shape[:2].numel())
        )
    view = View(
        inputs=torch.randint(5, 19, (2, 9)), lengths=torch.tensor([9, 9]), attention_mask=FullMask()
    )
    positions = torch.zeros(2, 9, dtype=torch.bool)
    positions[0, 3] = positions[1, 8] = True
    with torch.no_grad():
        backbone.hidden_at(view, positions)
    assert counts == [18, 2]
