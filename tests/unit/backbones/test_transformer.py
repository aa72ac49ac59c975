"""Transformer options: KV cache, positions, sharing, disabled parts, captures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import sample_sequences
from lmlab.training.config import apply_settings
from lmlab.zoo import bert, glm, gpt

VOCABULARY = Vocabulary(size=20)
POSITIONS = ["learned", "sinusoidal", "concatenated", "buckets", "shaw", "alibi", "rotary", "none"]


def build(seed: int = 0, **settings):
    torch.manual_seed(seed)
    return gpt.build(replace(gpt.SIZES["tiny"], **settings), VOCABULARY).eval()


def tokens(rows: int = 2, time: int = 9) -> torch.Tensor:
    return torch.randint(5, 20, (rows, time), generator=torch.Generator().manual_seed(1))


def hidden(system, inputs: torch.Tensor, attention_mask=None) -> torch.Tensor:
    lengths = torch.full((len(inputs),), inputs.shape[1])
    view = View(inputs=inputs, lengths=lengths, attention_mask=attention_mask or CausalMask())
    with torch.no_grad():
        return system.hidden(view).values


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("cosine", [False, True], ids=["dot-product", "cosine"])
def test_kv_cache_equals_full_forward_for_each_position_scheme(positions: str, cosine: bool):
    system = build(positions=positions, cosine_attention=cosine)
    batch = Batch.collate([[2, *row] for row in tokens().tolist()], pad=0)
    with torch.no_grad():
        at_once = system.log_prob(batch).per_token
        state = system.start(2)
        for position in range(batch.tokens.shape[1] - 1):
            token = batch.tokens[:, position + 1]
            stepped = system.peek(state).log_prob(token)
            torch.testing.assert_close(stepped, at_once[:, position], atol=1e-5, rtol=0)
            state = system.advance(state, token)


@pytest.mark.parametrize("positions", [name for name in POSITIONS if name != "none"])
def test_every_position_scheme_is_order_sensitive(positions: str):
    """Swapping two earlier words changes the hidden state, except without positions."""
    for name, order_sensitive in ((positions, True), ("none", False)):
        system = build(positions=name)
        inputs = tokens(1)
        swapped = inputs.clone()
        swapped[0, [2, 4]] = inputs[0, [4, 2]]
        first, second = (
            hidden(system, inputs, FullMask())[0, -1],
            hidden(system, swapped, FullMask())[0, -1],
        )
        assert torch.allclose(first, second, atol=1e-5) != order_sensitive


def test_explicit_causal_mask_equals_causal_mask():
    system, inputs = build(), tokens()
    allowed = torch.ones(2, 9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(
        hidden(system, inputs, ExplicitMask(allowed)), hidden(system, inputs), atol=1e-5, rtol=0
    )


def test_kv_cache_with_several_new_positions_at_once():
    system, inputs = build(), tokens()
    whole = hidden(system, inputs)
    state = system.backbone.initial_state(2)
    parts = []
    with torch.no_grad():
        for low, high in ((0, 4), (4, 5), (5, 9)):
            lengths = torch.full((2,), high - low)
            view = View(inputs=inputs[:, low:high], lengths=lengths, attention_mask=CausalMask())
            step = system.backbone(view, state)
            state = step.state
            parts.append(step.values)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


def test_shared_layers_are_one_block_and_counted_once():
    shared, unshared = build(shared_layers=True, layers=3), build(layers=3)
    assert len(shared.backbone.stack.blocks) == 1
    block = sum(p.numel() for p in shared.backbone.stack.blocks.parameters())
    assert unshared.parameter_count - shared.parameter_count == 2 * block
    assert [layer for layer, _ in shared.backbone.stack.layers()] == [1, 2, 3]


def test_disabled_layer_is_skipped():
    system = build(layers=3)
    disabled = build(layers=3, disabled_layers=(2,))
    disabled.load_state_dict(system.state_dict())
    two_layers = build(layers=2)
    remaining = {
        name.replace("blocks.2.", "blocks.1."): value
        for name, value in system.state_dict().items()
        if "blocks.1." not in name
    }
    two_layers.load_state_dict(remaining)
    torch.testing.assert_close(hidden(disabled, tokens()), hidden(two_layers, tokens()))


def test_disabled_head_is_given_as_layer_dot_head():
    system = build(disabled_heads=("2.1",))
    assert system.backbone.stack.disabled_heads == {(2, 1)}
    with pytest.raises(UserError, match=r"layer\.head"):
        build(disabled_heads=("7",))


def test_disabling_unknown_layers_or_heads_is_refused():
    """The tiny size has two layers of two heads."""
    for settings, message in (
        ({"disabled_layers": (3,)}, "layer must be from 1 to 2, got 3"),
        ({"disabled_heads": ("3.1",)}, "layer must be from 1 to 2, got 3"),
        ({"disabled_heads": ("1.0",)}, "head must be from 1 to 2, got 0"),
    ):
        with pytest.raises(UserError, match=message):
            build(**settings)


def test_position_dimensions_must_match_the_objective():
    with pytest.raises(UserError, match="one-dimensional"):
        build(positions="pairs")
    with pytest.raises(UserError, match="must be pairs"):
        replace(glm.SIZES["tiny"], positions="rotary")


def test_factorised_embeddings_are_projected_to_the_width():
    system = build(embedding_width=6)
    assert system.backbone.embedding.tokens.weight.shape == (20, 6)
    assert hidden(system, tokens()).shape == (2, 9, 16)
    assert system.emission.weight is system.backbone.embedding.tokens.weight


def test_width_not_divisible_by_heads_is_refused():
    with pytest.raises(UserError, match=r"heads \(3\)"):
        apply_settings(gpt.SIZES["tiny"], {"heads": "3"})


def test_captures_include_attention_and_sublayer_outputs():
    system = build()
    batch = Batch.collate([[2, 7, 8, 3]], pad=0)
    captures = system.capture_internals(batch)
    for layer in (1, 2):
        weights = captures[f"layer {layer} attention"]
        assert weights.axes == ("batch", "head", "time", "source")
        torch.testing.assert_close(weights.values.sum(-1), torch.ones(1, 2, 3))
        for what in ("attention output", "feed-forward output", "hidden"):
            assert captures[f"layer {layer} {what}"].values.shape == (1, 3, 16)
    last = captures["layer 2 hidden"].values
    final = system.backbone.stack.norm(last)
    torch.testing.assert_close(final, hidden(system, batch.tokens[:, :-1]))


def test_segment_embeddings_change_the_encoding():
    torch.manual_seed(0)
    system = bert.build(bert.SIZES["tiny"], VOCABULARY).eval()
    assert system.backbone.embedding.segments is not None
    batch = Batch.collate([[2, 7, 3, 8, 3]], pad=0)
    with torch.no_grad():
        with_segments = system.encode_tokens(batch)
        view = system.objective.fill_view(batch, torch.zeros_like(batch.tokens, dtype=torch.bool))
        without_segments = system.hidden(replace(view, segments=None)).values
    assert not torch.allclose(with_segments, without_segments)


def test_generation_stops_at_the_maximum_length():
    system = build(length=8)
    samples = sample_sequences(
        system, 4, max_length=100, generator=torch.Generator().manual_seed(0)
    )
    assert max(len(sample.tokens) for sample in samples) <= 8
    [[best]] = beam_search(system, BeamConfig(width=2, max_length=100), prefix=[7, 8])
    assert len(best.tokens) <= 8
    with pytest.raises(UserError, match="prefix has 9"):
        sample_sequences(system, 1, max_length=5, prefix=[7] * 9)
    with pytest.raises(UserError, match="at most 8 positions"):
        hidden(system, tokens(1, 9))
