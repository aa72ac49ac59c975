"""Vision Transformer (ViT) backbone: image patches as tokens, followed by text."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import ImageTextBackbone
from lmlab.backbones.transformer import Transformer
from lmlab.core.attention_mask import CausalMask, ExplicitMask, FullMask
from lmlab.core.capture import Capture
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State
from lmlab.core.view import View


class VisionTransformer(ImageTextBackbone):
    """ViT: h = Transformer([e(<s>); E x_1 … E x_P; e(s_1) …]) (Dosovitskiy et al. 2021).

    <s> is the class token: it and the patches attend to each other, and it predicts the first word.
    Further words, if a text has more than a label, attend to all before them. The view is the
    image's, its inputs vectors (B, P, D); its `decoder` is the text's, inputs (B, T), and hidden
    states are those of the text, (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask)

    def __init__(
        self,
        tokens: nn.Embedding,
        patches: nn.Linear,
        transformer: Transformer,
        *,
        start: int,
        max_positions: int | None = None,
    ) -> None:
        """`max_positions`: of a text, besides the patches."""
        super().__init__()
        self.max_positions = max_positions
        self.tokens = tokens
        self.patches = patches
        self.transformer = transformer
        self.start = start
        self.width = transformer.width

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        if state is not None:
            further: HiddenStates = self.transformer(
                replace(view, inputs=self.tokens(view.inputs)), state
            )
            return further
        values = self.transformer.read(self.image_text_view(view))
        # The first position of the text is before the patches, the others after them.
        return HiddenStates(
            values=torch.cat([values[:, :1], values[:, 1 + view.inputs.shape[1] :]], 1)
        )

    def encode_image(self, view: View) -> HiddenStates:
        rows = len(view.inputs)
        start_tokens = torch.full((rows, 1), self.start, device=view.inputs.device)
        inputs = self.vectors(view.inputs, start_tokens)
        image = View(inputs=inputs, lengths=view.lengths + 1, attention_mask=FullMask())
        hidden: HiddenStates = self.transformer(image, self.transformer.initial_state(rows))
        return HiddenStates(values=hidden.values[:, :1], state=hidden.state)

    def image_text_view(self, view: View) -> View:
        """Image and text in one row: <s>, the patches, the words."""
        text, (rows, count, _) = view.decoder, view.inputs.shape
        assert text is not None, "a text is predicted given an image"
        inputs = self.vectors(view.inputs, text.inputs)
        position = torch.arange(inputs.shape[1], device=inputs.device)
        visible = position[None, :] <= position[:, None].clamp(min=count)
        return View(
            inputs=inputs,
            lengths=count + text.lengths,
            attention_mask=ExplicitMask(visible.expand(rows, -1, -1)),
        )

    def vectors(self, image: Tensor, tokens: Tensor) -> Tensor:
        """(B, P + T, E) the vectors of <s>, of the patches (B, P, D), of the further tokens."""
        words = self.tokens(tokens)
        return torch.cat([words[:, :1], self.patches(image), words[:, 1:]], dim=1)

    def capture_internals(self, view: View) -> dict[str, Capture]:
        """Every layer's attention and hidden states over <s>, the patches and the words."""
        return self.transformer.capture_internals(self.image_text_view(view))
