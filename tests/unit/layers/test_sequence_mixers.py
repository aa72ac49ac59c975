"""Laws of sequence mixers: steps equal the whole, states fork, masks hold as declared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lmlab.core.attention_mask import (
    AttentionMask,
    CausalMask,
    ExplicitMask,
    FullMask,
    NoContextMask,
)
from lmlab.core.state import State
from lmlab.layers.attention import CosineScores, MultiHeadAttention
from lmlab.layers.block import Block, NormedReLU, PostNorm
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.grouped_attention import GroupedQueryAttention
from lmlab.layers.inducing_points import InducingPointAttention
from lmlab.layers.min_gru import MinGRUCell
from lmlab.layers.recurrent_cells import RecurrentCell
from lmlab.layers.relative_positions import (
    NezhaPositions,
    RotaryEmbedding,
    ShawPositions,
    T5RelativeBias,
    TransformerXLPositions,
)
from lmlab.layers.sequence_mixer import (
    CausalMixer,
    LayerContext,
    SequenceMixer,
    attention_mask_tensor,
)
from lmlab.layers.star_attention import RelayAttention, RingAttention, StarAttention
from lmlab.zoo._recurrent import CELL_NAMES, build_cell

ROWS, TIME, WIDTH, HEADS = 3, 6, 8, 2
HEAD = WIDTH // HEADS


def attention(**words: nn.Module) -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS, **words)  # type: ignore[arg-type]


def grouped(key_value_heads: int, **words: nn.Module) -> GroupedQueryAttention:
    return GroupedQueryAttention(WIDTH, 4, key_value_heads=key_value_heads, **words)


def mab() -> Block:
    norms = [PostNorm(nn.LayerNorm(WIDTH)) for _ in range(2)]
    return Block(attention(), norms[0], FeedForward(WIDTH, 16), norms[1])


def star() -> StarAttention:
    connections = [NormedReLU(nn.LayerNorm(WIDTH)) for _ in range(2)]
    return StarAttention(
        RingAttention(attention()),
        connections[0],
        relay=RelayAttention(attention()),
        relay_connection=connections[1],
    )


MIXERS: dict[str, Callable[[], SequenceMixer]] = {
    "attention": attention,
    "cosine": lambda: attention(scores=CosineScores(HEAD)),
    "rotary": lambda: attention(positions=RotaryEmbedding(HEAD)),
    "shaw": lambda: attention(positions=ShawPositions(HEAD, clip_distance=2)),
    "nezha": lambda: attention(positions=NezhaPositions(HEAD)),
    "transformer-xl": lambda: attention(positions=TransformerXLPositions(WIDTH, HEADS, HEAD)),
    "grouped queries": lambda: grouped(2),
    "multi-query": lambda: grouped(1, positions=RotaryEmbedding(2)),
    "normed queries and keys": lambda: grouped(
        2, query_norm=nn.RMSNorm(2), key_norm=nn.RMSNorm(2), positions=ShawPositions(2)
    ),
    "star": star,
    "inducing points": lambda: InducingPointAttention(mab(), mab(), points=2, width=WIDTH),
    **{
        name: lambda name=name: build_cell(name, WIDTH, WIDTH)  # type: ignore[misc]
        for name in CELL_NAMES
    },
    "positive min-gru": lambda: MinGRUCell(WIDTH, WIDTH, candidate="positive"),
}


def made(name: str) -> SequenceMixer:
    torch.manual_seed(0)
    mixer = MIXERS[name]().double().eval()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer.requires_grad_(False)


def values_of(mixer: SequenceMixer) -> Tensor:
    """Random positions; a star has its inputs and the relay after them."""
    nodes = 2 * TIME + 1 if isinstance(mixer, StarAttention) else TIME
    return torch.randn(ROWS, nodes, WIDTH, generator=torch.Generator().manual_seed(1)).double()


def context_of(mask: AttentionMask, lengths: Tensor | None = None) -> LayerContext:
    """The context of a whole sequence under a mask."""
    full = torch.full((ROWS,), TIME) if lengths is None else lengths
    tensor, causal = attention_mask_tensor(mask, full, TIME)
    positions = torch.arange(TIME)[None]
    return LayerContext(
        mask=tensor, causal=causal, query_positions=positions, key_positions=positions
    )


def step_context(start: int, end: int) -> LayerContext:
    """The context of new positions start … end - 1, causal among themselves."""
    queries, keys = torch.arange(start, end), torch.arange(end)
    return LayerContext(
        mask=(keys[None, :] <= queries[:, None])[None, None],
        query_positions=queries[None].expand(ROWS, -1),
        key_positions=keys[None].expand(ROWS, -1),
    )


def in_parts(mixer: CausalMixer, values: Tensor, parts: list[int]) -> Tensor:
    """Outputs of the parts of a sequence, one after another."""
    state, outputs, start = mixer.initial_state(ROWS, values), [], 0
    for size in parts:
        context = step_context(start, start + size)
        output, state = mixer.step(values[:, start : start + size], context, state)
        assert isinstance(state, State)
        outputs.append(output)
        start += size
    return torch.cat(outputs, 1)


CAUSAL = [name for name in MIXERS if isinstance(made(name), CausalMixer)]


def test_all_but_the_bidirectional_ones_are_causal() -> None:
    assert set(MIXERS) - set(CAUSAL) == {"star", "inducing points"}
    for name in MIXERS:
        assert (CausalMask in made(name).supported_masks) == (name in CAUSAL)


@pytest.mark.parametrize("parts", [[1] * TIME, [2, 1, 3], [TIME]], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_equal_the_whole_sequence(name: str, parts: list[int]) -> None:
    mixer = made(name)
    assert isinstance(mixer, CausalMixer)
    values = values_of(mixer)
    whole = mixer(values, context_of(CausalMask()))
    torch.testing.assert_close(in_parts(mixer, values, parts), whole, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", CAUSAL)
def test_select_forks_and_leaves_the_old_state_as_it_was(name: str) -> None:
    mixer = made(name)
    assert isinstance(mixer, CausalMixer)
    values, rows = values_of(mixer), torch.tensor([2, 0, 0])
    _, state = mixer.step(values[:, :3], step_context(0, 3), mixer.initial_state(ROWS, values))
    forked = state.select(rows)
    new = torch.randn(ROWS, 1, WIDTH).double()
    branch, _ = mixer.step(new, step_context(3, 4), forked)
    whole = mixer(torch.cat([values[rows, :3], new, values[:, 4:]], 1), context_of(CausalMask()))
    torch.testing.assert_close(branch, whole[:, 3:4], atol=1e-9, rtol=0)
    old, _ = mixer.step(values[:, 3:4], step_context(3, 4), state.detach())
    expected = mixer(values, context_of(CausalMask()))[:, 3:4]
    torch.testing.assert_close(old, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", [n for n in CAUSAL if made(n).has_bounded_state])  # type: ignore[attr-defined]
def test_bounded_state_has_one_size(name: str) -> None:
    mixer = made(name)
    assert isinstance(mixer, CausalMixer)
    values = values_of(mixer)
    _, first = mixer.step(values, step_context(0, TIME), mixer.initial_state(ROWS, values))
    _, second = mixer.step(values, step_context(TIME, 2 * TIME), first)
    shapes = [{k: v.shape for k, v in state.tensors.items()} for state in (first, second)]  # type: ignore[attr-defined]
    assert shapes[0] == shapes[1]


def visible(mask: AttentionMask) -> Tensor:
    """(T, T) bool: which positions a position may depend on through other positions' values."""
    return mask.mask(torch.full((ROWS,), TIME), TIME)[0]


