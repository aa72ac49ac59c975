"""Minimal GRU without the state in its gates (Feng et al. 2024), trained by a parallel scan."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.layers.recurrent_cells import CellState, RecurrentCell, lerp

CandidateName = Literal["linear", "positive"]
CHUNK = 8
"""Positions of a chunk of the scan; benchmarks/linear_scan.py compares sizes and other scans."""


class MinGRUCell(RecurrentCell):
    """minGRU h_t = (1 − z_t)∘h_{t−1} + z_t∘(W x_t), z_t = σ(W_z x_t) (Feng et al. 2024).

    Neither gate nor candidate sees the state, so that all positions are computed at once by a scan.
    With `candidate="positive"` the candidate is g(W x_t), g(a) = a + ½ for a ≥ 0 and σ(a) below, as
    the paper's scan in log-space needs. Inputs (B, T, D), outputs (B, T, W).
    """

    gate_captions = {"update gate": "1 takes the candidate, 0 keeps the old state"}

    def __init__(
        self, input_width: int, width: int, *, candidate: CandidateName = "linear"
    ) -> None:
        super().__init__(input_width, width)
        self.candidate = candidate
        self.candidate_and_gate = nn.Linear(input_width, 2 * width, bias=False)

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        candidate, gate = self.candidate_and_gate(inputs).chunk(2, -1)
        if self.candidate == "positive":
            candidate = torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())
        update = gate.sigmoid()
        if inputs.shape[1] == 1:
            outputs = lerp(state[0][:, None], candidate, update)
        else:
            outputs = linear_scan((-gate).sigmoid(), update * candidate, state[0])
        return outputs, (outputs[:, -1],)

    def gates(self, inputs: Tensor, state: CellState) -> dict[str, Tensor]:
        return {"update gate": self.candidate_and_gate(inputs).chunk(2, -1)[1].sigmoid()}


def linear_scan(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """(B, T, W) the states h_t = a_t∘h_{t−1} + b_t, for decays a and inputs b, from a start (B, W).

    In float32 at least; decays lie between 0 and 1, so that nothing grows. Cost O(T · W), in T / C
    + C sequential steps for chunks of C positions. The gradient is a scan too.
    """
    exact = torch.promote_types(inputs.dtype, torch.float32)
    parts = (part.to(exact) for part in (decay, inputs, start))
    scan: Any = _LinearScan.apply
    states: Tensor = scan(*parts)
    return states.to(inputs.dtype)


class _LinearScan(torch.autograd.Function):
    """∂b_t = ∂h_t + a_{t+1}∘∂b_{t+1}, the same recurrence from the end; ∂a_t = ∂b_t∘h_{t−1}."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
        states = _chunked_scan(decay, inputs, start)
        ctx.save_for_backward(decay, states, start)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, states, start = ctx.saved_tensors
        later = F.pad(decay[:, 1:], (0, 0, 0, 1)).flip(1)
        to_inputs = _chunked_scan(later, gradients[0].flip(1), torch.zeros_like(start)).flip(1)
        before = torch.cat([start[:, None], states[:, :-1]], 1)
        return to_inputs * before, to_inputs, decay[:, 0] * to_inputs[:, 0]


def _chunked_scan(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """The scan from zero inside all chunks in parallel, then the carry from chunk to chunk."""
    rows, time, width = inputs.shape
    padding = -time % CHUNK
    shape = (rows, (time + padding) // CHUNK, CHUNK, width)
    carries, states = (
        F.pad(part, (0, 0, 0, padding)).reshape(shape).clone() for part in (decay, inputs)
    )
    for step in range(1, CHUNK):
        states[:, :, step].addcmul_(carries[:, :, step], states[:, :, step - 1])
        carries[:, :, step].mul_(carries[:, :, step - 1])
    last, before = start, []
    for chunk in range(shape[1]):
        before.append(last)
        last = torch.addcmul(states[:, chunk, -1], carries[:, chunk, -1], last)
    states.addcmul_(carries, torch.stack(before, 1)[:, :, None])
    return states.flatten(1, 2)[:, :time]
