"""Next-token language models: shared assembly, embedding initialisations, short-sentence recipe."""

from __future__ import annotations

from torch import nn

from lmlab.core.parts import Backbone, Emission
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.next_token import NextToken

SHORT_SENTENCES = {
    "learning_rate": 4e-3,
    "schedule": "cosine",
    "warmup_steps": 100,
    "tokens_per_batch": 1200,
    "weight_decay": 0.01,
    "epochs": 20,
}
"""Recipe for short sentences; results on multi30k-l20 in docs/results.md."""


def assemble_lm(vocabulary: Vocabulary, backbone: Backbone, emission: Emission) -> AutoregressiveLM:
    """Autoregressive language model of a backbone and an emission, trained on the next token."""
    return AutoregressiveLM(
        vocabulary=vocabulary, backbone=backbone, emission=emission, objective=NextToken()
    )


def small_embedding(size: int, width: int) -> nn.Embedding:
    """Embedding with vectors of norm about 1; torch's unit normals make training unstable."""
    embedding = nn.Embedding(size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def uniform_embedding(size: int, width: int) -> nn.Embedding:
    """Embedding with small vectors; unit normals make a softmax model's first steps unstable."""
    embedding = nn.Embedding(size, width)
    nn.init.uniform_(embedding.weight, -0.1, 0.1)
    return embedding
