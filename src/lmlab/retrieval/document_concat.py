"""Concatenation of texts with retrieved documents (REALM's knowledge-augmented encoder)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.parts import Backbone, HiddenStates
from lmlab.core.retrieval_protocols import RetrievedDocuments
from lmlab.core.state import State
from lmlab.core.view import View
from lmlab.retrieval.document_memory import DocumentMemory
from lmlab.retrieval.retriever import Retriever


def concatenate_rows(first: Batch, second: Batch, pad: int) -> Batch:
    """Each row of the first, followed by that of the second without its start token."""
    lengths = first.lengths + second.lengths - 1
    index = torch.arange(int(lengths.max()) if len(lengths) else 0, device=lengths.device)
    index = index.expand(len(lengths), -1)
    second_start = first.lengths[:, None] - 1  # position of the second's start token
    earlier = first.tokens.gather(1, index.clamp(max=first.tokens.shape[1] - 1))
    later = second.tokens.gather(1, (index - second_start).clamp(0, second.tokens.shape[1] - 1))
    tokens = torch.where(index <= second_start, earlier, later)
    return Batch(
        tokens=tokens.masked_fill(index >= lengths[:, None], pad), lengths=lengths, rows=first.rows
    )


class KnowledgeAugmentedEncoder(Backbone):
    """REALM: h_m = encoder(<s> x </s> z_m </s>) at the positions of x, weighted by p(z_m | x).

    Guu et al. 2020. The documents are mixture components, mixed after the emission. Inputs (B, T),
    values (B, T, M, W); cost M times the encoder's, on texts longer by a document.
    """

    output_kind: ClassVar[str] = "components"
    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, encoder: Backbone, retriever: Retriever) -> None:
        super().__init__()
        self.encoder = encoder
        self.retriever = retriever
        self.width = encoder.width
        if encoder.max_positions is not None:
            # A document follows its text, without a start token.
            document = retriever.memory.max_document_length - 1
            self.max_positions = encoder.max_positions - document

    def find(self, view: View, *, clean: Batch | None = None) -> RetrievedDocuments:
        """Retrieve documents for the input of a view."""
        return self.retriever.find(view_batch(view), clean=clean)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        retrieved = self.find(view)
        augmented, _ = concatenate_documents(view, retrieved.numbers, self.retriever.memory)
        values = self.encoder(augmented).values[:, : view.inputs.shape[1]]
        values = values.unflatten(0, retrieved.numbers.shape).transpose(1, 2)
        weights = retrieved.log_probs[:, None].expand(*values.shape[:3])
        return HiddenStates(values=values, log_weights=weights)

    def components_at(self, view: View, target_mask: Tensor, numbers: Tensor) -> Tensor:
        """(N, M, W) hidden states at `target_mask` (B, T) given each of the documents (B, M)."""
        augmented, time = concatenate_documents(view, numbers, self.retriever.memory)
        rows, choices = numbers.shape
        repeated = target_mask[:, None].expand(rows, choices, -1)
        positions = F.pad(repeated.flatten(0, 1), (0, time - target_mask.shape[1]))
        hidden = self.encoder.hidden_at(augmented, positions)
        # From document-major to position-major order.
        row, choice, position = repeated.nonzero(as_tuple=True)
        order = ((row * target_mask.shape[1] + position) * choices + choice).argsort()
        components: Tensor = hidden[order].unflatten(0, (-1, choices))
        return components


def view_batch(view: View) -> Batch:
    """The input of a view as a batch of retrieval queries."""
    rows = torch.arange(len(view.inputs), device=view.inputs.device)
    return Batch(tokens=view.inputs, lengths=view.lengths, rows=rows)


def concatenate_documents(view: View, numbers: Tensor, memory: DocumentMemory) -> tuple[View, int]:
    """`<s> x </s> z </s>` of each row with each of its documents (B, M), and its width.

    B · M rows, the documents of a text consecutive; x is segment 0 and z segment 1.
    """
    texts, choices = view_batch(view), numbers.shape[1]
    text_rows = torch.arange(len(texts), device=numbers.device).repeat_interleave(choices)
    rows = concatenate_rows(
        texts.select(text_rows), memory.batch(numbers.flatten()), memory.vocabulary.pad
    )
    # Padding may exceed the longest text with its document.
    time = max(rows.tokens.shape[1], view.inputs.shape[1])
    tokens = F.pad(rows.tokens, (0, time - rows.tokens.shape[1]), value=memory.vocabulary.pad)
    position = torch.arange(time, device=tokens.device)
    segments = (position >= texts.lengths[text_rows][:, None]).long()
    result = View(inputs=tokens, lengths=rows.lengths, attention_mask=FullMask(), segments=segments)
    return result, time
