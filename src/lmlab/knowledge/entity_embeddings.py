"""Entity embeddings: learned projection of fixed vectors from the graph (FastRP) and glosses."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.knowledge.knowledge_base import KnowledgeBase, batch_encode

EntityVectorSource = Literal["graph", "glosses", "both"]
NEIGHBOUR_WEIGHTS = (0.5, 1.0, 1.0, 1.0)
"""Weights of an entity's own vector and of its neighbours at distance one, two and three."""


def graph_vectors(knowledge: KnowledgeBase, width: int, *, generator: torch.Generator) -> Tensor:
    """(N, width) unit vectors, similar for entities with the same neighbours.

    Every entity starts as a random vector x⁰, plus one for each role it has in facts (subject or
    object of a relation), which is propagated along the facts,

        x^k = normalise(D⁻¹ A x^{k-1}),   e = normalise(Σ_k w_k x^k),   k = 0 … 3,

    so that inner products approximate those of the neighbourhood distributions (FastRP, Chen et al.
    2019), without any training. Cost O(facts · width).
    """
    count = len(knowledge.entities)
    vectors = torch.randn(count, width, generator=generator)
    role_vectors = torch.randn(2, max(1, len(knowledge.relations)), width, generator=generator)
    table = [(fact.subject, fact.relation, fact.object) for fact in knowledge.facts]
    facts = torch.tensor(table, dtype=torch.long).view(-1, 3)
    subject, relation, object = facts.unbind(1)
    roles = torch.zeros(count, width)
    roles.index_add_(0, subject, role_vectors[0][relation]).index_add_(
        0, object, role_vectors[1][relation]
    )
    vectors = F.normalize(F.normalize(vectors, dim=-1) + F.normalize(roles, dim=-1), dim=-1)
    total = NEIGHBOUR_WEIGHTS[0] * vectors
    for weight in NEIGHBOUR_WEIGHTS[1:]:
        neighbours = torch.zeros(count, width)
        neighbours.index_add_(0, subject, vectors[object]).index_add_(0, object, vectors[subject])
        vectors = F.normalize(neighbours, dim=-1)
        total = total + weight * vectors
    return F.normalize(total, dim=-1)


def gloss_vectors(
    knowledge: KnowledgeBase,
    tokenizer: TokenizerProtocol,
    tokens: Tensor,
    width: int,
    *,
    unknown: int | None,
) -> Tensor:
    """(N, width) unit vectors from the words of each title and description.

    The mean of the token vectors (V, W), weighted by idf log(N / entities with the token), centred
    and projected onto its `width` ≤ W principal components. An entity without words is zero. Cost
    O(tokens · W + N · W²).
    """
    glosses = [f"{entity.title} {entity.description}".strip() for entity in knowledge.entities]
    texts = [[id for id in ids if id != unknown] for ids in batch_encode(tokenizer, glosses)]
    lengths = torch.tensor([len(text) for text in texts])
    flat = torch.tensor([id for text in texts for id in text], dtype=torch.long)
    document_frequencies = torch.zeros(len(tokens))
    document_frequencies.index_add_(0, *_distinct_tokens(flat, lengths, len(tokens)))
    idf = torch.log(len(texts) / document_frequencies.clamp(min=1))
    first = lengths.cumsum(0) - lengths
    table = tokens.detach().float().cpu()
    sums = F.embedding_bag(flat, table, first, mode="sum", per_sample_weights=idf[flat])
    nonempty = lengths > 0
    sums = F.normalize(sums, dim=-1)
    centred = (sums - sums[nonempty].mean(0)) * nonempty[:, None] if bool(nonempty.any()) else sums
    _, axes = torch.linalg.eigh(centred.T @ centred)
    return F.normalize(centred @ axes.flip(1)[:, :width], dim=-1)


def _distinct_tokens(flat: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Each distinct token of each text, with a one for it."""
    texts = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    tokens = torch.unique(texts * size + flat) % size
    return tokens, torch.ones(len(tokens))


class EntityEmbeddings(nn.Module):
    """Entity embeddings e = W [graph | gloss] + b: N fixed vectors and a learned projection.

    The vectors are computed before training (`setup_vectors`), from the facts, from titles and
    descriptions in the token vectors of the underlying model, or from both, concatenated.
    """

    vectors: Tensor

    def __init__(
        self,
        knowledge: KnowledgeBase,
        source: EntityVectorSource,
        width: int,
        *,
        gloss_width: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.knowledge = knowledge
        self.seed = seed
        self.graph_width = 0 if source == "glosses" else width
        self.gloss_width = 0 if source == "graph" else min(width, gloss_width)
        columns = self.graph_width + self.gloss_width
        self.register_buffer("vectors", torch.zeros(len(knowledge.entities), columns))
        self.project = nn.Linear(columns, width)

    def setup_vectors(
        self, tokenizer: TokenizerProtocol | None, tokens: Tensor, *, unknown: int | None
    ) -> None:
        """Compute the vectors, given the token vectors (V, W) of the underlying model."""
        parts = []
        if self.graph_width:
            generator = torch.Generator().manual_seed(self.seed)
            parts.append(graph_vectors(self.knowledge, self.graph_width, generator=generator))
        if self.gloss_width:
            assert tokenizer is not None, "glosses need the tokenizer"
            width = self.gloss_width
            parts.append(gloss_vectors(self.knowledge, tokenizer, tokens, width, unknown=unknown))
        self.vectors.copy_(torch.cat(parts, -1))

    def forward(self, numbers: Tensor) -> Tensor:
        """(…, E) embeddings of the entities with these ids."""
        vectors: Tensor = self.project(self.vectors[numbers])
        return vectors
