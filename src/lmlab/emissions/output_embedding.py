"""Output embeddings of emissions, and the mask of tokens that are never predicted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmlab.core.vocabulary import Vocabulary


def output_embedding(
    width: int, vocabulary: Vocabulary, tied: nn.Embedding | None
) -> nn.Parameter | Tensor:
    """(V, W) output vectors: a tied input embedding (Press and Wolf 2017), or free ones."""
    if tied is not None:
        assert tied.embedding_dim == width, "a tied embedding has the hidden width"
        return tied.weight
    # Short vectors: where only the direction matters, shorter ones rotate faster.
    return nn.Parameter(torch.empty(vocabulary.size, width).uniform_(-(width**-0.5), width**-0.5))


def never_predicted_mask(vocabulary: Vocabulary) -> Tensor:
    """(V,) zeros, with -inf at the tokens that are never predicted."""
    never = torch.zeros(vocabulary.size)
    never[list(vocabulary.unpredictable)] = float("-inf")
    return never
