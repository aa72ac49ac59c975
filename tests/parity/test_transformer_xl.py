"""Transformer-XL: equation 3 by loops, full attention by a memory, and XLNet in one direction."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.zoo import transformer_xl

VOCABULARY = Vocabulary(size=31)
PLAIN = transformer_xl.Config(
    width=12,
    layers=3,
    heads=2,
    length=100,
    memory=100,
    eval_memory_length=100,
    dropout=0.0,
    attention_dropout=0.0,
)


def build(seed: int = 0, **settings):
    """A system with weights large enough that every term counts."""
    torch.manual_seed(seed)
    system = transformer_xl.build(replace(PLAIN, **settings), VOCABULARY)
    with torch.no_grad():
        for name, parameter in system.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.4)
    return system.eval()


def random_tokens(rows: int, time: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, VOCABULARY.size, (rows, time), generator=generator)


def causal_view(tokens: Tensor) -> View:
    lengths = torch.full((len(tokens),), tokens.shape[1])
    return View(inputs=tokens, lengths=lengths, attention_mask=CausalMask())


# Equation 3 ---------------------------------------------------------------------------------------


def sinusoid(distance: int, width: int) -> np.ndarray:
    """R_d: all sines before all cosines, ω_i = 10000^(-2i/W)."""
    angles = [distance * 10000 ** (-2 * i / width) for i in range(width // 2)]
    return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def equation_3(past: np.ndarray, here: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """(H, T, past + T) attention of one layer, term by term; `past` is the first part of h̃.

    Rows of W_q, W_kE and W_kR belong to the heads one after another; so do u and v.
    """
    inputs = np.concatenate([past, here])
    heads, size = weights["u"].shape
    result = np.zeros((heads, len(here), len(inputs)))
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        w_q, w_ke, w_kr = (weights[name][own] for name in ("W_q", "W_kE", "W_kR"))
        u, v = weights["u"][head], weights["v"][head]
        for t, e_i in enumerate(here):
            i, scores = len(past) + t, []
            for j in range(i + 1):
                e_j, r = inputs[j], sinusoid(i - j, inputs.shape[1])
                a = e_i @ w_q.T @ w_ke @ e_j
                b = e_i @ w_q.T @ w_kr @ r
                c = u @ w_ke @ e_j
                d = v @ w_kr @ r
                scores.append(math.exp((a + b + c + d) / math.sqrt(size)))
            result[head, t, : i + 1] = np.array(scores) / sum(scores)
    return result


def weights_of(system) -> dict[str, np.ndarray]:
    attention = system.backbone.stack.blocks[0].mixer
    w_q, w_ke, _ = attention.qkv_projection.weight.detach().double().chunk(3)
    positions = attention.positions
    named = {
        "W_q": w_q,
        "W_kE": w_ke,
        "W_kR": positions.project.weight,
        "u": positions.content_bias,
        "v": positions.position_bias,
    }
    return {name: tensor.detach().double().numpy() for name, tensor in named.items()}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("past", [0, 4])
def test_attention_equals_equation_3_by_loops(past: int, training: bool):
    system = build(layers=1).train(training)
    backbone, tokens = system.backbone, random_tokens(1, past + 5)
    memory = backbone(causal_view(tokens[:, :past])).state if past else None
    record: dict = {}
    with torch.no_grad():
        backbone._encode(causal_view(tokens[:, past:]), memory, record)
        vectors = system.backbone.embedding.tokens(tokens)[0].double().numpy() * math.sqrt(12)
    expected = equation_3(vectors[:past], vectors[past:], weights_of(system))
    assert expected.shape == (2, 5, past + 5) and expected.std() > 0.1
    actual = record["layer 1 attention"].values[0].double().numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=0)


def test_all_four_attention_terms_matter():
    """So that the comparison above would fail if one of them were missing."""
    system, tokens = build(layers=1), random_tokens(1, 6)
    vectors = system.backbone.embedding.tokens(tokens)[0].detach().double().numpy()
    weights = weights_of(system)
    whole = equation_3(vectors[:0], vectors, weights)
    for name in ("W_q", "W_kE", "W_kR", "u", "v"):
        without = equation_3(vectors[:0], vectors, weights | {name: 0 * weights[name]})
        assert np.abs(without - whole).max() > 0.01, name


# The memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("sizes", [(5, 4, 8), (1, 1, 15), (16, 1)], ids=str)
def test_segments_with_full_memory_equal_full_attention(sizes, training: bool):
    system, tokens = build().train(training), random_tokens(3, 17)
    with torch.no_grad():
        whole = system.backbone(causal_view(tokens)).values
        state, outputs = None, []
        for part in tokens.split(list(sizes), 1):
            hidden = system.backbone(causal_view(part), state)
            state = hidden.state
            outputs.append(hidden.values)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, atol=1e-5, rtol=0)
    assert state["positions"].tolist() == [list(range(-17, 0))] * 3


def test_long_view_is_processed_segment_by_segment():
    tokens = random_tokens(2, 17)
    cut, whole = (build(length=length).train() for length in (5, 100))
    with torch.no_grad():
        result = cut.backbone(causal_view(tokens)).values
        torch.testing.assert_close(
            result, whole.backbone(causal_view(tokens)).values, atol=1e-5, rtol=0
        )


def loss_of(values: Tensor) -> Tensor:
    """Any function that a norm does not make constant."""
    direction = torch.randn(values.shape[-1], generator=torch.Generator().manual_seed(5))
    return (values @ direction).sum()


def embedded(system) -> list[Tensor]:
    """What the embedding gives from now on, as leaves with a gradient."""
    vectors: list[Tensor] = []
    system.backbone.embedding.tokens.weight.requires_grad_(False)
    system.backbone.embedding.register_forward_hook(
        lambda module, given, out: vectors.append(out.requires_grad_())
    )
    return vectors


def test_memory_gets_no_gradient():
    """∂ loss(second segment) / ∂ (embeddings of the first): none; at once, as one segment, some."""
    tokens, system = random_tokens(2, 9), build().train()
    vectors = embedded(system)
    first = system.backbone(causal_view(tokens[:, :5]))
    assert not any(each.requires_grad for each in first.state.tensors.values())
    loss = loss_of(system.backbone(causal_view(tokens[:, 5:]), first.state).values)
    memory, own = torch.autograd.grad(loss, vectors, allow_unused=True)
    assert memory is None and own.abs().max() > 0.1
    vectors.clear()
    loss = loss_of(system.backbone(causal_view(tokens)).values[:, 5:])
    [at_once] = torch.autograd.grad(loss, vectors)
    assert at_once[:, :5].abs().max() > 0.1


def test_projections_of_the_memory_get_gradients():
    """In one layer the memory is of embeddings, and they are held fixed: so all maps must have the
    gradient of full attention, of which the memory's part is not small."""
    tokens, system = random_tokens(2, 9), build(layers=1).train()
    embedded(system)
    parameters = list(system.backbone.stack.parameters())
    state = system.backbone(causal_view(tokens[:, :5])).state
    after, whole, alone = (
        torch.autograd.grad(loss_of(values), parameters)
        for values in (
            system.backbone(causal_view(tokens[:, 5:]), state).values,
            system.backbone(causal_view(tokens)).values[:, 5:],
            system.backbone(causal_view(tokens[:, 5:])).values,
        )
    )
    for one, expected in zip(after, whole, strict=True):
        torch.testing.assert_close(one, expected, atol=1e-4, rtol=1e-4)
    named = [name for name, _ in system.backbone.stack.named_parameters()]
    for name in ("project.weight", "positions.project.weight", "position_bias"):
        position = next(position for position, each in enumerate(named) if each.endswith(name))
        assert (after[position] - alone[position]).abs().max() > 0.1, name


