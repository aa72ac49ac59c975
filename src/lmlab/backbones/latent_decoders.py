"""RNN and parallel decoders of a latent, fed gold tokens or only it; bottleneck autoencoder."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lmlab.backbones.backbone_interfaces import AutoencoderBackbone, LatentDecoder, SentenceEncoder
from lmlab.core.attention_mask import CausalMask, FullMask, NoContextMask
from lmlab.core.capture import Capture
from lmlab.core.errors import UserError
from lmlab.core.parts import HiddenStates
from lmlab.core.state import State, TensorState
from lmlab.core.view import View
from lmlab.layers.recurrent_cells import CellState, RecurrentCell


class Bottleneck(AutoencoderBackbone):
    """Bottleneck autoencoder: z = encoder(s), h = decoder(z); predictions see s through z alone.

    Given a state, the decoder continues from it and the inputs are not encoded. A teacher-forced
    decoder also sees the preceding tokens, by a view of its own. Inputs (B, T), latents (B, L),
    hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (FullMask, CausalMask)

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
        previous = self.decoder.state_from_latents(self.encode(view)) if state is None else state
        hidden: HiddenStates = self.decoder(view.prediction_view, previous)
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
    cell: RecurrentCell, inputs: Tensor, state: TensorState
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run a cell over inputs (B, T, D) from a state: outputs (B, T, W), and the state after."""
    values, next_state = cell.run(inputs, tuple(state[name] for name in cell.names))
    return values, dict(zip(cell.names, next_state, strict=True))


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
        cell_state = self.from_latent(self.cell, latents)
        return TensorState(
            {**cell_state, "latent": latents} if self.latent_every_step else cell_state
        )

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        values, after = run_cell(self.cell, self._inputs(view, previous), previous)
        constant = {"latent": previous["latent"]} if self.latent_every_step else {}
        return HiddenStates(values=values, state=TensorState({**after, **constant}))

    def _inputs(self, view: View, state: TensorState) -> Tensor:
        values: Tensor = self.dropout(self.embedding(view.inputs))
        if not self.latent_every_step:
            return values
        repeated = state["latent"][:, None].expand(-1, values.shape[1], -1)
        return torch.cat([values, repeated], dim=-1)

    def capture_internals(self, view: View, state: State | None = None) -> dict[str, Capture]:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        inputs = self._inputs(view, previous)
        gates = self.cell.gates(inputs, tuple(previous[name] for name in self.cell.names))
        return {name: self.cell.gate_capture(name, gate) for name, gate in gates.items()}


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
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        latents = previous["latent"]
        inputs = self.dropout(latents)[:, None].expand(-1, view.inputs.shape[1], -1)
        values, after = run_cell(self.cell, inputs, previous)
        return HiddenStates(values=values, state=TensorState({**after, "latent": latents}))


class ParallelDecoder(LatentDecoder):
    """Non-autoregressive decoder: a network from the latent to all positions, h = f(z), (n, W).

    With one linear layer it is a linear autoencoder's decoder. Hidden (B, T, W).
    """

    supported_masks: ClassVar[tuple[type, ...]] = (CausalMask, FullMask, NoContextMask)
    longest: int

    def __init__(self, network: nn.Module, *, latent: int, max_length: int, width: int) -> None:
        super().__init__()
        self.latent = latent
        self.network = network
        self.longest = max_length
        self.width = width

    def state_from_latents(self, latents: Tensor) -> TensorState:
        start = torch.zeros(len(latents), dtype=torch.long, device=latents.device)
        return TensorState({"latent": latents, "place": start})

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        assert isinstance(previous, TensorState)
        count, start = view.inputs.shape[1], previous["place"]
        positions = start[:, None] + torch.arange(count, device=start.device)
        if len(positions) and count and int(positions.max()) >= self.longest:
            raise UserError(
                f"this decoder generates at most {self.longest} tokens, got "
                f"{int(positions.max()) + 1}; give shorter sentences, or train with a larger "
                "length."
            )
        all_values = self.network(previous["latent"]).unflatten(-1, (self.longest, self.width))
        values = all_values.gather(1, positions[..., None].expand(-1, -1, self.width))
        after = TensorState({"latent": previous["latent"], "place": start + count})
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
        previous = self.initial_state(len(view.inputs)) if state is None else state
        return self.inner.capture_internals(view, previous)

    def forward(self, view: View, state: State | None = None) -> HiddenStates:
        previous = self.initial_state(len(view.inputs)) if state is None else state
        result: HiddenStates = self.inner(view, previous)
        return result
