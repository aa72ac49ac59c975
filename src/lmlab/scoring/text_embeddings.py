"""Text and token embeddings: a system's hidden states, of any layer, pooled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Encode, WithDocuments
from lmlab.core.system import System
from lmlab.data.collation import preferred_tokens_per_batch
from lmlab.data.corpus import Layout
from lmlab.models.image_to_text import ImageToTextLM
from lmlab.models.initial_state_mixture import StateMixtureLM
from lmlab.scoring.framed_texts import FramedText, frame_text, framed_batches
from lmlab.scoring.hidden_states import (
    LayerStates,
    has_token_states,
    token_states,
)
from lmlab.scoring.scorer import chunk_texts

Floats = NDArray[np.float32]
OWN_POOLING = "own"
POOLING_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.amax(0),
    "last": lambda states: states[-1],
}
"""Pooling: from the hidden states (T, W) of a text's own tokens to one vector (W,)."""
FIRST_TOKEN = "first"
"""The hidden state of the first position, <s> or [CLS]."""
POOLING_CHOICES = (OWN_POOLING, *POOLING_FUNCTIONS, FIRST_TOKEN)
EXAMPLE_SYSTEMS = "such as bert, gpt or lstm"


@dataclass(frozen=True, kw_only=True, eq=False)
class TextEmbedding:
    """A text with its embedding, or with an embedding per token."""

    text: str
    vector: Floats | None
    """(W,) of the whole text; None for token embeddings."""
    token_vectors: Floats | None = None
    """(T, W) of each token, special tokens included; None unless requested."""
    tokens: tuple[str, ...] = ()
    """(T,) as spelled in the vocabulary."""
    spans: tuple[tuple[int, int], ...] = ()
    """(T,) the characters [start, end) of each token; empty for special tokens."""
    special: tuple[bool, ...] = ()
    """(T,) whether a token is a special one (<s>, </s>)."""
    truncated: bool = False
    """Whether the text exceeds the model's maximum length, so that its end was dropped."""


