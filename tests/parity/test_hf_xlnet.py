"""XLNet against transformers' XLNet with the same weights: orders, segments, padding, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lmlab.core.attention_mask import ExplicitMask, FullMask
from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.permutation_lm import sample_factorisation_order
from lmlab.zoo import xlnet

transformers = pytest.importorskip("transformers")

VOCABULARY = Vocabulary(size=41)
CONFIGS = {
    "small": {"width": 24, "layers": 2, "heads": 3},
    "deep": {"width": 16, "layers": 4, "heads": 2, "ffn_width": 40},
    "relu": {"width": 16, "layers": 1, "heads": 4, "activation": "relu"},
    "clamped": {"width": 16, "layers": 2, "heads": 2, "clamp_length": 3},
}
LENGTHS = torch.tensor([9, 6, 3])


def build_pair(settings: dict):
    """Our system with the weights of a random XLNet, with an unlimited memory."""
    config = xlnet.Config(memory=100, **settings)
    torch.manual_seed(0)
    theirs = transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(
            vocab_size=VOCABULARY.size,
            d_model=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            d_head=config.head_width or config.width // config.heads,
            d_inner=config.ffn_width or 4 * config.width,
            ff_activation=config.activation,
            clamp_len=config.clamp_length or -1,
            mem_len=None,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, std=0.4)
        if "layer_norm.weight" in name:
            parameter.data += 1
    ours = xlnet.build(config, VOCABULARY).eval()
    ours.load_state_dict(our_names(theirs.state_dict(), ours.state_dict()))
    return ours, theirs


def our_names(theirs: dict, ours: dict) -> dict:
    """XLNet's names by hand; its maps are (width, heads, head width), input first."""
    body = "backbone.stack.blocks"
    converted = {
        "backbone.embedding.tokens.weight": theirs["transformer.word_embedding.weight"],
        "backbone.start.weight": theirs["transformer.mask_emb"][0, 0],
        "emission.weight": theirs["lm_loss.weight"],
        "emission.bias": theirs["lm_loss.bias"],
    }
    simple = {
        "mixer.positions.content_bias": "rel_attn.r_w_bias",
        "mixer.positions.position_bias": "rel_attn.r_r_bias",
        "mixer.positions.segment_bias": "rel_attn.r_s_bias",
        "mixer.positions.segments": "rel_attn.seg_embed",
        "mixer_connection.norm.weight": "rel_attn.layer_norm.weight",
        "mixer_connection.norm.bias": "rel_attn.layer_norm.bias",
        "feed_forward_connection.norm.weight": "ff.layer_norm.weight",
        "feed_forward_connection.norm.bias": "ff.layer_norm.bias",
        "feed_forward.up_projection.weight": "ff.layer_1.weight",
        "feed_forward.up_projection.bias": "ff.layer_1.bias",
        "feed_forward.down_projection.weight": "ff.layer_2.weight",
        "feed_forward.down_projection.bias": "ff.layer_2.bias",
    }
    for name in ours:
        if not name.startswith(body):
            continue
        layer, _, rest = name.removeprefix(f"{body}.").partition(".")
        at = f"transformer.layer.{layer}"
        if rest == "mixer.qkv_projection.weight":
            maps = [theirs[f"{at}.rel_attn.{part}"].flatten(1).t() for part in "qkv"]
            converted[name] = torch.cat(maps)
        elif rest == "mixer.output.weight":
            converted[name] = theirs[f"{at}.rel_attn.o"].flatten(1)
        elif rest == "mixer.positions.project.weight":
            converted[name] = theirs[f"{at}.rel_attn.r"].flatten(1).t()
        else:
            converted[name] = theirs[f"{at}.{simple[rest]}"]
    return converted


def random_view(lengths: torch.Tensor, seed: int, segments: bool) -> View:
    """A view with random order and segments in which every second position is a target."""
    torch.manual_seed(seed)
    time = int(lengths.max())
    tokens = torch.randint(5, VOCABULARY.size, (len(lengths), time))
    batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(len(lengths)))
    order = sample_factorisation_order(batch)
    is_target = batch.mask() & (torch.arange(time) % 2 == 1)
    return View(
        inputs=tokens,
        lengths=lengths,
        attention_mask=ExplicitMask(order[:, None, :] <= order[:, :, None]),
        query_attention_mask=ExplicitMask(order[:, None, :] < order[:, :, None]),
        segments=torch.randint(0, 3, tokens.shape) if segments else None,
        targets=tokens.masked_fill(~is_target, NO_TARGET),
        order=order,
    )


def xlnet_inputs(view: View) -> dict:
    """The view as arguments of transformers: masked pairs, and the positions of queries."""
    rows, time = view.inputs.shape
    words = {
        "input_ids": view.inputs,
        "attention_mask": (torch.arange(time) < view.lengths[:, None]).float(),
        "token_type_ids": view.segments,
    }
    if view.query_attention_mask is not None:
        # Masked from a query; the content stream sees itself in any case.
        hidden = ~(view.order[:, None, :] < view.order[:, :, None])
        words["perm_mask"] = hidden.float()
        words["target_mapping"] = torch.eye(time).expand(rows, -1, -1)
    return words


def assert_same(actual: torch.Tensor, expected: torch.Tensor, positions: torch.Tensor) -> None:
    assert expected[positions].std() > 1
    assert expected[positions].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(actual[positions], expected[positions], atol=1e-4, rtol=0)


