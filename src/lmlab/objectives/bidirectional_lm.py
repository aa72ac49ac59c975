"""Bidirectional language model (ELMo's biLM): forward and backward LMs with shared embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from lmlab.backbones.recurrent import Recurrent
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.loss import Loss
from lmlab.core.parts import Network, weighted_cross_entropy
from lmlab.core.protocols import LogProbs
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.view import View, causal_view
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.next_token import NextToken


class BidirectionalLM(NextToken):
    """biLM: -Σ_t log p→(s_t | s_<t) - Σ_t log p←(s_t | s_>t), per prediction (Peters et al. 2018).

    The backward model is a left-to-right LM on the reversed text, <s> s_n … s_1 </s>: a
    distribution over texts of its own, with its own recurrent network and the forward model's
    embeddings and softmax. The objective's log-probability is the forward model's, exact;
    `backward_log_prob` is the other one's. State is carried from batch to batch in the forward
    direction only.
    """

    kind: ClassVar[ScoreKind] = "exact"
    prediction_kind = ""  # it predicts in both directions

    def __init__(self, backward: Recurrent, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.backward = backward
        self.vocabulary = vocabulary

    def loss(
        self,
        network: Network,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Loss, State | None]:
        forward, after = super().loss(network, batch, state=state, generator=generator)
        view = self.backward_view(batch)
        backward = weighted_cross_entropy(view, network.predict(view, self.backward(view)))
        both = forward + backward
        return Loss(both.total, both.count, {"forward": forward, "backward": backward}), after

    def backward_view(self, batch: Batch) -> View:
        """The backward model's input: the reversed text, left to right."""
        return causal_view(reverse_sequences(batch, self.vocabulary.end))

    def backward_log_prob(self, network: Network, batch: Batch) -> LogProbs:
        """Log-probabilities of the backward model, by position in the reversed text."""
        view = self.backward_view(batch)
        predictions = network.predict(view, self.backward(view))
        return LogProbs(per_token=predictions.to_dense(), kind=self.kind)

    def backward_layers(self, batch: Batch) -> list[Tensor]:
        """Embeddings and layers of the backward model, (B, T, W) each, by position in the text.

        The hidden state at a position has seen the tokens from the end of the text down to its own.
        """
        backward = reverse_sequences(batch, self.vocabulary.end)
        view = View(inputs=backward.tokens, lengths=backward.lengths, attention_mask=CausalMask())
        layers = self.backward.all_layers(view)
        # Position t has index n + 1 - t in the reversed text, after the start token. The end token
        # takes the vectors of the reversed start; the start token has seen everything.
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        mirrored = last_token_positions(batch, self.vocabulary.end)[:, None] + 1 - positions
        index = mirrored.clamp(min=0).minimum((batch.lengths - 1)[:, None])[..., None]
        return [layer.gather(1, index.expand(-1, -1, layer.shape[-1])) for layer in layers]


def last_token_positions(batch: Batch, end: int | None) -> Tensor:
    """(B,) position of each text's last token before the end token; 0 if the text is empty."""
    last = (batch.lengths - 1).clamp(min=0)
    ended = batch.tokens.gather(1, last[:, None]).squeeze(1) == (-1 if end is None else end)
    return (last - ended.long()).clamp(min=0)


def reverse_sequences(batch: Batch, end: int | None) -> Batch:
    """The texts reversed; the first token and a closing end token keep their positions."""
    last = last_token_positions(batch, end)[:, None]
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    inside = (positions >= 1) & (positions <= last)
    index = torch.where(inside, last + 1 - positions, positions)
    return replace(batch, tokens=batch.tokens.gather(1, index), continues_previous=False)
