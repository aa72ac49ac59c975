"""Seq2seq with a K-valued latent that shifts the decoder's initial state, summed out exactly.

    p(s | x) = Σ_z p(z | x) p(s | x, z),  p(z | x) = softmax(C h + c)_z,  h_0 = h + v_z

h is the decoder's initial state without the latent (the encoder's last state). The exact sum needs
no variational bound, and the figure of the posterior shows unused values (cf. Shen et al. 2019,
mixture models for diverse translation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import nn

from lmlab.backbones.backbone_interfaces import EncoderDecoderBackbone
from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.parts import Emission
from lmlab.core.state import TensorState
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.causal_lm import DecodingState
from lmlab.models.initial_state_mixture import (
    LOG_WEIGHTS,
    StateMixtureLM,
    initial_state_posterior_capture,
)
from lmlab.models.seq2seq import EncoderDecoderLM
from lmlab.objectives.objective_interfaces import Seq2SeqObjective


@runtime_checkable
class ShiftableStart(Protocol):
    """An encoder-decoder backbone that declares which tensors of its state may be shifted."""

    def free_state_widths(self) -> dict[str, int]:
        """Names and widths of these tensors, the decoder's summary of the source last."""
        ...

    def init_decoder(self, view: View) -> TensorState:
        """The decoder's state before its first input."""
        ...


class DiscreteLatent(nn.Module):
    """K values of a latent variable: their vectors and p(z | source)."""

    INITIAL_STD = 0.5
    """Standard deviation of the initialisation, which must break the symmetry between values."""

    def __init__(self, count: int, widths: Mapping[str, int]) -> None:
        super().__init__()
        self.names = tuple(widths)
        self.weigh = nn.Linear(widths[self.names[-1]], count)
        self.vectors = nn.ParameterList(
            nn.Parameter(self.INITIAL_STD * torch.randn(count, width)) for width in widths.values()
        )

    def forward(self, state: TensorState) -> TensorState:
        """A state of B rows to (B, K, …), shifted by each value's vectors, and log p(z | x)."""
        count = len(self.weigh.bias)
        tensors = {n: t[:, None].expand(-1, count, *t.shape[1:]) for n, t in state.tensors.items()}
        for name, vectors in zip(self.names, self.vectors, strict=True):
            tensors[name] = tensors[name] + vectors
        weights = F.log_softmax(self.weigh(state[self.names[-1]]), -1)
        return TensorState({**tensors, LOG_WEIGHTS: weights})


class LatentStartSeq2Seq(StateMixtureLM, EncoderDecoderLM):
    """Encoder-decoder whose initial decoder state is one of K shifts of the encoder's last."""

    single_state_setting: ClassVar[str] = "latent_choices=1"

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: EncoderDecoderBackbone,
        emission: Emission,
        objective: Seq2SeqObjective,
        choices: int,
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.count = choices
        self.choices = DiscreteLatent(choices, self._shiftable().free_state_widths())

    def _shiftable(self) -> ShiftableStart:
        backbone: Any = self.backbone
        assert isinstance(backbone, ShiftableStart), "the decoder's initial state can be shifted"
        return backbone

    def begin(self, view: View) -> TensorState:
        """The state before the first input, for each value of the latent variable."""
        state: TensorState = self.choices(self._shiftable().init_decoder(view))
        return state

    def initial_states(self, view: View) -> tuple[TensorState, View]:
        assert view.decoder is not None, "an encoder-decoder needs a view of both"
        return self.begin(view), view.decoder

    def start(self, rows: int, *, condition: Batch | None = None) -> DecodingState:
        """The state of `rows` texts before their first token, each given its source."""
        device = next(self.parameters()).device
        memory = self.begin(self.objective.source_view(condition, rows, device))
        for token in self.objective.decoder_prefix():
            state = self._step(memory, torch.full((rows,), token, device=device))
            assert isinstance(state.memory, TensorState)
            memory = state.memory
        return state

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The prior p(z | source) and the posterior given the text."""
        before, view = self.initial_states(self.objective.view(batch))
        return {
            "latent given the source": Capture(
                values=before[LOG_WEIGHTS].exp(),
                axes=("batch", "choice"),
                caption="P(latent | source), before anything is generated.",
                sums_to_one="choice",
                titles={"choice": "value of the latent"},
            ),
            "posterior over starts": initial_state_posterior_capture(self.posteriors(before, view)),
        }
