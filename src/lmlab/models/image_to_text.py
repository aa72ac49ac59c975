"""Image-to-text models: captioning, and classification as a caption of one word."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lmlab.backbones.backbone_interfaces import ImageTextBackbone
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.protocols import TokenizerProtocol
from lmlab.core.view import View
from lmlab.models.causal_lm import DecodingState
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.objective_interfaces import ImageTextObjective


class ImageToTextLM(EncoderDecoderLM):
    """Image-to-text LM by one stack: the start token is the patches' class token (ViT).

    It predicts the first word from all patches.
    """

    backbone: ImageTextBackbone
    objective: ImageTextObjective

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
