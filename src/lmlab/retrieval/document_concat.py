"""Texts beside several documents each: their state while they are written, and what is read."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.protocols import RetrievedDocuments
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.retriever import Retriever


def concatenate_rows(first: Batch, second: Batch, pad: int) -> Batch:
    """Each row of the first, and after it that of the second without its start symbol."""
    lengths = first.lengths + second.lengths - 1
    place = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
    place = place.expand(len(lengths), -1)
    begins = first.lengths[:, None] - 1  # where the second's start symbol would stand
    earlier = first.tokens.gather(1, place.clamp(max=first.tokens.shape[1] - 1))
    later = second.tokens.gather(1, (place - begins).clamp(0, second.tokens.shape[1] - 1))
    tokens = torch.where(place <= begins, earlier, later)
    return Batch(
        tokens=tokens.masked_fill(place >= lengths[:, None], pad),
        lengths=lengths,
        rows=first.rows,
    )


class KnowledgeAugmentedEncoder(Backbone):
    """h_m = reader(<s> x </s> z_m </s>) at the places of x, weighed by p(z_m | x).

    Guu et al. 2020. The documents are components, which are mixed after the emission. Inputs
    (B, T), values (B, T, M, W); cost M times the reader's, on texts longer by a document.
    """

    output_kind: ClassVar[str] = "components"
    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, reader: Backbone, retriever: Retriever) -> None:
        super().__init__()
        self.encoder = reader
        self.retriever = retriever
        self.width = reader.width

    def find(self, view: View, *, clean: Batch | None = None) -> RetrievedDocuments:
        """The documents for what a view shows."""
        return self.retriever.find(view_batch(view), clean=clean)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        found = self.find(view)
        beside, _ = concatenate_documents(view, found.numbers, self.retriever.memory)
        values = self.encoder(beside).values[:, : view.inputs.shape[1]]
        values = values.unflatten(0, found.numbers.shape).transpose(1, 2)
        weights = found.log_probs[:, None].expand(*values.shape[:3])
        return HiddenStates(values=values, log_weights=weights)

    def components_at(self, view: View, places: Tensor, numbers: Tensor) -> Tensor:
        """(N, M, W) hidden states at `places` (B, T) beside each of the documents (B, M)."""
        beside, time = concatenate_documents(view, numbers, self.retriever.memory)
        rows, choices = numbers.shape
        repeated = places[:, None].expand(rows, choices, -1)
        asked = F.pad(repeated.flatten(0, 1), (0, time - places.shape[1]))
        found = self.encoder.hidden_at(beside, asked)
        # They came document by document; they go place by place.
        row, choice, place = repeated.nonzero(as_tuple=True)
        order = ((row * places.shape[1] + place) * choices + choice).argsort()
        return found[order].unflatten(0, (-1, choices))


def view_batch(view: View) -> Batch:
    """What a view shows, as the texts that documents are found for."""
    rows = torch.arange(len(view.inputs), device=view.inputs.device)
    return Batch(tokens=view.inputs, lengths=view.lengths, rows=rows)


def concatenate_documents(view: View, numbers: Tensor, memory: DocumentMemory) -> tuple[View, int]:
    """`<s> x </s> z </s>` of each row with each of its documents (B, M), and how long that is.

    B · M rows, the documents of a text one after another; x is segment 0 and z segment 1.
    """
    texts, choices = view_batch(view), numbers.shape[1]
    each = torch.arange(len(texts), device=numbers.device).repeat_interleave(choices)
    rows = concatenate_rows(
        texts.select(each), memory.batch(numbers.flatten()), memory.vocabulary.pad
    )
    # A row may be padded further than any text with its document is long.
    time = max(rows.tokens.shape[1], view.inputs.shape[1])
    tokens = F.pad(rows.tokens, (0, time - rows.tokens.shape[1]), value=memory.vocabulary.pad)
    place = torch.arange(time, device=tokens.device)
    segments = (place >= texts.lengths[each][:, None]).long()
    made = View(inputs=tokens, lengths=rows.lengths, attention_mask=FullMask(), segments=segments)
    return made, time
