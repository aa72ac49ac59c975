"""EaE against its formulas worked out in loops, and mentions by tags worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.entity_memory import ENTITY_LOG_PROBS, MENTION_SPANS, MENTION_TAGS
from lmlab.core.entity_mentions import (
    BEGIN,
    INSIDE,
    OUTSIDE,
    annotated_spans,
    bio_tags,
    spans_from_bio_tags,
)
from lmlab.core.errors import UserError
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.knowledge_base import Entity, KnowledgeBase
from lmlab.knowledge.memory_layers import EntityMemory, top_k_softmax
from lmlab.scoring.entity_linking import link_entities
from lmlab.zoo import eae

WIDTH, SIZE, ENTITY_COUNT = 4, 3, 5
VOCABULARY = Vocabulary(size=12)
KNOWLEDGE = KnowledgeBase(entities=tuple(Entity(name=f"e{n}") for n in range(ENTITY_COUNT)))


def make_memory(nearest: int = 100) -> EntityMemory:
    torch.manual_seed(3)
    entities = nn.Embedding(ENTITY_COUNT, SIZE)
    return EntityMemory(entities, WIDTH, norm=nn.LayerNorm(WIDTH), top_k=nearest)


def make_view(entity_ids: list[list[int]] | None) -> View:
    spans = None if entity_ids is None else annotated_spans(torch.tensor(entity_ids))
    inputs = torch.full((2, 5), 7)
    return View(inputs=inputs, lengths=torch.tensor([5, 4]), attention_mask=FullMask(), spans=spans)


ANNOTATED = [[-1, 2, 2, -1, 0], [-1, -1, 4, -1, -1]]
ANNOTATED_MENTIONS = [(0, 1, 2), (0, 4, 4), (1, 2, 2)]
"""Row, first and last position of each mention in ANNOTATED."""


def by_loops(memory: EntityMemory, values: np.ndarray, nearest: int) -> np.ndarray:
    """W_b Σ_j α_j e_j at each mention's start, α over the `nearest` entities, zero elsewhere."""
    entities = memory.entities.weight.detach().double().numpy()
    ask = memory.ask.weight.detach().double().numpy()
    tell = memory.tell.weight.detach().double().numpy()
    added = np.zeros_like(values)
    for row, first, last in ANNOTATED_MENTIONS:
        query = ask @ np.concatenate([values[row, first], values[row, last]])
        scores = [float(entity @ query) for entity in entities]
        best = sorted(range(len(scores)), key=lambda j: -scores[j])[:nearest]
        mass = sum(np.exp(scores[j]) for j in best)
        mixed = sum(np.exp(scores[j]) / mass * entities[j] for j in best)
        added[row, first] = tell @ mixed
    return added


@torch.no_grad()
@pytest.mark.parametrize(("training", "nearest"), [(True, 2), (False, 2), (False, 5), (False, 1)])
def test_entity_memory_equals_its_formula(training: bool, nearest: int):
    """All entities in training, in use the nearest; LayerNorm over what was added."""
    memory = make_memory(nearest).train(training)
    values = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    actual = memory(values, make_view(ANNOTATED))
    added = by_loops(memory, values.double().numpy(), ENTITY_COUNT if training else nearest)
    whole = values.double().numpy() + added
    centred = whole - whole.mean(-1, keepdims=True)
    expected = centred / np.sqrt((whole**2).mean(-1) - whole.mean(-1) ** 2 + 1e-5)[..., None]
    np.testing.assert_allclose(actual.values.double().numpy(), expected, atol=1e-5)
    assert actual.outputs[MENTION_SPANS].tolist() == [list(each) for each in ANNOTATED_MENTIONS]
    torch.testing.assert_close(actual.outputs[ENTITY_LOG_PROBS].exp().sum(-1), torch.ones(3))


@torch.no_grad()
def test_memory_changes_only_mention_starts():
    """With the norm left out, X² is zero off the starts (adding x there would double X¹)."""
    memory = make_memory().train()
    memory.norm = nn.Identity()
    values = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    added = memory(values, make_view(ANNOTATED)).values - values
    changed = {(row, position) for row, position in (added.abs().sum(-1) > 1e-7).nonzero().tolist()}
    assert changed == {(row, first) for row, first, _ in ANNOTATED_MENTIONS}


@torch.no_grad()
def test_top_k_of_all_entities_equals_full_softmax():
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(top_k_softmax(scores, 6), top_k_softmax(scores, None))
    two = top_k_softmax(scores, 2)
    assert ((two > 0).sum(-1) == 2).all()
    torch.testing.assert_close(two.sum(-1), torch.ones(4))


def test_every_entity_gets_a_gradient():
    memory = make_memory().train()
    values = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    memory(values, make_view(ANNOTATED)).values.pow(3).sum().backward()
    gradient = memory.entities.weight.grad
    assert gradient is not None and (gradient.abs().sum(-1) > 0).all()


def test_bio_tags_by_hand():
    """O B I B O I I   →  [1, 2], [3, 3], and, since nothing began it, [5, 6]."""
    tags = torch.tensor([[OUTSIDE, BEGIN, INSIDE, BEGIN, OUTSIDE, INSIDE, INSIDE]])
    spans = spans_from_bio_tags(tags)
    assert spans.rows.tolist() == [0, 0, 0]
    assert spans.first.tolist() == [1, 3, 5]
    assert spans.last.tolist() == [2, 3, 6]
    again = bio_tags(spans, 1, 7)
    assert again.tolist() == [[OUTSIDE, BEGIN, INSIDE, BEGIN, OUTSIDE, BEGIN, INSIDE]]


