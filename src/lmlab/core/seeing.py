"""Systems that write a text beside an image; a label is a text of one word."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.parts import Hidden
from lmlab.core.protocols import Pieces
from lmlab.core.system import SteppingState
from lmlab.core.view import View
from lmlab.core.visibility import Causal
from lmlab.core.writing import SequenceToSequence, SourceBackbone, SourceObjective


class SeeingBackbone(SourceBackbone):
    """A backbone that reads the start symbol together with an image."""

    def opened(self, view: View) -> Hidden:
        """(B, 1, W) the start symbol's hidden state beside an image, and the state after it."""
        raise TypeError(f"{type(self).__name__} does not define opened")

    def joined(self, view: View) -> View:
        """Image and text in one row, as the stack reads them: <s>, the patches, the words."""
        raise TypeError(f"{type(self).__name__} does not define joined")


class SeeingObjective(SourceObjective):
    """An objective whose source is an image, told as a text of numbers."""

    def meet_tokenizer(self, pieces: Pieces) -> None:
        """Told which tokens are numbers."""
        raise TypeError(f"{type(self).__name__} does not define meet_tokenizer")


class Seeing(SequenceToSequence):
    """p(text | image), read by one stack: the start symbol stands among the patches as their class
    token, so that the first word is predicted from what it has seen of all of them."""

    backbone: SeeingBackbone
    objective: SeeingObjective

    def meet_tokenizer(self, tokenizer: Pieces) -> None:
        self.objective.meet_tokenizer(tokenizer)

    def check_condition_length(self, tokens: int) -> None:
        """Nothing: the pixels of an image are no text, and they are counted when it is read."""
        return

    def start(self, rows: int, *, condition: Batch | None = None) -> SteppingState:
        """The state of `rows` texts before their first token, each given its image."""
        device = next(self.parameters()).device
        view = self.objective.source_view(condition, rows, device)
        hidden = self.backbone.opened(view)
        assert hidden.state is not None
        return SteppingState(hidden.state, hidden.values[:, -1], None)

    def encode(self, batch: Batch) -> Tensor:
        """(B, W) the class token's hidden state: the image that each text of the batch is given."""
        return self.encode_tokens(batch)[:, 0]

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states, each of which has read the image and all tokens before."""
        image = self.objective.source_view(batch.condition, len(batch), batch.tokens.device)
        text = View(inputs=batch.tokens, lengths=batch.lengths, visibility=Causal())
        return self.hidden(replace(image, decoder=text)).values
