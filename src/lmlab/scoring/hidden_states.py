"""Hidden states of one layer of a system: 0 is the embeddings, n the output of the n-th layer.

The numbering is that of transformers' `output_hidden_states`: layer i is the input of layer i + 1,
and the last one is the network's output (after a final norm, where there is one).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.backbones.recurrent import Recurrent
from lmlab.backbones.set_transformer import SetTransformer
from lmlab.backbones.star_transformer import StarTransformer
from lmlab.backbones.transformer import TransformerStack
from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import (
    device_of,
    evaluation_mode,
)
from lmlab.core.protocols import EncodeTokens
from lmlab.core.state import TensorState
from lmlab.core.system import System
from lmlab.core.view import View
from lmlab.layers.attention_context import AttentionContext
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.models.initial_state_mixture import (
    LOG_WEIGHTS,
    InitialStateMixtureLM,
    StateMixtureLM,
)


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
    begun = system.begin(len(batch)).tensors
    start = TensorState({name: each[:, 0] for name, each in begun.items() if name != LOG_WEIGHTS})
    return system.hidden(view, start).values


def _learned_start(system: StateMixtureLM) -> bool:
    """Whether there is a single initial state, so that nothing is mixed."""
    return isinstance(system, InitialStateMixtureLM) and system.count == 1


class LayerStates:
    """Hidden states of one layer; a UserError where the system has no such layer."""

    def __init__(self, system: System, name: str, layer: int) -> None:
        self.system = system
        self.modules = _layer_modules(system)
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
        with _recording(self.modules) as inputs:
            token_states(self.system, batch)
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
            with _recording(self.modules) as inputs:
                token_states(self.system, batch)
        return len(inputs)


def _layer_modules(system: System) -> list[nn.Module]:
    """The modules that are layers; one with shared weights (ALBERT) is listed once.

    Blocks elsewhere (in a memory between the layers) are not layers of the network.
    """
    backbone = getattr(system, "backbone", None)
    if isinstance(backbone, Recurrent):
        return list(backbone.cells)
    found: dict[nn.Module, None] = {}
    for module in system.modules():
        if isinstance(module, TransformerStack):
            found.update(dict.fromkeys(module.blocks))
        elif isinstance(module, (SetTransformer, StarTransformer)):
            found.update(dict.fromkeys(module.layers))
    return list(found)


@contextmanager
def _recording(modules: list[nn.Module]) -> Iterator[list[Tensor]]:
    """Record the inputs (B, T, W) of the modules, call by call."""
    inputs: list[Tensor] = []

    def note(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        values, scope = arguments[0], arguments[1]
        alike = scope.shared_prefixes if isinstance(scope, AttentionContext) else None
        inputs.append(values if alike is None else alike.expand(values))

    handles = [module.register_forward_pre_hook(note) for module in modules]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()
