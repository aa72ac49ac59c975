"""Knowledge attention and recontextualisation (KAR): KnowBert's entity linker inside an encoder.

Peters et al. 2019, in seven steps:

    1  H^proj = H W₁ + b₁                                             project to entity width E
    2  s_m = Σ_t a_t h_t^proj over the positions of mention m         self-attentive pooling
    3  S^e = Block(S)                                                 over the mentions of a row
    4  ψ_mk = MLP(p_mk, s_m^e · e_mk);  ψ̃ = softmax over ψ ≥ δ;  ẽ_m = Σ_k ψ̃_mk e_mk
       ẽ_m = e_NULL where no candidate reaches δ
    5  s'_m = s_m^e + ẽ_m
    6  H'^proj = MLP(MultiHeadAttn(H^proj, S', S'))
    7  H' = H'^proj W₂ + b₂ + H,   W₂ = W₁⁺ at initialisation

W₁ is not square, so W₂ starts as its pseudo-inverse. Words may also attend to e_NULL, which is
added to the mentions of every row: so rows without mentions have something to attend to, and a word
need not attend to a mention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lmlab.core.entity_memory import HiddenMemory, MemoryOutput
from lmlab.core.entity_mentions import NO_ENTITY, MentionSpans
from lmlab.core.view import View
from lmlab.knowledge.entity_embeddings import EntityEmbeddings
from lmlab.layers.attention import MultiHeadAttention
from lmlab.layers.block import Block, PostNorm, PreNorm
from lmlab.layers.feed_forward import FeedForward
from lmlab.layers.sequence_mixer import LayerContext
from lmlab.layers.weight_init import init_transformer_weights


class SpanPooling(nn.Module):
    """Span pooling s = Σ_t a_t x_t over the positions of a span, a = softmax(w · x_t).

    Learns to weight the span's head word (Lee et al. 2017). Cost O(M · L · W) for M spans of at
    most L positions.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, values: Tensor, rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """(M, W) of the spans from `first` to `last` (M,) in `rows` (M,) of values (B, T, W)."""
        if not len(rows):
            return values.new_zeros(0, values.shape[-1])
        max_length = int((last - first).max()) + 1
        positions = first[:, None] + torch.arange(max_length, device=first.device)
        inside = positions <= last[:, None]
        vectors = values[rows[:, None], positions.minimum(last[:, None])]
        scores = self.score(vectors).squeeze(-1).masked_fill(~inside, -torch.inf)
        pooled: Tensor = (torch.softmax(scores, -1)[..., None] * vectors).sum(1)
        return pooled


SCORING_UNITS = 100
"""Hidden units of the MLP that scores candidates (Peters et al. 2019)."""
OUTPUT_INIT_FACTOR = 8
"""The output of recontextualisation is initialised 1/√(2 · 8) as large, to preserve the model."""


class CandidateScorer(nn.Module):
    """Candidate score ψ = MLP(p, s · e): fit of an entity to a mention, given its prior."""

    def __init__(self, units: int = SCORING_UNITS) -> None:
        super().__init__()
        self.widen = nn.Linear(2, units)
        # No bias: the softmax over candidates is invariant to it.
        self.narrow = nn.Linear(units, 1, bias=False)

    def reset_parameters(self) -> None:
        """Initialise by the fan-in, which is two: the scale of Transformer layers would be so small
        that priors have no effect for hundreds of steps."""
        self.widen.reset_parameters()
        self.narrow.reset_parameters()

    def forward(self, priors: Tensor, products: Tensor) -> Tensor:
        """(K,) scores of K candidates, from their priors (K,) and inner products (K,)."""
        both = torch.stack([priors, products], -1)
        scores: Tensor = self.narrow(torch.relu(self.widen(both))).squeeze(-1)
        return scores


class EntityLinker(nn.Module):
    """Steps 2 to 4: mention vectors, and the scores of their candidates."""

    def __init__(
        self, entities: EntityEmbeddings, width: int, *, heads: int, threshold: float | None
    ) -> None:
        super().__init__()
        self.entities = entities
        self.threshold = threshold
        self.pooling = SpanPooling(width)
        self.block = Block(
            MultiHeadAttention(width, heads),
            PostNorm(nn.LayerNorm(width)),
            FeedForward(width, 4 * width),
            PostNorm(nn.LayerNorm(width)),
        )
        self.scores = CandidateScorer()

    def mention_vectors(self, values: Tensor, spans: MentionSpans) -> Tensor:
        """(M, E) steps 2 and 3, from projected hidden states (B, T, E)."""
        pooled: Tensor = self.pooling(values, spans.rows, spans.first, spans.last)
        if not len(spans):
            return pooled
        packing = PackedMentions.of(spans.rows, len(values))
        attended = self.block(packing.pack(pooled), packing.context())
        return packing.unpack(attended)

    def score(self, mentions: Tensor, spans: MentionSpans) -> tuple[Tensor, Tensor, Tensor]:
        """Step 4: ψ (M, C), -inf where there is no candidate; ψ̃ (M, C); ẽ (M, E), 0 for NULL."""
        real = spans.candidates != NO_ENTITY
        mention = real.nonzero()[:, 0]
        vectors = self.entities(spans.candidates[real])
        products = (mentions[mention] * vectors).sum(-1)
        real_scores = self.scores(spans.priors[real], products)
        scores = real_scores.new_full(real.shape, -torch.inf).masked_scatter(real, real_scores)
        weights = candidate_weights(scores, self.threshold)
        mixture = torch.zeros_like(mentions)
        return scores, weights, mixture.index_add(0, mention, weights[real][:, None] * vectors)