class TextEmbedder:
    """Text encoder: embeds texts by one system, in batches of similar length and bounded memory.

    `layer` counts from 0, the embeddings; negative numbers from the last layer, -1. Without it the
    vectors are the system's output. `pooling`: mean, max or last over the text's own tokens, first
    for the first position, own for the vector that the system defines (`Encode`). Default: own
    where there is one and no layer is chosen, else mean.
    """

    def __init__(
        self,
        system: System,
        tokenizer: Any,
        layout: Layout,
        *,
        name: str,
        per_token: bool = False,
        layer: int | None = None,
        pooling: str | None = None,
        tokens_per_batch: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.system, self.tokenizer, self.layout = system, tokenizer, layout
        self.per_token = per_token
        _check_system(system, name, per_token=per_token, layer=layer)
        self.pooling = _checked_pooling(system, name, pooling, per_token=per_token, layer=layer)
        self._states: Callable[[Batch], Tensor] = (
            (lambda batch: token_states(system, batch))
            if layer is None
            else LayerStates(system, name, layer)
        )
        self.longest = _longest(system)
        self.tokens_per_batch = tokens_per_batch or preferred_tokens_per_batch(system)
        self.progress = progress or (lambda tokens: None)

    def encode(self, texts: Iterable[str]) -> Iterator[TextEmbedding]:
        """Embed each text, in order."""
        retain_freed_memory()
        for chunk in chunk_texts(texts, size=len):
            yield from self._encode_chunk(chunk)

    def _encode_chunk(self, texts: Sequence[str]) -> Iterator[TextEmbedding]:
        rows = [frame_text(self.tokenizer, self.layout, text, self.longest) for text in texts]
        found: dict[int, TextEmbedding] = {}
        pad = self.tokenizer.vocabulary.pad
        for group, batch in framed_batches(rows, self.tokens_per_batch, self.system, pad):
            with evaluation_mode(self.system), torch.random.fork_rng():
                torch.manual_seed(0)  # a sampled latent gives the same vector each time
                vectors = self._vectors(batch, [rows[index] for index in group])
            for index, vector in zip(group, vectors, strict=True):
                found[index] = self._record(rows[index], vector.float().cpu().numpy())
            self.progress(int(batch.lengths.sum()))
        for index in range(len(rows)):
            yield found[index]

    def _vectors(self, batch: Batch, rows: Sequence[FramedText]) -> list[Tensor]:
        """Per row (W,), or (T, W) for its tokens."""
        if self.pooling == OWN_POOLING:
            assert isinstance(self.system, Encode)
            return list(self.system.encode(batch))
        states = self._states(batch)
        # Contiguous copies, or a record would keep its whole batch in memory.
        each = [states[place, : len(row.ids)] for place, row in enumerate(rows)]
        if self.per_token:
            return [vectors.clone() for vectors in each]
        return [
            _pooled(vectors, row.text_positions, self.pooling)
            for vectors, row in zip(each, rows, strict=True)
        ]

    def _record(self, row: FramedText, vector: Floats) -> TextEmbedding:
        if not self.per_token:
            return TextEmbedding(text=row.text, vector=vector, truncated=row.truncated)
        return TextEmbedding(
            text=row.text,
            vector=None,
            token_vectors=vector,
            tokens=tuple(self.tokenizer.token(id) for id in row.ids),
            spans=tuple(row.spans),
            special=tuple(place not in row.text_positions for place in range(len(row.ids))),
            truncated=row.truncated,
        )


def _pooled(states: Tensor, own: range, pooling: str) -> Tensor:
    """Pool the hidden states (T, W) of one text to (W,); an empty text has its start token."""
    if pooling == FIRST_TOKEN or not own:
        return states[0].clone()
    return POOLING_FUNCTIONS[pooling](states[own.start : own.stop]).clone()


def _longest(system: System) -> int | None:
    """Maximum input length of the system, special tokens included."""
    if isinstance(system, WithDocuments):
        return system.max_document_length
    return None if system.window is None else system.window + 1


def _check_system(system: System, name: str, *, per_token: bool, layer: int | None) -> None:
    """A UserError where the system has no such embeddings."""
    if isinstance(system, ImageToTextLM):
        raise UserError(f"{name} encodes images with their labels; a text alone has no vector.")
    if isinstance(system, StateMixtureLM) and not has_token_states(system):
        raise UserError(
            f"{name} mixes {system.count} initial states, so a token has {system.count} hidden "
            f"states and no vector of its own; train it with --set "
            f"{system.single_state_setting} to encode texts."
        )
    if not has_token_states(system) and (per_token or layer is not None):
        option = "--per-token" if per_token else "--layer"
        raise UserError(
            f"{option} does not apply to {name}: it has no hidden state for each token; use a "
            f"system that has, {EXAMPLE_SYSTEMS}."
        )
    if not has_token_states(system) and not isinstance(system, Encode):
        raise UserError(
            f"{name} has no hidden states to encode texts with; use a system that has, "
            f"{EXAMPLE_SYSTEMS}."
        )


def _checked_pooling(
    system: System, name: str, pooling: str | None, *, per_token: bool, layer: int | None
) -> str:
    """The pooling to use; "" for token embeddings."""
    if pooling is not None and pooling not in POOLING_CHOICES:
        raise unknown_name("pooling", pooling, POOLING_CHOICES)
    if per_token:
        if pooling is not None:
            raise UserError("--pooling does not apply to --per-token; remove one of them.")
        return ""
    defines = isinstance(system, Encode)
    if pooling is None:
        return OWN_POOLING if defines and layer is None else "mean"
    if pooling == OWN_POOLING and layer is not None:
        raise UserError("--pooling own does not apply to --layer; choose mean, max, last or first.")
    if pooling == OWN_POOLING and not defines:
        raise UserError(
            f"--pooling own does not apply to {name}: it defines no vector of a text; choose mean, "
            "max, last or first."
        )
    if pooling != OWN_POOLING and not has_token_states(system):
        raise UserError(
            f"--pooling {pooling} does not apply to {name}: it has no hidden state for each token; "
            "remove it."
        )
    return pooling