def test_gradient_stops_between_segments_of_one_view():
    """One view of two segments has the gradients of two views, the second given the memory."""
    system, tokens = build(length=5).train(), random_tokens(2, 9)
    parameters = list(system.backbone.stack.parameters())
    at_once = torch.autograd.grad(
        loss_of(system.backbone(causal_view(tokens)).values[:, 5:]), parameters
    )
    with torch.no_grad():
        state = system.backbone(causal_view(tokens[:, :5])).state
    after = system.backbone(causal_view(tokens[:, 5:]), state).values
    expected = torch.autograd.grad(loss_of(after), parameters)
    assert max(each.abs().max() for each in expected) > 1
    for one, other in zip(at_once, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


# Token by token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0, 1, 3, 100])
def test_stepping_equals_one_pass_for_any_memory_length(memory: int):
    """Also where it is shorter than the text: each position attends to as many before it."""
    system, tokens = build(eval_memory_length=memory, length=4), random_tokens(2, 80)
    batch = Batch.collate([[VOCABULARY.start, *row] for row in tokens.tolist()], pad=0)
    with torch.no_grad():
        at_once = system.log_prob(batch).per_token
        state, stepped = system.start(2), []
        for token in tokens.unbind(1):
            stepped.append(system.peek(state).log_prob(token))
            state = system.advance(state, token)
    torch.testing.assert_close(torch.stack(stepped, 1), at_once, atol=1e-4, rtol=0)


@pytest.mark.parametrize("memory", [0, 2, 7])
def test_hidden_states_do_not_depend_on_segmentation(memory: int):
    tokens, scores = random_tokens(2, 30), []
    for sizes in ([30], [1] * 30, [7, 2, 21], [20, 10]):
        system = build(eval_memory_length=memory, length=6)
        state, outputs = None, []
        with torch.no_grad():
            for part in tokens.split(sizes, 1):
                hidden = system.backbone(causal_view(part), state)
                state = hidden.state
                outputs.append(hidden.values)
        assert state["positions"].shape == (2, memory)
        scores.append(torch.cat(outputs, 1))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], atol=1e-4, rtol=0)