def candidate_weights(scores: Tensor, threshold: float | None) -> Tensor:
    """(M, C) softmax over the candidates that reach the threshold; zeros where none does."""
    eligible = scores > -torch.inf
    if threshold is not None:
        eligible = eligible & (scores >= threshold)
    nonempty = eligible.any(-1, keepdim=True)
    # An empty softmax would be nan, and so would its gradient.
    masked_scores = scores.masked_fill(~eligible & nonempty, -torch.inf).masked_fill(~nonempty, 0.0)
    return torch.softmax(masked_scores, -1) * eligible if scores.shape[-1] else scores


class KnowledgeAttention(HiddenMemory):
    """KAR layer: hidden states (B, T, W) to the same; M mentions of at most C candidates.

    Its `outputs` are `scores` (M, C) ψ, -inf where there is no candidate; `weights` (M, C) ψ̃;
    `chosen` (M,) the best candidate, NO_ENTITY where none reaches the threshold. In step 6 the MLP
    has a residual connection and attention has none: that of step 7 skips both. Cost O(T · M · E)
    per row and O(M · C · E).
    """

    def __init__(
        self,
        width: int,
        entities: EntityEmbeddings,
        *,
        entity_width: int,
        heads: int,
        threshold: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.project = nn.Linear(width, entity_width)
        self.linker = EntityLinker(entities, entity_width, heads=heads, threshold=threshold)
        self.null = nn.Parameter(torch.randn(entity_width) / entity_width**0.5)
        self.attention = MultiHeadAttention(entity_width, heads)
        self.feed_forward = FeedForward(entity_width, 4 * entity_width)
        self.feed_forward_connection = PreNorm(nn.LayerNorm(entity_width), dropout)
        self.back = nn.Linear(entity_width, width)
        init_transformer_weights(self, entity_width, layers=OUTPUT_INIT_FACTOR)
        nn.init.orthogonal_(self.project.weight)
        self.align()
        self.linker.scores.reset_parameters()

    @torch.no_grad()
    def align(self) -> None:
        """Set W₂ to the pseudo-inverse of W₁, so that it undoes W₁ on W₁'s row space."""
        self.back.weight.copy_(torch.linalg.pinv(self.project.weight))
        self.back.bias.zero_()

    def linking_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the linker, which are trained before all others."""
        yield from self.project.parameters()
        yield from self.linker.parameters()

    def forward(self, values: Tensor, view: View) -> MemoryOutput:
        spans = view.spans
        assert spans is not None, "the objective tells where mentions may be"
        projected = self.project(values)
        mentions = self.linker.mention_vectors(projected, spans)
        scores, weights, entity_vectors = self.linker.score(mentions, spans)
        unlinked = weights.sum(-1) == 0
        enhanced = mentions + torch.where(unlinked[:, None], self.null, entity_vectors)
        recontextualised = self._recontextualise(projected, enhanced, spans)
        outputs = {"scores": scores, "weights": weights, "chosen": best_candidates(weights, spans)}
        return MemoryOutput(values=values + self.back(recontextualised), outputs=outputs)

    def _recontextualise(self, projected: Tensor, mentions: Tensor, spans: MentionSpans) -> Tensor:
        """(B, T, E) step 6: attention from words to the mentions of their row and NULL."""
        packing = PackedMentions.of(spans.rows, len(projected), offset=1)
        source = packing.pack(mentions)
        null = self.null.expand(len(source), 1, -1)
        source = torch.cat([null, source[:, 1:]], 1)
        words = self.attention(projected, packing.context(projected.shape[1]), source=source)
        connection = self.feed_forward_connection
        output = self.feed_forward(connection.sublayer_input(words))
        return connection.sublayer_output(words, output)


def best_candidates(weights: Tensor, spans: MentionSpans) -> Tensor:
    """(M,) the candidate with the largest weight, NO_ENTITY where all are zero."""
    if not weights.shape[-1]:
        return torch.full_like(spans.rows, NO_ENTITY)
    best, index = weights.max(-1)
    chosen = spans.candidates.gather(-1, index[:, None]).squeeze(-1)
    return chosen.masked_fill(best == 0, NO_ENTITY)


class PackedMentions:
    """Packs the mentions of a batch into rows: (M, E) to (B, S, E) and back."""

    def __init__(self, rows: Tensor, slots: Tensor, counts: Tensor, size: int) -> None:
        self.rows = rows
        self.slots = slots
        """(M,) the slot of each mention in its row."""
        self.counts = counts
        """(B,) number of used slots in each row."""
        self.size = size

    @classmethod
    def of(cls, rows: Tensor, count: int, *, offset: int = 0) -> PackedMentions:
        """From the row of each mention (M,), in order; `offset` slots stay free at the front."""
        counts = torch.bincount(rows, minlength=count)
        first = counts.cumsum(0) - counts
        slots = torch.arange(len(rows), device=rows.device) - first[rows] + offset
        used = counts + offset
        return cls(rows, slots, used, int(used.max()) if count else 0)

    def pack(self, vectors: Tensor) -> Tensor:
        packed = vectors.new_zeros(len(self.counts), self.size, vectors.shape[-1])
        return packed.index_put((self.rows, self.slots), vectors)

    def unpack(self, packed: Tensor) -> Tensor:
        return packed[self.rows, self.slots]

    def context(self, words: int | None = None) -> LayerContext:
        """Attention from all slots of a row, or from so many `words`, to its used slots."""
        slots = torch.arange(self.size, device=self.rows.device)[None]
        query_positions = slots if words is None else slots.new_zeros(1, words)
        # A row without mentions attends to its first slot, as an empty softmax is nan.
        mask = (slots < self.counts.clamp(min=1)[:, None])[:, None, None]
        return LayerContext(mask=mask, query_positions=query_positions, key_positions=slots)
