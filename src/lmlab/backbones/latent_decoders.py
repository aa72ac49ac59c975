"""Latent decoders: a latent vector to hidden states (teacher-forced, free-running, parallel)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import AutoencoderBackbone, LatentDecoder, SentenceEncoder
from lmlab.core.attention_mask import CausalMask, FullMask, NoContextMask
from lmlab.core.capture import UNIT_INTERVAL, Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.recurrent_cells import CellState, RecurrentCell


class Bottleneck(AutoencoderBackbone):
    """Bottleneck autoencoder: z = encoder(s), h = decoder(z); predictions see s through z alone.

    Given a state, the decoder continues from it and the inputs are not encoded. Inputs (B, T),
    latents (B, L), hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask,)

    def __init__(self, encoder: SentenceEncoder, decoder: LatentDecoder) -> None:
        super().__init__()
        assert encoder.width == decoder.latent, "the encoder gives the latent that is decoded"
        self.encoder = encoder
        self.decoder = decoder
        self.width = decoder.width

    def encode(self, view: View) -> Tensor:
        latents: Tensor = self.encoder(view.inputs, view.lengths)
        return latents

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.decoder.state_from_latents(self.encode(view)) if state is None else state
        hidden: HiddenStates = self.decoder(view, before)
        return hidden

    def capture_internals(self, view: View) -> dict[str, Capture]:
        return {
            "latents": Capture(
                values=self.encode(view),
                axes=("batch", "unit"),
                caption="The latent vector that each sentence is encoded to.",
            )
        }


class LatentToState(nn.Module):
    """Initial cell state from a latent: its free tensors are A z + a, (B, L) to (B, W)."""

    def __init__(self, cell: RecurrentCell, latent: int) -> None:
        super().__init__()
        self.linear = nn.Linear(latent, len(cell.free_state_names) * cell.width)

    def forward(self, cell: RecurrentCell, latents: Tensor) -> dict[str, Tensor]:
        free: CellState = self.linear(latents).chunk(len(cell.free_state_names), dim=-1)
        return dict(zip(cell.names, cell.state_from_free(free), strict=True))


def run_cell(
    cell: RecurrentCell, inputs: Tensor, before: TensorState
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run a cell over inputs (B, T, D) from a state: outputs (B, T, W), and the state after."""
    values, parts = cell(inputs, tuple(before[name] for name in cell.names))
    return values, dict(zip(cell.names, parts, strict=True))


class TeacherForcedDecoder(LatentDecoder):
    """Teacher-forced RNN decoder of a latent: h_0 = A z + a, h_t = cell(e(s_t), h_{t-1}).

    With `latent_every_step` each input is [e(s_t), z] (Bowman et al. 2016 try both), and the cell's
    input is wider by L. Inputs (B, T), hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(
        self,
        embedding: nn.Embedding,
        cell: RecurrentCell,
        *,
        latent: int,
        latent_every_step: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.latent_every_step = latent_every_step
        self.embedding = embedding
        self.cell = cell
        self.from_latent = LatentToState(cell, latent)
        self.dropout = nn.Dropout(dropout)
        self.width = cell.width

    def state_from_latents(self, latents: Tensor) -> TensorState:
        begun = self.from_latent(self.cell, latents)
        return TensorState({**begun, "latent": latents} if self.latent_every_step else begun)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        values, after = run_cell(self.cell, self._inputs(view, before), before)
        kept = {"latent": before["latent"]} if self.latent_every_step else {}
        return HiddenStates(values=values, state=TensorState({**after, **kept}))

    def _inputs(self, view: View, state: TensorState) -> Tensor:
        values: Tensor = self.dropout(self.embedding(view.inputs))
        if not self.latent_every_step:
            return values
        repeated = state["latent"][:, None].expand(-1, values.shape[1], -1)
        return torch.cat([values, repeated], dim=-1)

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        inputs = self._inputs(view, before)
        gates = self.cell.gates(inputs, tuple(before[name] for name in self.cell.names))
        return {
            name: Capture(
                values=gate,
                axes=("batch", "time", "unit"),
                caption=f"The {name} of every unit, at the step that predicts each token: "
                f"{self.cell.gate_captions[name]}.",
                bounds=UNIT_INTERVAL,
            )
            for name, gate in gates.items()
        }


class FreeRunningDecoder(LatentDecoder):
    """Free-running RNN decoder, fed the latent only: h_0 = A z + a, h_t = cell(z, h_{t-1}).

    It does not see the generated tokens, so the latent must hold the whole sentence. Hidden (B, T,
    W); a view's inputs give only the number of positions.
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask, NoContextMask)

    def __init__(self, cell: RecurrentCell, *, latent: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.latent = latent
        self.cell = cell
        self.from_latent = LatentToState(cell, latent)
        self.dropout = nn.Dropout(dropout)
        self.width = cell.width

    def state_from_latents(self, latents: Tensor) -> TensorState:
        return TensorState({**self.from_latent(self.cell, latents), "latent": latents})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        latents = before["latent"]
        heard = self.dropout(latents)[:, None].expand(-1, view.inputs.shape[1], -1)
        values, after = run_cell(self.cell, heard, before)
        return HiddenStates(values=values, state=TensorState({**after, "latent": latents}))


class ParallelDecoder(LatentDecoder):
    """Non-autoregressive decoder: a network from the latent to all positions, h = f(z), (n, W).

    With one linear layer it is a linear autoencoder's decoder. Hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask, NoContextMask)
    longest: int

    def __init__(self, network: nn.Module, *, latent: int, places: int, width: int) -> None:
        super().__init__()
        self.latent = latent
        self.network = network
        self.longest = places
        self.width = width

    def state_from_latents(self, latents: Tensor) -> TensorState:
        first = torch.zeros(len(latents), dtype=torch.long, device=latents.device)
        return TensorState({"latent": latents, "place": first})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(before, TensorState)
        count, place = view.inputs.shape[1], before["place"]
        asked = place[:, None] + torch.arange(count, device=place.device)
        if len(asked) and count and int(asked.max()) >= self.longest:
            raise UserError(
                f"this decoder generates at most {self.longest} tokens, got "
                f"{int(asked.max()) + 1}; give shorter sentences, or train with a larger length."
            )
        every = self.network(before["latent"]).unflatten(-1, (self.longest, self.width))
        values = every.gather(1, asked[..., None].expand(-1, -1, self.width))
        after = TensorState({"latent": before["latent"], "place": place + count})
        return HiddenStates(values=values, state=after)


class MappedLatentDecoder(LatentDecoder):
    """A decoder whose latent is a function of another latent: z = f(u)."""

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask,)

    def __init__(self, network: nn.Module, decoder: LatentDecoder, *, latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.network = network
        self.inner = decoder
        self.longest = decoder.longest
        self.width = decoder.width

    def state_from_latents(self, latents: Tensor) -> TensorState:
        return self.inner.state_from_latents(self.network(latents))

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        before = self.initial_state(len(view.inputs)) if state is None else state
        return self.inner.capture_internals(view, before)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        before = self.initial_state(len(view.inputs)) if state is None else state
        result: HiddenStates = self.inner(view, before)
        return result
