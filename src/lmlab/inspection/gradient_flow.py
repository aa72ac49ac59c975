"""Gradient flow: gradient norm by distance back in time, and per parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import device_of, evaluation_mode
from lmlab.core.protocols import LogProb, require
from lmlab.core.system import System, TrainableSystem

MAX_DISTANCE = 50
"""Default maximum distance."""


@dataclass(frozen=True, kw_only=True)
class GradientByDistance:
    """Gradient norm of the last position's loss with respect to the embedding d positions back."""

    distances: tuple[int, ...]
    """1 is the token just before the predicted one."""
    norms: tuple[float, ...]
    """Mean over sentences of ‖∂(-log p(s_T)) / ∂e(s_{T-d})‖, e the input embedding."""
    sentences: tuple[int, ...]
    """Number of sentences with a token at that distance."""

    @property
    def max_reach(self) -> int:
        """The largest distance with a non-zero gradient."""
        return max((d for d, n in zip(self.distances, self.norms, strict=True) if n > 0), default=0)

    @property
    def factor(self) -> float | None:
        """Decay per step: e^slope of log norm against distance.

        Least squares, each distance weighted by its sentences; None if fewer than three distances
        have a gradient. A linear recurrence with spectral radius r gives r (Pascanu et al. 2013).
        """
        points = [
            (float(d), math.log(n), float(count))
            for d, n, count in zip(self.distances, self.norms, self.sentences, strict=True)
            if n > 0 and math.isfinite(n)
        ]
        if len(points) < 3:
            return None
        weight = sum(w for _, _, w in points)
        mean_x = sum(w * x for x, _, w in points) / weight
        mean_y = sum(w * y for _, y, w in points) / weight
        covariance = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points)
        return math.exp(covariance / sum(w * (x - mean_x) ** 2 for x, _, w in points))


@dataclass(frozen=True, kw_only=True)
class ParameterGradient:
    """Gradient of the mean loss with respect to one parameter tensor."""

    norm: float
    weights: float
    """Norm of the tensor itself."""
    numbers: int

    @property
    def root_mean_square(self) -> float:
        """Root mean square of the gradient's entries."""
        return self.norm / math.sqrt(max(self.numbers, 1))


def measure_gradient_by_distance(
    system: System, batches: Iterable[Batch], *, max_distance: int = MAX_DISTANCE, seed: int = 0
) -> GradientByDistance:
    """Gradient of the loss at each sentence's last position, by distance to earlier tokens.

    For systems with `LogProb` that embed tokens by an `nn.Embedding`, one per position or as
    windows of the last few; others, and those that score texts as a whole (DPR), raise a UserError.
    Weights and `.grad` are unchanged. Cost: one forward and backward pass over the batches.
    """
    require(system, LogProb, "the gradient by distance")
    assert isinstance(system, LogProb)
    sums, counts = torch.zeros(max_distance + 1, dtype=torch.float64), torch.zeros(max_distance + 1)
    measured = False
    device = device_of(system)
    generator = torch.Generator(device=device).manual_seed(seed)
    with evaluation_mode(system), torch.enable_grad():
        for batch in (cpu_batch.to(device) for cpu_batch in batches):
            with _recorded_embeddings(system) as calls:
                scored = system.log_prob(batch, generator=generator)
            last = batch.lengths - 2
            rows = torch.nonzero(last >= 0).squeeze(1)
            loss = -scored.per_token[rows, last[rows]].sum()
            squares = _squares_by_distance(calls, batch, loss, max_distance)
            if squares is None:
                continue
            measured = True
            exists = _distances(batch, max_distance)
            sums += (squares.sqrt().double() * exists).sum(0).cpu()
            counts += exists.sum(0).cpu()
    if not measured:
        raise UserError(
            "the gradient by distance needs a system with token embeddings per position and "
            "a score per token, which this one does not have."
        )
    distances = [d for d in range(1, max_distance + 1) if counts[d] > 0]
    return GradientByDistance(
        distances=tuple(distances),
        norms=tuple(float(sums[d] / counts[d]) for d in distances),
        sentences=tuple(int(counts[d]) for d in distances),
    )