BLOCKS = ExplicitMask(
    torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool().expand(ROWS, -1, -1)
)
MASKS: list[AttentionMask] = [CausalMask(), FullMask(), NoContextMask(), BLOCKS]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: type(mask).__name__)
@pytest.mark.parametrize("name", MIXERS)
def test_declared_masks_hold_and_others_do_not(name: str, mask: AttentionMask) -> None:
    """Changing position j changes exactly the outputs that may see it.

    The output at j itself is left out: residual inputs of a star, and queries, are its own.
    """
    mixer = made(name)
    values, context, allowed = values_of(mixer), context_of(mask), visible(mask)
    if isinstance(mixer, (StarAttention, InducingPointAttention)) and not isinstance(
        mask, FullMask
    ):
        context = context_of(FullMask())  # they have no other; so it differs from this one
    if isinstance(mixer, StarAttention) and isinstance(mask, FullMask):
        # Words see their neighbours at once, and all others by the relay in the next layer.
        steps = torch.arange(TIME)
        allowed = torch.isin((steps[:, None] - steps) % TIME, torch.tensor([0, 1, TIME - 1]))
    before, agrees = mixer(values, context)[:, :TIME], True
    for j in range(TIME):
        changed = values.clone()
        changed[:, j] += 1.0
        moved = (mixer(changed, context)[:, :TIME] - before).abs().amax((0, 2)) > 1e-12
        others = torch.arange(TIME) != j
        agrees &= bool((moved == allowed[:, j])[others].all())
    assert agrees == isinstance(mask, mixer.supported_masks)