# XLNet with one direction is Transformer-XL -------------------------------------------------------


def xlnet_twin(system, memory: int):
    """transformers' XLNet, content stream left to right, with the same weights and no segments."""
    transformers = pytest.importorskip("transformers")
    backbone, blocks = system.backbone, system.backbone.stack.blocks
    heads, size = blocks[0].mixer.positions.content_bias.shape
    width = backbone.width
    theirs = transformers.XLNetModel(
        transformers.XLNetConfig(
            vocab_size=VOCABULARY.size,
            d_model=width,
            n_layer=len(blocks),
            n_head=heads,
            d_inner=4 * width,
            ff_activation="relu",
            attn_type="uni",
            mem_len=memory,
            layer_norm_eps=1e-5,
        )
    ).eval()
    with torch.no_grad():
        vectors = backbone.embedding.tokens.weight * math.sqrt(width)
        theirs.word_embedding.weight.copy_(vectors)
        for theirs_layer, block in zip(theirs.layer, blocks, strict=True):
            copy_layer(theirs_layer, block, (width, heads, size))
    return theirs


def copy_layer(theirs, block, shape: tuple[int, int, int]) -> None:
    """XLNet's maps are (width, heads, head width), input first."""
    attention, relative = block.mixer, theirs.rel_attn
    maps = zip("qkv", attention.qkv_projection.weight.chunk(3), strict=True)
    for name, weight in [*maps, ("r", attention.positions.project.weight)]:
        getattr(relative, name).copy_(weight.t().reshape(shape))
    relative.o.copy_(attention.output.weight.view(shape))
    relative.r_w_bias.copy_(attention.positions.content_bias)
    relative.r_r_bias.copy_(attention.positions.position_bias)
    relative.layer_norm.load_state_dict(block.mixer_connection.norm.state_dict())
    theirs.ff.layer_norm.load_state_dict(block.feed_forward_connection.norm.state_dict())
    theirs.ff.layer_1.load_state_dict(block.feed_forward.up_projection.state_dict())
    theirs.ff.layer_2.load_state_dict(block.feed_forward.down_projection.state_dict())


@pytest.mark.parametrize("clamp_length", [0, 3])
def test_segments_with_short_memory_equal_xlnet(clamp_length: int):
    system = build(memory=6, clamp_length=clamp_length, untied_position_biases=True).train()
    theirs = xlnet_twin(system, memory=6)
    theirs.clamp_len = clamp_length or -1
    state, mems = None, None
    with torch.no_grad():
        for part in random_tokens(2, 19).split([4, 5, 3, 7], 1):
            hidden = system.backbone(causal_view(part), state)
            answer = theirs(part, mems=mems, use_mems=True)
            torch.testing.assert_close(hidden.values, answer.last_hidden_state, atol=1e-4, rtol=0)
            state, mems = hidden.state, answer.mems
            stored_memory = torch.stack([state[f"layer.{layer + 1}"] for layer in range(3)])
            # Theirs has the time first.
            torch.testing.assert_close(stored_memory, torch.stack(mems).transpose(1, 2)[:3])


def test_evaluation_attention_span_equals_xlnet_same_length():
    """Theirs attends back as far as its memory is long, so it starts when that is full:
    a first segment of that length sees no further back than that anyway."""
    system = build(eval_memory_length=6)
    theirs = xlnet_twin(system, memory=6)
    tokens = random_tokens(2, 17)
    with torch.no_grad():
        result = system.backbone(causal_view(tokens)).values
        first = theirs(tokens[:, :6], use_mems=True)
        outputs, mems = [first.last_hidden_state], first.mems
        theirs.same_length = True
        for part in tokens[:, 6:].split([5, 6], 1):
            answer = theirs(part, mems=mems, use_mems=True)
            outputs.append(answer.last_hidden_state)
            mems = answer.mems
    torch.testing.assert_close(result, torch.cat(outputs, 1), atol=1e-4, rtol=0)
