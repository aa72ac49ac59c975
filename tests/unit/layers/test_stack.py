"""Stacks of blocks with different mixers: steps, ablation, captures, recorded passes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import CausalMask, FullMask
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.block import Block, NoResidual, PreNorm
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.recurrent_cells import GRUCell
from lmlab.layers.sequence_mixer import LayerContext, SequenceMixer
from lmlab.layers.stack import Stack

ROWS, TIME, WIDTH, HEADS = 2, 5, 8, 2


def block(mixer: SequenceMixer) -> Block:
    norms = [PreNorm(nn.LayerNorm(WIDTH)) for _ in range(2)]
    return Block(mixer, norms[0], FeedForward(WIDTH, 16), norms[1])


def mixed_stack(**words: object) -> Stack:
    torch.manual_seed(0)
    mixers = [MultiHeadAttention(WIDTH, HEADS), GRUCell(WIDTH, WIDTH)]
    blocks = [block(mixer) for mixer in mixers]
    return Stack(blocks, norm=nn.LayerNorm(WIDTH), **words).requires_grad_(False)  # type: ignore[arg-type]


def values() -> Tensor:
    return torch.randn(ROWS, TIME, WIDTH, generator=torch.Generator().manual_seed(1))


def causal() -> LayerContext:
    positions = torch.arange(TIME)[None]
    return LayerContext(causal=True, query_positions=positions, key_positions=positions)


def by_hand(stack: Stack, inputs: Tensor, layers: list[int]) -> list[Tensor]:
    """The input and each layer's output, x + mixer(norm x), then x + ff(norm x), by torch.nn."""
    hidden = [inputs]
    mask = torch.ones(TIME, TIME).triu(1).bool()
    for layer in layers:
        part, x = stack.block(layer), hidden[-1]
        normed = part.mixer_connection.norm(x)
        if isinstance(part.mixer, GRUCell):
            mixed = part.mixer.fused(normed)[0]
        else:
            theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            theirs.in_proj_weight.copy_(part.mixer.qkv_projection.weight)
            theirs.in_proj_bias.copy_(part.mixer.qkv_projection.bias)
            theirs.out_proj.load_state_dict(part.mixer.output.state_dict())
            mixed = theirs(normed, normed, normed, attn_mask=mask)[0]
        x = x + mixed
        hidden.append(x + part.feed_forward(part.feed_forward_connection.norm(x)))
    return hidden


@torch.no_grad()
def test_attention_and_recurrence_in_turns_equal_torch() -> None:
    stack, recording = mixed_stack(), []
    with stack.recorded_passes(recording):
        output = stack(values(), causal())
    expected = by_hand(stack, values(), [1, 2])
    torch.testing.assert_close(output, stack.norm(expected[-1]), atol=1e-5, rtol=0)
    assert len(recording) == 1
    for ours, theirs in zip(recording[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@torch.no_grad()
def test_blocks_repeated_share_their_weights() -> None:
    stack = mixed_stack(times=2)
    assert stack.depth == 4 and stack.block(3) is stack.block(1)
    expected = by_hand(stack, values(), [1, 2, 1, 2])[-1]
    output = stack(values(), causal())
    torch.testing.assert_close(output, stack.norm(expected), atol=1e-5, rtol=0)


@torch.no_grad()
def test_disabled_layer_of_either_kind_is_skipped_and_restored() -> None:
    stack = mixed_stack()
    whole = stack(values(), causal())
    for layer, other in ((1, 2), (2, 1)):
        with stack.disabled(layers=[layer]):
            skipped = stack(values(), causal())
            states = stack.initial_states(ROWS)
        assert len(states) == 1
        expected = stack.norm(by_hand(stack, values(), [other])[-1])
        torch.testing.assert_close(skipped, expected, atol=1e-5, rtol=0)
    assert torch.equal(stack(values(), causal()), whole)


@torch.no_grad()
def test_steps_equal_the_whole_and_forks_stay_apart() -> None:
    stack = mixed_stack()
    whole, states = stack(values(), causal()), stack.initial_states(ROWS)
    for time in range(TIME):
        context = LayerContext(
            query_positions=torch.tensor([[time]]), key_positions=torch.arange(time + 1)[None]
        )
        output, after = stack.step(values()[:, time : time + 1], context, states)
        torch.testing.assert_close(output[:, 0], whole[:, time], atol=1e-5, rtol=0)
        rows = torch.tensor([1, 0])
        swapped = [state.select(rows) for state in states]
        crossed, _ = stack.step(values()[rows, time : time + 1], context, swapped)
        torch.testing.assert_close(crossed[rows], output, atol=1e-6, rtol=0)
        states = after


@torch.no_grad()
def test_captures_name_the_layer_and_its_kind() -> None:
    stack, record = mixed_stack(), {}
    output = stack(values(), causal().with_captures(record))
    assert list(record) == [
        "layer 1 attention",
        "layer 1 attention output",
        "layer 1 feed-forward output",
        "layer 1 hidden",
        "layer 2 reset gate",
        "layer 2 update gate",
        "layer 2 recurrence output",
        "layer 2 feed-forward output",
        "layer 2 hidden",
    ]
    torch.testing.assert_close(stack.norm(record["layer 2 hidden"].values), output)


@torch.no_grad()
def test_a_layer_without_residual_connection_adds_nothing_to_capture() -> None:
    cell = GRUCell(WIDTH, WIDTH)
    record: dict = {}
    Stack([Block(cell, NoResidual())])(values(), causal().with_captures(record))
    assert list(record) == ["layer 1 reset gate", "layer 1 update gate", "layer 1 hidden"]
    torch.testing.assert_close(record["layer 1 hidden"].values, cell.fused(values())[0])


def test_a_stack_supports_the_masks_of_all_its_mixers() -> None:
    assert mixed_stack().supported_masks == (CausalMask,)
    only_attention = Stack([block(MultiHeadAttention(WIDTH, HEADS))])
    assert {CausalMask, FullMask} <= set(only_attention.supported_masks)