@pytest.mark.parametrize(
    "name", [name for name in MIXERS if FullMask in made(name).supported_masks]
)
def test_padding_is_not_seen(name: str) -> None:
    mixer = made(name)
    lengths = torch.tensor([TIME, 4, 2])
    values = values_of(mixer)
    changed = values.clone()
    for row, length in enumerate(lengths.tolist()):
        changed[row, length:TIME] = 7.0
    context = context_of(FullMask(), lengths)
    before, after = mixer(values, context), mixer(changed, context)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(after[row, :length], before[row, :length])


@pytest.mark.parametrize("name", MIXERS)
def test_captures_do_not_change_the_output(name: str) -> None:
    mixer = made(name)
    values, record = values_of(mixer), {}
    context = context_of(mixer.supported_masks[0]())
    expected = mixer(values, context)
    torch.testing.assert_close(mixer(values, context.with_captures(record)), expected)
    if isinstance(mixer, RecurrentCell):
        assert set(record) == set(mixer.gate_captions)
    else:
        assert record
    for capture in record.values():
        low, high = capture.range
        assert float(capture.values.min()) >= low and float(capture.values.max()) <= high


def silence(parts: list[MultiHeadAttention], head: int) -> None:
    """Zero the columns of the output map that read one head."""
    for part in parts:
        size = part.head_width
        part.output.weight[:, head * size : (head + 1) * size] = 0


@pytest.mark.parametrize("name", [name for name in MIXERS if made(name).heads])
def test_disabled_head_adds_nothing(name: str) -> None:
    mixer = made(name)
    values, context = values_of(mixer), context_of(mixer.supported_masks[0]())
    whole = mixer(values, context)
    disabled = mixer(values, context.for_layer("layer 1", frozenset({1})))
    assert (disabled - whole).abs().max() > 1e-3
    silence([m for m in mixer.modules() if isinstance(m, MultiHeadAttention)], 1)
    torch.testing.assert_close(mixer(values, context), disabled)


def test_query_stream_does_not_see_its_own_token() -> None:
    """Two streams: content attends as without queries, and a query to what its mask shows."""
    mixer = made("transformer-xl")
    content = values_of(mixer)
    queries = torch.randn(ROWS, TIME, WIDTH).double()
    causal = visible(CausalMask())
    strict = causal & ~torch.eye(TIME).bool()
    positions = torch.arange(TIME)[None]
    context = LayerContext(
        mask=torch.cat([causal, strict])[None, None],
        query_positions=positions.repeat(1, 2),
        key_positions=positions,
    )
    both = torch.cat([content, queries], 1)
    outputs = mixer(both, context, source=content)
    alone = mixer(content, context_of(CausalMask()))
    torch.testing.assert_close(outputs[:, :TIME], alone)
    changed = content.clone()
    changed[:, 3] += 1.0
    moved = (mixer(both, context, source=changed) - outputs)[:, TIME:].abs().amax((0, 2)) > 1e-12
    assert moved.tolist() == strict[:, 3].tolist()


def test_memory_before_a_segment_equals_the_whole_sequence() -> None:
    """Segment recurrence: keys and values of earlier positions before those of the segment."""
    mixer = made("transformer-xl")
    values = values_of(mixer)
    queries, keys = torch.arange(4, TIME)[None], torch.arange(TIME)[None]
    context = LayerContext(
        mask=(keys[:, None] <= queries[..., None])[None],
        query_positions=queries,
        key_positions=keys,
    )
    segment = mixer(values[:, 4:], context, source=values)
    torch.testing.assert_close(segment, mixer(values, context_of(CausalMask()))[:, 4:])


def test_position_bias_is_causal_step_by_step() -> None:
    """A bias shared by all layers (T5) belongs to the context."""
    torch.manual_seed(0)
    mixer, bias = made("attention"), T5RelativeBias(HEADS, buckets=8, max_distance=16).double()
    assert isinstance(mixer, MultiHeadAttention)
    values, context = values_of(mixer), context_of(CausalMask())
    whole = mixer(values, context.with_bias(bias(context.query_positions, context.key_positions)))
    state, outputs = mixer.initial_state(ROWS, values), []
    for time in range(TIME):
        here = step_context(time, time + 1)
        here = here.with_bias(bias(here.query_positions, here.key_positions))
        output, state = mixer.step(values[:, time : time + 1], here, state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 1), whole)
