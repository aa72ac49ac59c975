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
    """Our system with the weights of a random XLNet, which remembers all that it has read."""
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
    found = {
        "backbone.embedding.tokens.weight": theirs["transformer.word_embedding.weight"],
        "backbone.start.weight": theirs["transformer.mask_emb"][0, 0],
        "emission.weight": theirs["lm_loss.weight"],
        "emission.bias": theirs["lm_loss.bias"],
    }
    simple = {
        "attention.positions.content_bias": "rel_attn.r_w_bias",
        "attention.positions.position_bias": "rel_attn.r_r_bias",
        "attention.positions.segment_bias": "rel_attn.r_s_bias",
        "attention.positions.segments": "rel_attn.seg_embed",
        "self_attention_residual.norm.weight": "rel_attn.layer_norm.weight",
        "self_attention_residual.norm.bias": "rel_attn.layer_norm.bias",
        "feed_forward_residual.norm.weight": "ff.layer_norm.weight",
        "feed_forward_residual.norm.bias": "ff.layer_norm.bias",
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
        if rest == "attention.qkv_projection.weight":
            maps = [theirs[f"{at}.rel_attn.{part}"].flatten(1).t() for part in "qkv"]
            found[name] = torch.cat(maps)
        elif rest == "attention.output.weight":
            found[name] = theirs[f"{at}.rel_attn.o"].flatten(1)
        elif rest == "attention.positions.project.weight":
            found[name] = theirs[f"{at}.rel_attn.r"].flatten(1).t()
        else:
            found[name] = theirs[f"{at}.{simple[rest]}"]
    return found


def draw(lengths: torch.Tensor, seed: int, segments: bool) -> View:
    """A view with a random order in which every second place is asked, and random segments."""
    torch.manual_seed(seed)
    time = int(lengths.max())
    tokens = torch.randint(5, VOCABULARY.size, (len(lengths), time))
    batch = Batch(tokens=tokens, lengths=lengths, rows=torch.arange(len(lengths)))
    order = sample_factorisation_order(batch)
    asked = batch.mask() & (torch.arange(time) % 2 == 1)
    return View(
        inputs=tokens,
        lengths=lengths,
        attention_mask=ExplicitMask(order[:, None, :] <= order[:, :, None]),
        query_attention_mask=ExplicitMask(order[:, None, :] < order[:, :, None]),
        segments=torch.randint(0, 3, tokens.shape) if segments else None,
        targets=tokens.masked_fill(~asked, NO_TARGET),
        order=order,
    )


def their_words(view: View) -> dict:
    """The view in the words of transformers: what may NOT be seen, and where queries stand."""
    rows, time = view.inputs.shape
    words = {
        "input_ids": view.inputs,
        "attention_mask": (torch.arange(time) < view.lengths[:, None]).float(),
        "token_type_ids": view.segments,
    }
    if view.query_attention_mask is not None:
        # Hidden from a query; content sees itself besides, whatever is said here.
        hidden = ~(view.order[:, None, :] < view.order[:, :, None])
        words["perm_mask"] = hidden.float()
        words["target_mapping"] = torch.eye(time).expand(rows, -1, -1)
    return words


def assert_same(found: torch.Tensor, expected: torch.Tensor, places: torch.Tensor) -> None:
    assert expected[places].std() > 1
    assert expected[places].std(0).mean() > 0.02, "logits hardly depend on the inputs"
    torch.testing.assert_close(found[places], expected[places], atol=1e-4, rtol=0)


@pytest.mark.parametrize("segments", [True, False], ids=["segments", "no segments"])
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_queries_in_any_order_are_those_of_xlnet(settings: dict, segments: bool):
    ours, theirs = build_pair(settings)
    view = draw(LENGTHS, 1, segments)
    with torch.no_grad():
        found = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(**their_words(view)).logits
    assert_same(found, expected, view.targets != NO_TARGET)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_content_that_sees_everything_is_that_of_xlnet(settings: dict):
    ours, theirs = build_pair(settings)
    view = replace(draw(LENGTHS, 2, True), attention_mask=FullMask(), query_attention_mask=None)
    with torch.no_grad():
        found = ours.emission.logits(ours.hidden(view).values)
        expected = theirs(**their_words(view)).logits
    assert_same(found, expected, torch.arange(9) < LENGTHS[:, None])


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_tokens_are_encoded_as_the_last_hidden_states_of_xlnet(settings: dict):
    """What a head of tags or spans reads: content that sees the whole text."""
    ours, theirs = build_pair(settings)
    tokens = torch.randint(5, VOCABULARY.size, (3, 9))
    tokens[:, 0] = VOCABULARY.start
    batch = Batch(tokens=tokens, lengths=LENGTHS, rows=torch.arange(3))
    segments = torch.zeros_like(tokens)
    segments[:, 0] = 2
    # Two texts in the last row: what stands behind the first one's end is the other segment.
    tokens[2, 4], segments[2, 5:] = VOCABULARY.end, 1
    with torch.no_grad():
        found = ours.encode_tokens(batch)
        expected = theirs.transformer(
            tokens, attention_mask=batch.mask().float(), token_type_ids=segments
        ).last_hidden_state
    assert expected[batch.mask()].std(0).mean() > 0.1, "they hardly depend on the inputs"
    torch.testing.assert_close(found[batch.mask()], expected[batch.mask()], atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_three_stretches_with_memory_are_those_of_xlnet(settings: dict):
    """Ours repeats the last token of a stretch at the start of the next, and remembers up to it.

    So a stretch of ours has one token more at its end than theirs, last in the order, which nothing
    of the stretch sees.
    """
    ours, theirs = build_pair(settings)
    memory, mems = None, None
    following = draw(torch.full((3,), 7), 3, True)
    for stretch in range(3):
        view, following = following, draw(torch.full((3,), 7), 4 + stretch, True)
        with torch.no_grad():
            answer = theirs(**their_words(view), mems=mems, use_mems=True)
            hidden = ours.hidden(with_one_more(view, following), memory)
        found = ours.emission.logits(hidden.values[:, :-1])
        assert_same(found, answer.logits, view.targets != NO_TARGET)
        memory, mems = hidden.state, answer.mems
        kept = torch.stack([memory[f"layer.{n + 1}"] for n in range(len(mems))])
        # Theirs has the time first.
        torch.testing.assert_close(kept, torch.stack(mems).transpose(1, 2), atol=1e-4, rtol=0)
        assert memory["positions"][0].tolist() == list(range(-7 * (stretch + 1), 0))


def with_one_more(view: View, following: View) -> View:
    """The view and, behind it, the first token of the next one."""
    order = torch.cat([view.order, view.order.amax(1, keepdim=True) + 1], 1)
    assert view.targets is not None and view.segments is not None
    assert following.segments is not None
    unasked = torch.full_like(view.targets[:, :1], NO_TARGET)
    return replace(
        view,
        inputs=torch.cat([view.inputs, following.inputs[:, :1]], 1),
        lengths=view.lengths + 1,
        order=order,
        attention_mask=ExplicitMask(order[:, None, :] <= order[:, :, None]),
        query_attention_mask=ExplicitMask(order[:, None, :] < order[:, :, None]),
        segments=torch.cat([view.segments, following.segments[:, :1]], 1),
        targets=torch.cat([view.targets, unasked], 1),
    )


def test_stepping_is_xlnet_with_a_query_behind_what_was_read():
    """As transformers generates: a query one place behind, all tokens seen left to right."""
    ours, theirs = build_pair(CONFIGS["small"])
    tokens = torch.randint(5, VOCABULARY.size, (2, 8))
    tokens[:, 0] = VOCABULARY.start
    segments = torch.zeros_like(tokens)
    segments[:, 0] = 2
    later = torch.ones(8, 8).triu(0)
    with torch.no_grad():
        state = ours.start(2)
        for place in range(1, 8):
            here = slice(0, place + 1)
            answer = theirs(
                tokens[:, here],
                token_type_ids=segments[:, here],
                perm_mask=later[here, here].expand(2, -1, -1),
                target_mapping=torch.eye(place + 1)[-1:].expand(2, -1, -1),
            )
            found = ours.emission.logits(state.values)
            torch.testing.assert_close(found, answer.logits[:, 0], atol=1e-4, rtol=0)
            state = ours.advance(state, tokens[:, place])
