"""ELMo (Peters et al. 2018): forward and backward LMs, and the scalar mix of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Emission
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.objectives.bidirectional_lm import BidirectionalLM


class ScalarMix(nn.Module):
    """ELMo's γ Σ_j softmax(w)_j h_j over the layers j = 0 … L (Peters et al. 2018, equation 1).

    Layers (…, W) each, the mix (…, W). Initialised to equal weights and γ = 1.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        weights = torch.softmax(self.weights, 0)
        total = sum(w * layer for w, layer in zip(weights, layers, strict=True))
        mixed: Tensor = self.scale * total
        return mixed


class LastLayer(nn.Module):
    """The last layer unchanged; no parameters."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        return layers[-1]


class ELMo(AutoregressiveLM):
    """ELMo: two language models whose layers give contextual word vectors.

    The vector of position t is [x_t; mix_j [h→_tj; h←_tj]], where layer 0 is the word x itself,
    twice. The layer `mix` belongs to the downstream task and is learned with it.
    """

    objective: BidirectionalLM
    backbone: Recurrent

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Recurrent,
        emission: Emission,
        objective: BidirectionalLM,
        mix: nn.Module,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.mix = mix.requires_grad_(False)

    def task_parameters(self) -> Iterable[nn.Parameter]:
        return self.mix.parameters()

    def encode_layers(self, batch: Batch) -> list[Tensor]:
        """(B, T, 2 W) of the words and of each layer: forward half, then backward half.

        The forward half of a position depends on the tokens up to its own, the backward half on
        those from its own on.
        """
        view = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=CausalMask())
        forward = self.backbone.all_layers(view)
        backward = [forward[0], *self.objective.backward_layers(batch)[1:]]
        return [torch.cat(pair, -1) for pair in zip(forward, backward, strict=True)]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, 3 W) the word vector, W, concatenated with the layer mix, 2 W."""
        layers = self.encode_layers(batch)
        return torch.cat([self.backbone.embedding(batch.tokens), self.mix(layers)], -1)

    def encode(self, batch: Batch) -> Tensor:
        """(B, 3 W) the mean of a text's vectors."""
        mask = batch.mask()[..., None]
        return (self.encode_tokens(batch) * mask).sum(1) / batch.lengths[:, None]
