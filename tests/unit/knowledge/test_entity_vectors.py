"""Vectors of entities: alike where facts or words are, whatever else."""

from __future__ import annotations

import torch

from lmlab.knowledge.entity_embeddings import EntityEmbeddings, gloss_vectors, graph_vectors
from lmlab.knowledge.knowledge_base import Entity, Fact, KnowledgeBase


def clusters(size: int = 12) -> KnowledgeBase:
    """Two rings of entities with no fact between them, and one entity of which there is none."""
    facts = [
        Fact(start + place, 0, start + (place + 1) % size)
        for start in (0, size)
        for place in range(size)
    ]
    entities = tuple(Entity(name=str(number)) for number in range(2 * size + 1))
    return KnowledgeBase(entities=entities, relations=("next",), facts=tuple(facts))


def test_neighbours_in_the_graph_are_alike():
    knowledge = clusters()
    found = graph_vectors(knowledge, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(25))
    likeness = found @ found.T
    near = torch.stack([likeness[fact.subject, fact.object] for fact in knowledge.facts])
    across = likeness[:12, 12:24]
    assert near.min() > across.max()
    # Whatever is of no fact is like nothing else: a random direction among 64.
    assert likeness[24, :24].abs().max() < 0.6


def test_the_same_seed_gives_the_same_vectors():
    one, other, third = (
        graph_vectors(clusters(), 8, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, other) and not torch.equal(one, third)


class Letters:
    kind = "word"

    def token(self, id: int) -> str:
        return "?abc"[id]

    def encode(self, text: str) -> list[int]:
        return ["?abc".index(word) if word in "?abc" else 0 for word in text.split()]


def test_gloss_vectors_are_weighted_means_about_their_middle():
    """Tokens a, b, c are the axes of space. `a` is in all glosses, so its weight is log 1 = 0; the
    first two entities are b alone, the third c alone: two points, whose line through the middle is
    the only axis that is left. The fourth says nothing that is known."""
    entities = tuple(
        Entity(name=str(n), description=text) for n, text in enumerate(("a b", "b a", "a c", "z z"))
    )
    tokens = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    found = gloss_vectors(KnowledgeBase(entities=entities), Letters(), tokens, 2, unknown=0)
    assert found.shape == (4, 2)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], -found[2], atol=1e-5, rtol=0)
    assert found[3].tolist() == [0.0, 0.0]


def test_both_sources_stand_side_by_side_and_are_not_trained():
    knowledge = clusters()
    vectors = EntityEmbeddings(knowledge, "both", 8, gloss_width=3)
    vectors.setup_vectors(Letters(), torch.eye(4)[:, :3], unknown=0)
    assert vectors.vectors.shape == (25, 8 + 3)
    expected = graph_vectors(knowledge, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(vectors.vectors[:, :8], expected)
    assert {name for name, _ in vectors.named_parameters()} == {"project.weight", "project.bias"}
    assert vectors(torch.tensor([[0, 3]])).shape == (1, 2, 8)
    assert EntityEmbeddings(knowledge, "graph", 8, gloss_width=3).vectors.shape == (25, 8)
    assert EntityEmbeddings(knowledge, "glosses", 8, gloss_width=3).vectors.shape == (25, 3)
