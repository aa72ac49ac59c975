"""ELMo: each direction equals its language model, and neither sees what it may not."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import nn

from lmlab.core.batch import Batch
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.elmo import ELMo, ScalarMix
from lmlab.models.finetuned import add_task_head
from lmlab.objectives.bidirectional_lm import reverse_sequences
from lmlab.tasks.classification import Classification
from lmlab.tasks.tagging import Tagging
from lmlab.training.system_building import build_system

VOCABULARY = Vocabulary(size=9)
START, END, WIDTH = 2, 3, 5
TEXTS = [[5, 6, 7, 8, 6], [8], [7, 7, 5]]
ROWS = [[START, *text, END] for text in TEXTS]
BACKWARDS = [[START, *text[::-1], END] for text in TEXTS]


def batch_of(rows: list[list[int]]) -> Batch:
    return Batch.collate(rows, pad=0)


def build(**settings) -> ELMo:
    words = {"width": WIDTH, "dropout": 0.0, "tied": False, **settings}
    system = build_system("elmo", words, VOCABULARY, seed=1).eval()
    assert isinstance(system, ELMo)
    with torch.no_grad():  # larger weights, under which contexts matter
        for parameter in system.parameters():
            parameter.mul_(3)
        system.mix.load_state_dict(
            {k: torch.ones_like(v) for k, v in system.mix.state_dict().items()}
        )
    return system


def lstm_of_direction(system: ELMo, cells: nn.Module):
    """Our `lstm` with the words and the softmax of ELMo, and the cells of one direction."""
    config = {"width": WIDTH, "dropout": 0.0, "layers": 2}
    model = build_system("lstm", config, VOCABULARY, seed=2).eval()
    model.backbone.embedding.load_state_dict(system.backbone.embedding.state_dict())
    model.backbone.stack.blocks.load_state_dict(cells.state_dict())
    model.emission.load_state_dict(system.emission.state_dict())
    return model


@torch.no_grad()
def test_each_direction_equals_its_language_model():
    system = build()
    forwards = lstm_of_direction(system, system.backbone.stack.blocks)
    result = system.log_prob(batch_of(ROWS))
    assert result.kind == "exact"
    # An lstm sums its logits up in blocks: the same numbers, but for the order of their sums.
    nearly = partial(torch.testing.assert_close, rtol=0, atol=1e-6)
    nearly(result.per_token, forwards.log_prob(batch_of(ROWS)).per_token)
    backwards = lstm_of_direction(system, system.objective.backward.stack.blocks)
    reversed_log_probs = system.objective.backward_log_prob(system, batch_of(ROWS)).per_token
    nearly(reversed_log_probs, backwards.log_prob(batch_of(BACKWARDS)).per_token)
    assert not torch.allclose(reversed_log_probs, result.per_token)


@torch.no_grad()
def test_loss_sums_both_directions():
    system = build()
    loss, _ = system.loss(batch_of(ROWS))
    forward = -system.log_prob(batch_of(ROWS)).totals.sum()
    backward = -system.objective.backward_log_prob(system, batch_of(ROWS)).totals.sum()
    assert loss.total.item() == pytest.approx((forward + backward).item(), rel=1e-6)
    assert loss.count.item() == 2 * sum(len(row) - 1 for row in ROWS)
    assert loss.parts["backward"].total.item() == pytest.approx(backward.item(), rel=1e-6)


@torch.no_grad()
def test_backward_probabilities_sum_to_one():
    """Complete texts of up to four tokens and unfinished ones of four: reversing is one to one."""
    system = build()
    inner = [1, 5, 6, 7, 8]
    whole = [[START, *b, END] for n in range(4) for b in itertools.product(inner, repeat=n)]
    cut = [[START, *body] for body in itertools.product(inner, repeat=4)]
    mass = sum(
        system.objective.backward_log_prob(system, batch_of(rows)).totals.double().exp().sum()
        for rows in (whole, cut)
    )
    assert float(mass) == pytest.approx(1.0, abs=1e-5)


@torch.no_grad()
def test_layers_equal_torch_lstms():
    """The forward half runs over s_0 … s_t, the backward half over </s> as start, s_n … s_t."""
    system, (row,) = build(), [ROWS[0]]
    expected = {}
    for name, backbone in (("forward", system.backbone), ("backward", system.objective.backward)):
        reference = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        state = {}
        for layer, cell in enumerate(backbone.stack.blocks):
            for key, value in cell.state_dict().items():
                state[key.rpartition(".")[2].replace("l0", f"l{layer}")] = value
        reference.load_state_dict(state)
        tokens = torch.tensor([row if name == "forward" else BACKWARDS[0]])
        expected[name] = reference(system.backbone.embedding(tokens))[0][0]
    top = system.encode_layers(batch_of(ROWS))[-1][0]
    torch.testing.assert_close(top[: len(row), :WIDTH], expected["forward"])
    # Position t of n + 2 is position n + 1 - t of the backward model: the order is reversed.
    torch.testing.assert_close(top[: len(row), WIDTH:], expected["backward"].flip(0))


@torch.no_grad()
def test_each_direction_sees_only_its_own_side():
    system = build()
    before = system.encode_layers(batch_of([ROWS[0]]))
    words = system.backbone.embedding(torch.tensor([ROWS[0]]))
    torch.testing.assert_close(before[0], torch.cat([words, words], -1))
    for position in range(1, len(ROWS[0]) - 1):
        changed = list(ROWS[0])
        changed[position] = 5 if changed[position] != 5 else 8
        after = system.encode_layers(batch_of([changed]))
        for old, new in zip(before[1:], after[1:], strict=True):
            moved = (old != new).view(-1, 2, WIDTH).any(-1)
            assert moved[:, 0].tolist() == [t >= position for t in range(len(changed))]
            assert moved[:, 1].tolist() == [t <= position for t in range(len(changed))]


@torch.no_grad()
def test_vectors_concatenate_word_and_scalar_mix():
    """γ Σ softmax(w)_j h_j with w = (0, log 2, log 5) and γ = 3: shares 1/8, 2/8, 5/8."""
    system = build()
    assert isinstance(system.mix, ScalarMix)
    system.mix.weights.copy_(torch.tensor([1.0, 2.0, 5.0]).log())
    system.mix.scale.fill_(3.0)
    batch = batch_of(ROWS)
    layers = system.encode_layers(batch)
    mixed = 3 * (layers[0] / 8 + layers[1] * 2 / 8 + layers[2] * 5 / 8)
    vectors = system.encode_tokens(batch)
    assert vectors.shape == (*batch.tokens.shape, 3 * WIDTH)
    torch.testing.assert_close(vectors[..., WIDTH:], mixed)
    torch.testing.assert_close(vectors[..., :WIDTH], layers[0][..., :WIDTH])
    alone = torch.cat([system.encode(batch_of([row])) for row in ROWS])
    torch.testing.assert_close(system.encode(batch), alone)
    torch.testing.assert_close(alone[1], vectors[1, :3].mean(0))
    # mix="last": the last layers concatenated to the word, without a mix.
    last = build(mix="last")
    torch.testing.assert_close(
        last.encode_tokens(batch)[..., WIDTH:], last.encode_layers(batch)[-1]
    )


def test_reversing_twice_restores_the_text():
    batch = batch_of([*ROWS, [START, 5, 6, 7], [START], [START, END]])
    reversed_log_probs = reverse_sequences(batch, END)
    assert reversed_log_probs.tokens[0, :7].tolist() == [START, 6, 8, 7, 6, 5, END]
    assert reversed_log_probs.tokens[3, :4].tolist() == [START, 7, 6, 5]
    assert torch.equal(reverse_sequences(reversed_log_probs, END).tokens, batch.tokens)


@pytest.mark.parametrize(
    "task", [Classification(("a", "b")), Tagging(("a", "b"))], ids=["classify", "tag"]
)
def test_task_trains_the_mix_on_frozen_layers(task):
    """While the language models train the mix rests; on frozen layers it is all that moves."""
    system = build()
    assert [name for name, p in system.named_parameters() if not p.requires_grad] == [
        "mix.weights",
        "mix.scale",
    ]
    whole = add_task_head(system, task, frozen=True)
    learnt = {name for name, p in whole.named_parameters() if p.requires_grad}
    assert {name for name in learnt if name.startswith("base.")} == {
        "base.mix.weights",
        "base.mix.scale",
    }
    scores = whole.scores(batch_of(ROWS))
    scores.square().sum().backward()
    assert system.mix.weights.grad is not None and system.mix.weights.grad.abs().sum() > 0
    assert system.mix.scale.grad is not None and system.mix.scale.grad != 0