@torch.no_grad()
def test_mentions_detected_without_annotation_outside_padding():
    memory = make_memory().eval()
    memory.tagging.weight.zero_()
    memory.tagging.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))  # every position begins a mention
    result = memory(torch.randn(2, 5, WIDTH), make_view(None))
    positions = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)]
    assert result.outputs[MENTION_SPANS].tolist() == [
        [row, position, position] for row, position in positions
    ]
    assert result.spans is not None and len(result.spans) == 7


class Words:
    """A tokenizer of words w5 to w11 that are their own ids."""

    kind = "word"

    def encode(self, text: str) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        starts = [m.start() for m in re.finditer(r"\S+", text)]
        words = text.split()
        return self.encode(text), [(a, a + len(w)) for a, w in zip(starts, words, strict=True)]


@torch.no_grad()
@pytest.mark.parametrize("tag", [BEGIN, INSIDE])
def test_detected_mentions_exclude_special_tokens(tag: int):
    """Where every position is tagged, the start and end tokens stay outside: link and ask."""
    system = make_system().eval()
    tagging = system.backbone.memories[str(system.memory)].tagging
    tagging.weight.zero_()
    tagging.bias.copy_(torch.nn.functional.one_hot(torch.tensor(tag), 3))
    [linked] = link_entities(system, Words(), SimpleNamespace(end=True), ["w5 w6 w7"])
    spans = [(each.start, each.end) for each in linked.mentions]
    assert spans == ([(0, 2), (3, 5), (6, 8)] if tag == BEGIN else [(0, 8)])
    system.setup_tokenizer(Words())
    # The masked mention is the answer; evidence are the other mentions that are detected: one word.
    [[answer]] = system.ask(["w5 [MASK]"])
    assert len(answer.evidence) == (1 if tag == BEGIN else 0)


def make_system(**settings):
    torch.manual_seed(0)
    return eae.build(replace(eae.SIZES["tiny"], **settings), VOCABULARY, knowledge=KNOWLEDGE)


def annotated_batch() -> Batch:
    rows = [[2, 5, 6, 7, 8, 9, 3], [2, 9, 8, 7, 6, 3]]
    entities = [[-1, -1, 1, 1, -1, 3, -1], [-1, 0, 0, -1, 2, -1, -1]]
    return replace(Batch.collate(rows, pad=0), entities=torch.tensor(entities))


def test_mentions_are_masked_whole_by_the_mask_token():
    """One fifth of 4 mentions, 600 times over; other masked tokens may be kept or replaced."""
    objective, batch = make_system().objective, annotated_batch()
    spans, hidden, draws = annotated_spans(batch.entities), 0, 600
    for seed in range(draws):
        view = objective.view(batch, generator=torch.Generator().manual_seed(seed))
        chosen = view.targets != -100
        assert chosen.any(1).all(), "of every text something is hidden"
        for row, first, last in zip(spans.rows, spans.first, spans.last, strict=True):
            here = slice(int(first), int(last) + 1)
            assert len(set(chosen[row, here].tolist())) == 1
            if chosen[row, first]:
                hidden += 1
                assert (view.inputs[row, here] == VOCABULARY.mask).all()
    # 0.2 each, and once in a while one because nothing else was masked in its row.
    assert 0.2 < hidden / (4 * draws) < 0.33


def test_loss_parts_by_hand():
    """Each part from the outputs of the memories, in loops over positions and mentions."""
    system, batch = make_system(), annotated_batch()
    generator = torch.Generator().manual_seed(4)
    loss, _ = system.loss(batch, generator=generator)
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(4))
    actual = system.hidden(view).memory_outputs
    tags, expected = bio_tags(view.spans, *batch.tokens.shape), dict.fromkeys(loss.parts, 0.0)
    for row, length in enumerate(batch.lengths.tolist()):
        for position in range(length):
            tag = actual[1][MENTION_TAGS][row, position, tags[row, position]].detach()
            expected["mentions"] -= 0.15 * float(tag)
    for mention, entity in enumerate(view.spans.entities.tolist()):
        expected["linking"] -= float(actual[1][ENTITY_LOG_PROBS][mention, entity].detach())
        expected["prediction"] -= float(actual[2][ENTITY_LOG_PROBS][mention, entity].detach())
    expected["masked"] = float(-system.target_log_probs(view).log_probs.sum().detach())
    for name, part in loss.parts.items():
        assert part.total.item() == pytest.approx(expected[name], rel=1e-5), name
    assert loss.total.item() == pytest.approx(sum(expected.values()), rel=1e-5)
    assert loss.parts["linking"].count == 4 and loss.parts["mentions"].count == 13


def test_mention_without_entity_adds_no_linking_loss():
    system, batch = make_system(), annotated_batch()
    view = system.objective.view(batch, generator=torch.Generator().manual_seed(4))
    unknown = replace(view.spans, entities=torch.tensor([1, -1, 0, 2]))
    hidden = system.hidden(replace(view, spans=unknown))
    from lmlab.objectives.entity_masking import memory_losses

    parts = memory_losses(replace(view, spans=unknown), hidden.memory_outputs[1], linking="linking")
    assert parts["linking"].count == 3 and parts["mentions"].count == 13


def test_only_masked_loss_without_annotations():
    batch = replace(annotated_batch(), entities=None)
    loss, _ = make_system().loss(batch, generator=torch.Generator().manual_seed(0))
    assert set(loss.parts) == {"masked"}


def test_memory_layer_is_after_a_third_of_the_layers():
    assert eae.SIZES["base"].memory_layer == 4 and eae.SIZES["base"].layers == 12
    assert eae.SIZES["small"].memory_layer == 2 and eae.SIZES["small"].layers == 6
    with pytest.raises(UserError, match="memory_after must be below"):
        make_system(memory_after=2)
