"""The Set Transformer against torch.nn's attention with the same weights, its symmetry and cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lmlab.core.attention_mask import FullMask
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.block import Block
from lmlab.models.masked_lm import MaskedLM
from lmlab.zoo import set_transformer

VOCABULARY = Vocabulary(size=23)
CONFIGS = {
    "two layers": {"width": 12, "layers": 2, "heads": 3, "points": 5},
    "one point": {"width": 8, "layers": 1, "heads": 2, "points": 1},
    "relu": {
        "width": 12,
        "layers": 3,
        "heads": 2,
        "points": 4,
        "activation": "relu",
        "ffn_width": 20,
    },
}


def build(**settings) -> MaskedLM:
    torch.manual_seed(0)
    given = {"length": 256, "dropout": 0.0, "attention_dropout": 0.0, **settings}
    system = set_transformer.build(set_transformer.Config(**given), VOCABULARY).eval()
    for name, parameter in system.backbone.named_parameters():
        norm = "norm" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.5)
    return system


def view_of(texts: list[list[int]]) -> View:
    lengths = torch.tensor([len(text) for text in texts])
    inputs = torch.zeros(len(texts), int(lengths.max()), dtype=torch.long)
    for row, text in enumerate(texts):
        inputs[row, : len(text)] = torch.tensor(text)
    return View(inputs=inputs, lengths=lengths, attention_mask=FullMask())


def multihead(block: Block, queries: Tensor, keys: Tensor, padding: Tensor | None) -> Tensor:
    """torch's own attention; its weights are stacked as ours are, queries, keys, values."""
    ours = block.mixer
    theirs = nn.MultiheadAttention(queries.shape[-1], ours.heads, batch_first=True)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv_projection.weight,
            "in_proj_bias": ours.qkv_projection.bias,
            "out_proj.weight": ours.output.weight,
            "out_proj.bias": ours.output.bias,
        }
    )
    return theirs(queries, keys, keys, key_padding_mask=padding, need_weights=False)[0]


def mab(
    block: Block, queries: Tensor, keys: Tensor, padding: Tensor | None, activation: str
) -> Tensor:
    """Lee et al. 2019, equations 6 and 7, written out."""
    first, second = block.mixer_connection.norm, block.feed_forward_connection.norm
    values = F.layer_norm(
        queries + multihead(block, queries, keys, padding),
        queries.shape[-1:],
        first.weight,
        first.bias,
    )
    units = getattr(F, activation)(F.linear(values, *parts(block.feed_forward.up_projection)))
    ffn_output = F.linear(units, *parts(block.feed_forward.down_projection))
    return F.layer_norm(values + ffn_output, queries.shape[-1:], second.weight, second.bias)


def parts(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    return linear.weight, linear.bias


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
@torch.no_grad()
def test_hidden_states_equal_torch_attention(settings: dict):
    system = build(**settings)
    view = view_of([[2, 7, 9, 22, 5, 6, 3], [2, 14, 8, 3], [2, 3]])
    padding = torch.arange(7) >= view.lengths[:, None]
    backbone, activation = system.backbone, settings.get("activation", "gelu")
    embedding = backbone.embedding
    inputs = embedding.tokens(view.inputs) + embedding.positions.table.weight[:7]
    values = embedding.norm(inputs)
    for block in backbone.stack.blocks:
        layer = block.mixer
        points = layer.points.expand(3, -1, -1)
        gathered = mab(layer.gather, points, values, padding, activation)
        values = mab(layer.spread, values, gathered, None, activation)
    result = system.hidden(view).values
    assert values[~padding].std() > 0.5
    torch.testing.assert_close(result[~padding], values[~padding], atol=1e-4, rtol=0)


@torch.no_grad()
def test_permutation_equivariant_without_positions():
    system = build(width=12, layers=2, heads=3, points=5, positions="none")
    text, order = torch.tensor([2, 7, 9, 22, 5, 6, 3]), torch.tensor([3, 0, 6, 2, 5, 1, 4])
    before = system.hidden(view_of([text.tolist()])).values[0]
    after = system.hidden(view_of([text[order].tolist()])).values[0]
    torch.testing.assert_close(after, before[order], atol=1e-5, rtol=0)


@torch.no_grad()
def test_word_order_matters_with_positions():
    system = build(width=12, layers=2, heads=3, points=5)
    before = system.hidden(view_of([[2, 7, 9, 3]])).values[0]
    after = system.hidden(view_of([[2, 9, 7, 3]])).values[0]
    assert (after[0] - before[0]).abs().max() > 1e-3


def test_flops_are_linear_in_length():
    """Each further word costs as many multiply-adds as the one before.

    Counted in a pass that records its attention, since the counter can't see fused kernels.
    """
    system = build(width=16, layers=2, heads=2, points=4).requires_grad_(False)

    def flops(time: int) -> int:
        with FlopCounterMode(display=False) as counter:
            system.backbone.capture_internals(view_of([[5] * time]))
        return counter.get_total_flops()

    first, second = np.diff([flops(time) for time in (64, 128, 192)])
    assert first == second
    # By hand, for a word in a layer: keys and values 2W², query W², output W², feed-forward 8W²,
    # and twice scores and sums over 4 points, 2 · 2 · 4 · W; two operations each.
    assert first == 64 * 2 * 2 * (12 * 16**2 + 16 * 16)


def test_rotary_positions_are_refused():
    with pytest.raises(UserError, match="with inducing points"):
        set_transformer.Config(positions="rotary")


def test_shared_layers_are_refused():
    with pytest.raises(UserError, match="shared_layers does not apply to the Set Transformer"):
        set_transformer.Config(shared_layers=True)


@torch.no_grad()
def test_disabled_layer_is_skipped_and_a_disabled_head_adds_nothing():
    view = view_of([[2, 7, 9, 22, 5, 6, 3]])
    whole = build(width=12, layers=2, heads=3, points=5)
    skipped = build(width=12, layers=2, heads=3, points=5, disabled_layers=(2,))
    skipped.load_state_dict(whole.state_dict())
    outputs = []
    with whole.backbone.stack.recorded_passes(outputs):
        whole.hidden(view)
    torch.testing.assert_close(skipped.hidden(view).values, outputs[0][1])
    silent = build(width=12, layers=2, heads=3, points=5, disabled_heads=("1.2",))
    silent.load_state_dict(whole.state_dict())
    first = whole.backbone.stack.blocks[0].mixer
    for block in (first.gather, first.spread):
        block.mixer.output.weight[:, 4:8] = 0  # the columns of the second of three heads
    torch.testing.assert_close(silent.hidden(view).values, whole.hidden(view).values)


def test_captured_attention_sums_to_one():
    system = build(width=12, layers=2, heads=3, points=5)
    captures = system.backbone.capture_internals(view_of([[2, 7, 9, 3]]))
    gathering, spreading = (
        captures[f"layer 2 {half} attention"] for half in ("gathering", "spreading")
    )
    assert gathering.axes == ("batch", "head", "slot", "source")
    assert gathering.values.shape == (1, 3, 5, 4)
    assert spreading.axes == ("batch", "head", "time", "slot")
    assert spreading.values.shape == (1, 3, 4, 5)
    for capture in (gathering, spreading):
        torch.testing.assert_close(capture.values.sum(-1), torch.ones(capture.values.shape[:-1]))
