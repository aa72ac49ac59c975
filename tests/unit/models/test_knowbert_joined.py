"""KnowBERT with two knowledge bases (KnowBert-W+W), each inserted after a layer of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.backbones.transformer import full_attention_context
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.vocabulary import Vocabulary
from lmlab.knowledge.joined_knowledge import join_knowledge, split_knowledge
from lmlab.knowledge.knowledge_base import Alias, Entity, Fact, KnowledgeBase
from lmlab.knowledge.load_knowledge import load_knowledge
from lmlab.models.knowbert import KnowBERT
from lmlab.objectives.entity_linking_loss import linking_loss
from lmlab.training.external_memory import ExternalMemory
from lmlab.training.system_building import build_system, build_tiny

TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b"]
VOCABULARY = Vocabulary(size=len(TOKENS))
SENSES = KnowledgeBase(
    entities=(Entity(name="A", description="a b"), Entity(name="A2"), Entity(name="B")),
    relations=("has", "is"),
    aliases=(Alias("a", 0, 3.0), Alias("a", 1, 1.0), Alias("b", 2, 1.0)),
    facts=(Fact(0, 1, 2),),
)
NAMES = KnowledgeBase(
    entities=(Entity(name="Q1"), Entity(name="Q2")),
    relations=("is", "in"),
    aliases=(Alias("a b", 1, 1.0), Alias("b", 0, 1.0), Alias("b", 1, 1.0)),
    facts=(Fact(1, 0, 0), Fact(0, 1, 1)),
)
JOINED = join_knowledge([SENSES, NAMES])
FIRST_OF_NAMES = 3
TINY = {"entity_width": 8, "heads": 2, "dropout": 0.0}


class StubTokenizer:
    kind = "word"

    def token(self, id: int) -> str:
        return TOKENS[id]

    def encode(self, text: str) -> list[int]:
        return [TOKENS.index(word) if word in TOKENS else 1 for word in text.split()]


def build(knowledge: KnowledgeBase = JOINED, **settings) -> KnowBERT:
    system = build_system(
        "knowbert",
        {**TINY, **settings},
        VOCABULARY,
        seed=0,
        base=build_tiny("bert", VOCABULARY),
        memories=ExternalMemory(knowledge=knowledge),
    )
    assert isinstance(system, KnowBERT)
    system.setup_tokenizer(StubTokenizer())
    system.setup_data(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
    return system.eval().double()


def batch() -> Batch:
    """`a b` is Q2, and the last `a` is A2."""
    tokens = Batch.collate([[2, 5, 6, 5, 3], [2, 6, 3]], pad=0)
    entities = torch.full_like(tokens.tokens, -1)
    entities[0, 1:3] = FIRST_OF_NAMES + 1
    entities[0, 3] = 1
    return replace(tokens, entities=entities)


def test_joined_ids_and_relations_by_hand():
    assert [entity.name for entity in JOINED.entities] == ["A", "A2", "B", "Q1", "Q2"]
    assert JOINED.relations == ("has", "is", "in") and JOINED.sources == (3, 2)
    assert JOINED.facts == (Fact(0, 1, 2), Fact(4, 1, 3), Fact(3, 2, 4))
    assert JOINED.aliases[3:] == (Alias("a b", 4, 1.0), Alias("b", 3, 1.0), Alias("b", 4, 1.0))
    senses, names = split_knowledge(JOINED)
    assert senses.knowledge == replace(SENSES, relations=JOINED.relations)
    assert names.first == FIRST_OF_NAMES and names.knowledge.aliases == NAMES.aliases
    assert names.knowledge.facts == (Fact(1, 1, 0), Fact(0, 2, 1))
    assert names.own_ids(torch.tensor([-1, 2, 3, 4])).tolist() == [-1, -1, 0, 1]
    assert names.joined_ids(torch.tensor([-1, 0, 1])).tolist() == [-1, 3, 4]


def test_joined_knowledge_survives_saving_and_one_alone_has_no_sources():
    assert KnowledgeBase.from_bytes(JOINED.to_bytes(), where="x") == JOINED
    assert KnowledgeBase.from_bytes(SENSES.to_bytes(), where="x") == SENSES
    damaged = replace(JOINED, sources=(3, 1)).to_bytes()
    with pytest.raises(UserError, match=r"damaged \(sources have 4 entities, and there are 5\)"):
        KnowledgeBase.from_bytes(damaged, where="x")


def test_specification_of_two_knowledge_bases(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "entities.tsv").write_text(f"{name}1\n{name}2\n", encoding="utf-8")
    joined = load_knowledge(f"{tmp_path / 'one'}+{tmp_path / 'two'}")
    assert [e.name for e in joined.entities] == ["one1", "one2", "two1", "two2"]
    assert joined.sources == (2, 2)
    with pytest.raises(UserError, match="two of the knowledge bases have an entity called 'one1'"):
        load_knowledge(f"{tmp_path / 'one'}+{tmp_path / 'one'}")
    with pytest.raises(UserError, match="there is no knowledge or folder called 'capital'"):
        load_knowledge("capital+wordnet")


@torch.no_grad()
def test_each_knowledge_base_changes_the_hidden_states_after_its_layer():
    """Block 1, the second base's memory, block 2, the first base's, composed by hand."""
    system = build(knowledge_layers=(2, 1))
    view = system.objective.clean_view(batch())
    senses, names = system.memories
    expected = system.backbone.embedding(view.inputs, torch.arange(5)[None], view.segments)
    one, two = system.backbone.stack.blocks
    context = full_attention_context(view)
    expected = one(expected, context)
    expected = names(expected, replace(view, spans=view.memory_spans[1])).values
    expected = two(expected, context)
    expected = senses(expected, replace(view, spans=view.memory_spans[2])).values
    real = batch().mask()
    torch.testing.assert_close(system.hidden(view).values[real], expected[real])
    assert view.memory_spans[1].candidates.max() == 1  # ids of its own knowledge base


@torch.no_grad()
def test_base_without_effect_leaves_that_of_the_other_alone():
    joined, single = build(knowledge_layers=(1, 2)), build(SENSES, knowledge_layers=(1,))
    weights = {k: v for k, v in joined.state_dict().items() if "memories.2" not in k}
    single.load_state_dict(
        {
            # The relations of both are embedded, of which the single one knows its own.
            k: v[: len(single.state_dict()[k])] if v.ndim else v
            for k, v in weights.items()
        }
    )
    joined.memories[1].back.weight.zero_()
    joined.memories[1].back.bias.zero_()
    encoded = joined.encode_tokens(batch())
    torch.testing.assert_close(encoded, single.encode_tokens(batch()))


def test_links_have_ids_of_the_joined_knowledge_base():
    links = build().link(batch())
    places = [(link.row, link.first, link.last) for link in links]
    assert places == sorted(places)
    entities = {(link.row, link.first, link.last, link.entity // FIRST_OF_NAMES) for link in links}
    assert entities == {
        (0, 1, 1, 0),  # a: a sense
        (0, 1, 2, 1),  # a b: a name
        (0, 2, 2, 0),  # b: both
        (0, 2, 2, 1),
        (0, 3, 3, 0),
        (1, 1, 1, 0),
        (1, 1, 1, 1),
    }


@torch.no_grad()
def test_linking_losses_are_added():
    """One gold mention in each knowledge base, of which masking leaves one or the other."""
    system, counts = build(), set()
    for seed in range(20):
        loss, _ = system.loss(batch(), generator=torch.Generator().manual_seed(seed))
        view = system.objective.view(batch(), generator=torch.Generator().manual_seed(seed))
        outputs = system.hidden(view).memory_outputs
        losses = [
            linking_loss(system.objective.linking, outputs[layer]["scores"], spans)
            for layer, spans in view.memory_spans.items()
        ]
        linking = loss.parts["linking"]
        assert float(linking.total) == pytest.approx(sum(float(part.total) for part in losses))
        assert float(linking.count) == sum(float(part.count) for part in losses)
        counts.add(tuple(float(part.count) for part in losses))
    assert {(1.0, 0.0), (0.0, 1.0)} <= counts


def test_only_the_linkers_are_trained_first():
    system = build(linking_steps=1).train()
    system.begin_step(0)
    trained = {name for name, p in system.named_parameters() if p.requires_grad}
    assert trained and all(".linker." in n or ".project." in n for n in trained)
    assert {name.split(".")[2] for name in trained} == {"1", "2"}
    system.begin_step(1)
    assert all(parameter.requires_grad for parameter in system.parameters())
    for memory in system.memories:
        torch.testing.assert_close(memory.back.weight, torch.linalg.pinv(memory.project.weight))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((1,), r"one layer for each knowledge base \(2\), got 1"),
        ((1, 1), "must be different layers"),
        ((1, 3), "between 1 and 2, .* got 3"),
        ((0, 1), "between 1 and 2, .* got 0"),
    ],
)
def test_layers_that_do_not_fit(layers, message):
    with pytest.raises(UserError, match=message):
        build(knowledge_layers=layers)
