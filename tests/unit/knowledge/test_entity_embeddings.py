"""Entity embeddings: similar for neighbouring entities and similar glosses."""

from __future__ import annotations

import torch

from lmlab.knowledge.entity_embeddings import EntityEmbeddings, gloss_vectors, graph_vectors
from lmlab.knowledge.knowledge_base import Entity, Fact, KnowledgeBase


def clusters(size: int = 12) -> KnowledgeBase:
    """Two rings of entities with no fact between them, and one entity without facts."""
    facts = [
        Fact(start + offset, 0, start + (offset + 1) % size)
        for start in (0, size)
        for offset in range(size)
    ]
    entities = tuple(Entity(name=str(number)) for number in range(2 * size + 1))
    return KnowledgeBase(entities=entities, relations=("next",), facts=tuple(facts))


def test_graph_neighbours_have_similar_vectors():
    knowledge = clusters()
    vectors = graph_vectors(knowledge, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(25))
    similarity = vectors @ vectors.T
    near = torch.stack([similarity[fact.subject, fact.object] for fact in knowledge.facts])
    across = similarity[:12, 12:24]
    assert near.min() > across.max()
    # An entity without facts is similar to none: a random direction in 64 dimensions.
    assert similarity[24, :24].abs().max() < 0.6


def test_graph_vectors_are_deterministic_given_the_seed():
    one, other, third = (
        graph_vectors(clusters(), 8, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, other) and not torch.equal(one, third)


class LetterTokenizer:
    kind = "word"

    def token(self, id: int) -> str:
        return "?abc"[id]

    def encode(self, text: str) -> list[int]:
        return ["?abc".index(word) if word in "?abc" else 0 for word in text.split()]


def test_gloss_vectors_are_centred_idf_weighted_means():
    """Tokens a, b, c are the unit vectors. `a` is in all glosses, so its weight is log 1 = 0; the
    first two entities are b alone, the third c alone: two points, whose difference is the only
    principal axis. The fourth gloss has only unknown words."""
    entities = tuple(
        Entity(name=str(n), description=text) for n, text in enumerate(("a b", "b a", "a c", "z z"))
    )
    tokens = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    vectors = gloss_vectors(
        KnowledgeBase(entities=entities), LetterTokenizer(), tokens, 2, unknown=0
    )
    assert vectors.shape == (4, 2)
    torch.testing.assert_close(vectors[0], vectors[1])
    torch.testing.assert_close(vectors[0], -vectors[2], atol=1e-5, rtol=0)
    assert vectors[3].tolist() == [0.0, 0.0]


def test_graph_and_gloss_vectors_are_concatenated_and_fixed():
    knowledge = clusters()
    vectors = EntityEmbeddings(knowledge, "both", 8, gloss_width=3)
    vectors.setup_vectors(LetterTokenizer(), torch.eye(4)[:, :3], unknown=0)
    assert vectors.vectors.shape == (25, 8 + 3)
    expected = graph_vectors(knowledge, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(vectors.vectors[:, :8], expected)
    assert {name for name, _ in vectors.named_parameters()} == {"project.weight", "project.bias"}
    assert vectors(torch.tensor([[0, 3]])).shape == (1, 2, 8)
    assert EntityEmbeddings(knowledge, "graph", 8, gloss_width=3).vectors.shape == (25, 8)
    assert EntityEmbeddings(knowledge, "glosses", 8, gloss_width=3).vectors.shape == (25, 3)
