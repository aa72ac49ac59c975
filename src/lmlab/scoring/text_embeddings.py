"""Text and token embeddings: a system's hidden states, of any layer, pooled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.options import takes
from lmlab.core.protocols import Encode, EncodeTokens
from lmlab.core.retrieval_protocols import WithDocuments
from lmlab.core.state import TensorState
from lmlab.core.system import System
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.view import View
from lmlab.data.batches import preferred_tokens_per_batch
from lmlab.data.corpus import Layout
from lmlab.layers.stack import LayerPass, Stack
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.models.initial_state_mixture import LOG_WEIGHTS, InitialStateMixtureLM, StateMixtureLM
from lmlab.scoring.encoded_texts import FramedText, frame_text, framed_batches
from lmlab.scoring.scorer import chunk_texts
from lmlab.scoring.scoring_options import EmbeddingOptions


@runtime_checkable
class EncodeLayers(Protocol):
    """A system that returns all its layers by itself (ELMo)."""

    def encode_layers(self, batch: Batch) -> list[Tensor]:
        """(B, T, W) of the embeddings and of each layer."""
        ...


def has_token_states(system: System) -> bool:
    """Whether a system has one hidden state per position."""
    if isinstance(system, EncodeTokens):
        return True
    if not isinstance(system, AutoregressiveLM) or system.backbone.output_kind != "vectors":
        return False
    # A mixture of initial states has one hidden state per component, and no single one.
    return not isinstance(system, StateMixtureLM) or _learned_start(system)


def token_states(system: System, batch: Batch) -> Tensor:
    """Hidden states (B, T, W) at each position of a batch."""
    if isinstance(system, EncodeTokens):
        return system.encode_tokens(batch)
    assert isinstance(system, AutoregressiveLM) and has_token_states(system)
    view = View(inputs=batch.tokens, lengths=batch.lengths, attention_mask=CausalMask())
    if not isinstance(system, InitialStateMixtureLM):
        return system.hidden(view).values
    initial = system.begin(len(batch)).tensors
    start = TensorState(
        {name: value[:, 0] for name, value in initial.items() if name != LOG_WEIGHTS}
    )
    return system.hidden(view, start).values


def _learned_start(system: StateMixtureLM) -> bool:
    """Whether there is a single initial state, so that nothing is mixed."""
    return isinstance(system, InitialStateMixtureLM) and system.count == 1


class LayerStates:
    """Hidden states of one layer; a UserError where the system has no such layer."""

    def __init__(self, system: System, name: str, layer: int) -> None:
        self.system = system
        self.stacks = _layer_stacks(system)
        self.depth = self._count()
        """Number of layers above the embeddings."""
        if not self.depth:
            raise UserError(f"--layer does not apply to {name}: it has no layers; remove it.")
        if not -self.depth - 1 <= layer <= self.depth:
            raise UserError(
                f"--layer must be between {-self.depth - 1} and {self.depth} for this {name} (0 is "
                f"the embeddings, {self.depth} and -1 the last layer), got {layer}."
            )
        self.layer = layer % (self.depth + 1)

    def __call__(self, batch: Batch) -> Tensor:
        """Hidden states (B, T, W) of the layer."""
        if isinstance(self.system, EncodeLayers):
            return self.system.encode_layers(batch)[self.layer]
        if self.layer == self.depth:
            return token_states(self.system, batch)
        with _recorded_passes(self.stacks) as passes:
            token_states(self.system, batch)
        inputs = _layer_inputs(passes)
        assert len(inputs) % self.depth == 0, "every layer is called as often"
        # A text may be encoded in several segments, each of which passes through all layers.
        values = torch.cat(inputs[self.layer :: self.depth], 1)
        # Zeros at a start token that is no encoder input (T5), as in `encode_tokens`.
        return F.pad(values, (0, 0, batch.tokens.shape[1] - values.shape[1], 0))

    def _count(self) -> int:
        vocabulary, device = self.system.vocabulary, device_of(self.system)
        batch = Batch.collate([[vocabulary.bos]], vocabulary.pad).to(device)
        with evaluation_mode(self.system):
            if isinstance(self.system, EncodeLayers):
                return len(self.system.encode_layers(batch)) - 1
            with _recorded_passes(self.stacks) as passes:
                token_states(self.system, batch)
        return len(_layer_inputs(passes))


def _layer_stacks(system: System) -> list[Stack]:
    """The stacks of layers; blocks elsewhere (in a memory between the layers) are no layers."""
    return [module for module in system.modules() if isinstance(module, Stack)]


@contextmanager
def _recorded_passes(stacks: list[Stack]) -> Iterator[list[LayerPass]]:
    """Record the passes through several stacks, in their order."""
    passes: list[LayerPass] = []
    with ExitStack() as recordings:
        for stack in stacks:
            recordings.enter_context(stack.recorded_passes(passes))
        yield passes


def _layer_inputs(passes: list[LayerPass]) -> list[Tensor]:
    """The input (B, T, W) of each layer that was called, call by call."""
    return [values for layer_pass in passes for values in layer_pass[:-1]]


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

    @takes(EmbeddingOptions)
    def __init__(
        self,
        system: System,
        tokenizer: TokenizerProtocol,
        layout: Layout,
        name: str,
        options: EmbeddingOptions,
    ) -> None:
        per_token, layer, pooling = options.per_token, options.layer, options.pooling
        self.system, self.tokenizer, self.layout = system, tokenizer, layout
        self.per_token = per_token
        _check_system(system, name, per_token=per_token, layer=layer)
        self.pooling = _checked_pooling(system, name, pooling, per_token=per_token, layer=layer)
        self._states: Callable[[Batch], Tensor] = (
            (lambda batch: token_states(system, batch))
            if layer is None
            else LayerStates(system, name, layer)
        )
        self.longest = _max_length(system)
        self.tokens_per_batch = options.tokens_per_batch or preferred_tokens_per_batch(system)
        self.progress = options.progress or (lambda tokens: None)

    def encode(self, texts: Iterable[str]) -> Iterator[TextEmbedding]:
        """Embed each text, in order."""
        retain_freed_memory()
        for chunk in chunk_texts(texts, size=len):
            yield from self._encode_chunk(chunk)

    def _encode_chunk(self, texts: Sequence[str]) -> Iterator[TextEmbedding]:
        rows = [frame_text(self.tokenizer, self.layout, text, self.longest) for text in texts]
        embeddings: dict[int, TextEmbedding] = {}
        pad = self.tokenizer.vocabulary.pad
        for group, batch in framed_batches(rows, self.tokens_per_batch, self.system, pad):
            with evaluation_mode(self.system), torch.random.fork_rng():
                torch.manual_seed(0)  # a sampled latent gives the same vector each time
                vectors = self._vectors(batch, [rows[index] for index in group])
            for index, vector in zip(group, vectors, strict=True):
                embeddings[index] = self._record(rows[index], vector.float().cpu().numpy())
            self.progress(int(batch.lengths.sum()))
        for index in range(len(rows)):
            yield embeddings[index]

    def _vectors(self, batch: Batch, rows: Sequence[FramedText]) -> list[Tensor]:
        """Per row (W,), or (T, W) for its tokens."""
        if self.pooling == OWN_POOLING:
            assert isinstance(self.system, Encode)
            return list(self.system.encode(batch))
        states = self._states(batch)
        # Contiguous copies, or a record would keep its whole batch in memory.
        row_states = [states[index, : len(row.ids)] for index, row in enumerate(rows)]
        if self.per_token:
            return [vectors.clone() for vectors in row_states]
        return [
            _pooled(vectors, row.text_positions, self.pooling)
            for vectors, row in zip(row_states, rows, strict=True)
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
            special=tuple(position not in row.text_positions for position in range(len(row.ids))),
            truncated=row.truncated,
        )


def _pooled(states: Tensor, text_positions: range, pooling: str) -> Tensor:
    """Pool the hidden states (T, W) of one text to (W,); an empty text has its start token."""
    if pooling == FIRST_TOKEN or not text_positions:
        return states[0].clone()
    return POOLING_FUNCTIONS[pooling](states[text_positions.start : text_positions.stop]).clone()


def _max_length(system: System) -> int | None:
    """Maximum input length of the system, special tokens included."""
    if isinstance(system, WithDocuments):
        return system.max_document_length
    return None if system.window is None else system.window + 1


def _check_system(system: System, name: str, *, per_token: bool, layer: int | None) -> None:
    """A UserError where the system has no such embeddings."""
    if system.input_kind == "images":
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
    has_own = isinstance(system, Encode)
    if pooling is None:
        return OWN_POOLING if has_own and layer is None else "mean"
    if pooling == OWN_POOLING and layer is not None:
        raise UserError("--pooling own does not apply to --layer; choose mean, max, last or first.")
    if pooling == OWN_POOLING and not has_own:
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
