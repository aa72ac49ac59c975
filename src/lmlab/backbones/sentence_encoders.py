"""Sentence encoders: reverse RNN, network on all embeddings, first-token or mean pooling."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import SentenceEncoder
from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone
from lmlab.core.view import View
from lmlab.layers.recurrent_cells import CellState, RecurrentCell

TextPooling = Literal["first", "mean"]


class ReverseRNNEncoder(SentenceEncoder):
    """Reverse RNN encoder: the last output of a cell that runs from the end to the start.

    So the words decoded first are those encoded last (Sutskever et al. 2014). The initial state is
    zero, or learned where the cell could not leave zero. Tokens (B, T) to (B, W), T steps; padding
    never precedes a token.
    """

    def __init__(
        self, embedding: nn.Embedding, cell: RecurrentCell, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.cell = cell
        self.dropout = nn.Dropout(dropout)
        self.width = cell.width
        learned = (
            None if cell.can_leave_zero else torch.randn(len(cell.free_state_names), cell.width)
        )
        self.first = None if learned is None else nn.Parameter(learned)

    def _start(self, rows: int, like: Tensor) -> CellState:
        if self.first is None:
            return self.cell.start(rows, like)
        return self.cell.state_from_free(tuple(part.expand(rows, -1) for part in self.first))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        last = (lengths - 1).clamp(min=0)[:, None]
        # Each row reversed; padding comes after it.
        backwards = tokens.gather(1, (last - position).clamp(min=0))
        values = self.dropout(self.embedding(backwards))
        outputs, _ = self.cell.run(values, self._start(len(tokens), values))
        last_index = last[..., None].expand(-1, 1, outputs.shape[-1])
        return self.dropout(outputs.gather(1, last_index).squeeze(1))


class FlattenedEncoder(SentenceEncoder):
    """Network over the concatenated embeddings: z = f([e(s_1), …, e(s_n)]).

    Sentences are padded with zeros to `places` positions; the input of `network` has places · D
    units. With one linear layer it is a linear autoencoder's encoder. Tokens (B, T) to (B, W).
    """

    longest: int

    def __init__(
        self, embedding: nn.Embedding, network: nn.Module, *, max_length: int, width: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.network = network
        self.longest = max_length
        self.width = width

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        non_padding = (position < lengths[:, None])[..., None]
        values = self.embedding(tokens) * non_padding
        missing = self.longest - tokens.shape[1]
        assert missing >= 0 or not non_padding[:, self.longest :].any(), "check_length comes first"
        padded = F.pad(values, (0, 0, 0, missing))
        result: Tensor = self.network(padded.flatten(1))
        return result


class ProjectedEncoder(SentenceEncoder):
    """An encoder followed by a network, such as the projection to the latent."""

    def __init__(self, encoder: SentenceEncoder, network: nn.Module, *, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network
        self.longest = encoder.longest
        self.width = width

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        result: Tensor = self.network(self.encoder(tokens, lengths))
        return result


class PooledTextEncoder(nn.Module):
    """Text embedding: W h_0, h = backbone(<s> x </s>) (Guu et al. 2020); or W times the mean of h.

    Rows (B, T) to (B, width). Without a width of its own there is no W (Karpukhin et al. 2020).
    With `length` L > 0, v becomes L v / ‖v‖ (Reimers and Gurevych 2019), and the inner product of
    two vectors L² times their cosine.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        width: int = 0,
        pooling: TextPooling = "first",
        length: float = 0.0,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.length = length
        self.projection = nn.Linear(backbone.width, width, bias=False) if width else None
        self.width = width or backbone.width
        if self.projection is not None:
            # Inner products of two such vectors start near ±1, where the softmax is not saturated.
            nn.init.normal_(self.projection.weight, std=backbone.width**-0.5 * width**-0.25)

    def forward(self, batch: Batch) -> Tensor:
        view = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=FullMask())
        values: Tensor = self.backbone(view).values
        if self.pooling == "first":
            pooled = values[:, 0]
        else:
            real = batch.mask()[..., None]
            pooled = (values * real).sum(1) / real.sum(1).clamp(min=1)
        vectors = pooled if self.projection is None else self.projection(pooled)
        return self.length * F.normalize(vectors, dim=1) if self.length else vectors
