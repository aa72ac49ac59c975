"""Encoder-decoder language models (seq2seq): p(text | source), decoded from left to right."""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import EncoderDecoderBackbone
from lmlab.core.batch import Batch
from lmlab.core.state import State
from lmlab.models.causal_lm import (
    CausalLM,
    DecodingState,
)
from lmlab.objectives.objective_interfaces import Seq2SeqObjective


class EncoderDecoderLM(CausalLM):
    """Encoder-decoder: an autoregressive decoder conditioned on a source, p(text | source)."""

    backbone: EncoderDecoderBackbone
    objective: Seq2SeqObjective

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        """The state of `rows` texts before their first token, each given its source."""
        device = next(self.parameters()).device
        view = self.objective.source_view(condition, rows, device)
        memory: State = self.backbone.init_decoder(view)
        for token in self.objective.decoder_prefix():
            state = self._step(memory, torch.full((rows,), token, device=device))
            memory = state.memory
        return state

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the mean of the encoder's hidden states over a text."""
        values, real = self.encode_tokens(batch), batch.mask()
        return (values * real[..., None]).sum(1) / batch.lengths[:, None]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states of a text."""
        view = self.objective.source_view(batch, len(batch), batch.tokens.device)
        return self.backbone.run_encoder(view)