@pytest.mark.parametrize("segments", [True, False], ids=["segments", "no segments"])
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_query_stream_in_any_order_equals_xlnet(settings: dict, segments: bool):
    ours, theirs = build_pair(settings)
    view = random_view(LENGTHS, 1, segments)
    with torch.no_grad():
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(**xlnet_inputs(view)).logits
    assert_same(actual, expected, view.targets != NO_TARGET)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_content_stream_with_full_attention_equals_xlnet(settings: dict):
    ours, theirs = build_pair(settings)
    view = replace(
        random_view(LENGTHS, 2, True), attention_mask=FullMask(), query_attention_mask=None
    )
    with torch.no_grad():
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(**xlnet_inputs(view)).logits
    assert_same(actual, expected, torch.arange(9) < LENGTHS[:, None])


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_encode_tokens_equals_xlnet_last_hidden_states(settings: dict):
    """The input of a tagging or span head: the content stream with full attention."""
    ours, theirs = build_pair(settings)
    tokens = torch.randint(5, VOCABULARY.size, (3, 9))
    tokens[:, 0] = VOCABULARY.start
    batch = Batch(tokens=tokens, lengths=LENGTHS, rows=torch.arange(3))
    segments = torch.zeros_like(tokens)
    segments[:, 0] = 2
    # Two texts in the last row: tokens after the first one's end are the other segment.
    tokens[2, 4], segments[2, 5:] = VOCABULARY.end, 1
    with torch.no_grad():
        actual = ours.encode_tokens(batch)
        expected = theirs.transformer(
            tokens, attention_mask=batch.mask().float(), token_type_ids=segments
        ).last_hidden_state
    assert expected[batch.mask()].std(0).mean() > 0.1, "they hardly depend on the inputs"
    torch.testing.assert_close(actual[batch.mask()], expected[batch.mask()], atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_segments_with_memory_equal_xlnet(settings: dict):
    """Ours repeats the last token of a segment at the start of the next, and remembers up to it.

    So a segment of ours has one token more at its end than theirs, last in the order, which nothing
    of the segment sees.
    """
    ours, theirs = build_pair(settings)
    memory, mems = None, None
    following = random_view(torch.full((3,), 7), 3, True)
    for segment in range(3):
        view, following = following, random_view(torch.full((3,), 7), 4 + segment, True)
        with torch.no_grad():
            answer = theirs(**xlnet_inputs(view), mems=mems, use_mems=True)
            hidden = ours.hidden(with_next_token(view, following), memory)
        result = ours.emission.logits(hidden.values[:, :-1])
        assert_same(result, answer.logits, view.targets != NO_TARGET)
        memory, mems = hidden.state, answer.mems
        stored_memory = torch.stack([memory[f"layer.{n + 1}"] for n in range(len(mems))])
        # Theirs has the time first.
        torch.testing.assert_close(
            stored_memory, torch.stack(mems).transpose(1, 2), atol=1e-4, rtol=0
        )
        assert memory["positions"][0].tolist() == list(range(-7 * (segment + 1), 0))


def with_next_token(view: View, following: View) -> View:
    """The view and, behind it, the first token of the next one."""
    order = torch.cat([view.order, view.order.amax(1, keepdim=True) + 1], 1)
    assert view.targets is not None and view.segments is not None
    assert following.segments is not None
    no_target = torch.full_like(view.targets[:, :1], NO_TARGET)
    return replace(
        view,
        inputs=torch.cat([view.inputs, following.inputs[:, :1]], 1),
        lengths=view.lengths + 1,
        order=order,
        attention_mask=ExplicitMask(order[:, None, :] <= order[:, :, None]),
        query_attention_mask=ExplicitMask(order[:, None, :] < order[:, :, None]),
        segments=torch.cat([view.segments, following.segments[:, :1]], 1),
        targets=torch.cat([view.targets, no_target], 1),
    )


def test_stepping_equals_xlnet_with_a_trailing_query():
    """As transformers generates: a query at the next position, all tokens seen left to right."""
    ours, theirs = build_pair(CONFIGS["small"])
    tokens = torch.randint(5, VOCABULARY.size, (2, 8))
    tokens[:, 0] = VOCABULARY.start
    segments = torch.zeros_like(tokens)
    segments[:, 0] = 2
    later = torch.ones(8, 8).triu(0)
    with torch.no_grad():
        state = ours.start(2)
        for position in range(1, 8):
            here = slice(0, position + 1)
            answer = theirs(
                tokens[:, here],
                token_type_ids=segments[:, here],
                perm_mask=later[here, here].expand(2, -1, -1),
                target_mapping=torch.eye(position + 1)[-1:].expand(2, -1, -1),
            )
            result = ours.emission.logits(state.values)
            torch.testing.assert_close(result, answer.logits[:, 0], atol=1e-4, rtol=0)
            state = ours.advance(state, tokens[:, position])


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_spans_in_two_segments_equal_xlnet_with_token_types(settings: dict):
    """The training view of `--recipe spans`: <s> A </s> B </s>, with spans of 1 to 5 targets."""
    ours, theirs = build_pair(settings | {"max_span": 5, "two_segments": True})
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, VOCABULARY.size, (3, 14), generator=generator)
    tokens[:, 0], tokens[:, -1] = VOCABULARY.bos, VOCABULARY.end
    batch = Batch(tokens=tokens, lengths=torch.full((3,), 14), rows=torch.arange(3))
    view = ours.objective.view(batch, generator=generator)
    assert {0, 1, 2} <= set(view.segments.flatten().tolist())
    with torch.no_grad():
        actual = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(**xlnet_inputs(view)).logits
        without = theirs(**xlnet_inputs(view) | {"token_type_ids": None}).logits
    targets = view.targets != NO_TARGET
    assert_same(actual, expected, targets)
    assert (without - expected)[targets].abs().max() > 0.1