def measure_parameter_gradients(
    system: System, batches: Iterable[Batch], *, seed: int = 0
) -> dict[str, ParameterGradient]:
    """Gradient of the mean loss for each trainable tensor, by name, without dropout.

    A tensor that the loss does not depend on has norm 0. Weights and `.grad` are unchanged.
    """
    tensors = {name: p for name, p in system.named_parameters() if p.requires_grad}
    assert isinstance(system, TrainableSystem)
    device = device_of(system)
    generator = torch.Generator(device=device).manual_seed(seed)
    sums = {name: torch.zeros_like(p) for name, p in tensors.items()}
    count = 0.0
    with evaluation_mode(system), torch.enable_grad():
        for batch in batches:
            loss, _ = system.loss(batch.to(device), generator=generator)
            gradients = torch.autograd.grad(loss.total, list(tensors.values()), allow_unused=True)
            count += float(loss.count)
            for name, gradient in zip(tensors, gradients, strict=True):
                if gradient is not None:
                    sums[name] += gradient
    return {
        name: ParameterGradient(
            norm=float(torch.linalg.vector_norm(total)) / max(count, 1.0),
            weights=float(torch.linalg.vector_norm(tensors[name].detach())),
            numbers=total.numel(),
        )
        for name, total in sums.items()
    }


EmbeddingCall = tuple[Tensor, Tensor]
"""Input ids and output vectors of an embedding call."""


@contextmanager
def _recorded_embeddings(system: System) -> Iterator[list[EmbeddingCall]]:
    """Record every embedding call; the output vectors become leaves of the graph."""
    calls: list[EmbeddingCall] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        leaf = vectors.detach().requires_grad_()
        calls.append((inputs[0], leaf))
        return leaf

    modules = [module for module in system.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _distances(batch: Batch, max_distance: int) -> Tensor:
    """(B, most + 1) bool: whether a row has a token at this distance from its last one."""
    distance = torch.arange(max_distance + 1, device=batch.lengths.device)
    return (distance >= 1) & (distance < batch.lengths[:, None])


def _squares_by_distance(
    calls: list[EmbeddingCall], batch: Batch, loss: Tensor, max_distance: int
) -> Tensor | None:
    """(B, most + 1) squared gradient norms by distance; None if positions are unknown."""
    placed = [(vectors, _embedded_positions(ids, batch)) for ids, vectors in calls]
    aligned = [(vectors, positions) for vectors, positions in placed if positions is not None]
    # A text scored as a whole has no loss at its last position.
    if not aligned or not loss.requires_grad:
        return None
    gradients = torch.autograd.grad(loss, [vectors for vectors, _ in aligned], allow_unused=True)
    squares = torch.zeros(len(batch), max_distance + 1, device=loss.device)
    for gradient, (_, positions) in zip(gradients, aligned, strict=True):
        if gradient is None:
            continue
        squared = gradient.square().sum(-1).flatten(1)
        distance = (batch.lengths[:, None] - 1) - positions.flatten(1)
        inside = (distance >= 1) & (distance <= max_distance) & (positions.flatten(1) >= 0)
        squares.scatter_add_(1, distance.clamp(0, max_distance), squared * inside)
    return squares


def _embedded_positions(ids: Tensor, batch: Batch) -> Tensor | None:
    """The batch position of each embedded id (B, T) or (B, T, n); None if unclear.

    Ids (B, T, n) are read as windows, newest last, with any padding before the start.
    """
    if ids.ndim not in (2, 3) or len(ids) != len(batch) or ids.shape[1] > batch.tokens.shape[1]:
        return None
    positions = torch.arange(ids.shape[1], device=ids.device)[None].expand(len(ids), -1)
    if ids.ndim == 3:
        size = ids.shape[2]
        offsets = torch.arange(size - 1, -1, -1, device=ids.device)
        positions = positions[..., None] - offsets
    flat = positions.flatten(1).clamp(min=0)
    expected = batch.tokens.gather(1, flat).view(ids.shape)
    return positions if bool(((ids == expected) | (positions < 0)).all()) else None
