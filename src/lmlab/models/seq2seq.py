"""Encoder-decoder language models (seq2seq), pointer-generators and image-to-text models.

p(text | source), decoded from left to right; the source of an image-to-text model is an image.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lmlab.backbones.backbone_interfaces import (
    CopyHiddenStates,
    CopyState,
    EncoderDecoderBackbone,
    ImageTextBackbone,
)
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.parts import HiddenStates, Predictions, prediction_mask
from lmlab.core.state import State
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import View
from lmlab.models.causal_lm import CausalLM, DecodingState
from lmlab.objectives.conditional_lm import ImageConditionalLM
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
        values, mask = self.encode_tokens(batch), batch.mask()
        return (values * mask[..., None]).sum(1) / batch.lengths[:, None]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) the encoder's hidden states of a text."""
        view = self.objective.source_view(batch, len(batch), batch.tokens.device)
        return self.backbone.run_encoder(view)


class ImageToTextLM(CausalLM):
    """Image-to-text LM by one stack: the start token is the patches' class token (ViT).

    It predicts the first word from all patches.
    """

    input_kind = "images"
    backbone: ImageTextBackbone
    objective: ImageConditionalLM

    def setup_tokenizer(self, tokenizer: TokenizerProtocol) -> None:
        self.objective.setup_tokenizer(tokenizer)

    def check_condition_length(self, tokens: int) -> None:
        """No check: pixels are not text, and their number is checked when they are encoded."""
        return

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        """The state of `rows` texts before their first token, each given its image."""
        device = next(self.parameters()).device
        view = self.objective.source_view(condition, rows, device)
        hidden = self.backbone.encode_image(view)
        assert hidden.state is not None
        return DecodingState(hidden.state, hidden.values[:, -1], None)

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the class token's hidden state: an encoding of the image."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states, each conditioned on the image and the tokens up to its own."""
        image = self.objective.source_view(batch.condition, len(batch), batch.tokens.device)
        text = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=CausalMask())
        return self.hidden(replace(image, decoder=text)).values


class PointerGenerator(EncoderDecoderLM):
    """Pointer-generator: p(k) = λ p_generate(k) + p_copy(k); the backbone's pointer copies."""

    predicts_by_hidden_state = False

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        assert isinstance(hidden, CopyHiddenStates)
        target_mask = prediction_mask(view)
        assert view.prediction_view.targets is not None
        targets = view.prediction_view.targets[target_mask]
        generated = self.emission.log_prob(hidden.values[target_mask], targets)
        log_probs = hidden.copy_distribution.log_prob(generated, target_mask, targets)
        return Predictions(log_probs=log_probs, target_mask=target_mask, state=hidden.state)

    def peek(self, state: DecodingState) -> Categorical:
        memory: CopyState = state.memory  # type: ignore[assignment]
        return Categorical(
            memory.copy_distribution.log_probs(self.emission.log_probs(state.values))
        )
