"""Scans of a linear recurrence h_t = a_t∘h_{t−1} + b_t: a loop, doubling, log-space, in chunks.

    python benchmarks/linear_scan.py

Prints the milliseconds of a forward and backward pass, the median of several, and checks that all
give the same states. `layers/min_gru.py` uses chunks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lmlab.layers.min_gru import linear_scan

Scan = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPES = ((64, 24, 128), (32, 64, 128), (20, 35, 200), (8, 256, 256), (1, 1024, 256))
REPEATS = 15


def loop(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Step by step, with autograd."""
    states, last = [], start
    for each_decay, each_input in zip(decay.unbind(1), inputs.unbind(1), strict=True):
        last = torch.addcmul(each_input, each_decay, last)
        states.append(last)
    return torch.stack(states, 1)


def doubling(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Associative scan in log₂ T passes over all positions (Hillis and Steele 1986)."""
    first = inputs[:, :1] + decay[:, :1] * start[:, None]
    states, size = torch.cat([first, inputs[:, 1:]], 1), 1
    while size < decay.shape[1]:
        carried = states[:, size:] + decay[:, size:] * states[:, :-size]
        states = torch.cat([states[:, :size], carried], 1)
        decay = torch.cat([decay[:, :size], decay[:, size:] * decay[:, :-size]], 1)
        size *= 2
    return states


def log_space(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """Heinsen 2023, as in Feng et al. 2024; inputs and start must be positive."""
    values = torch.cat([start[:, None], inputs], 1).log()
    decays = F.pad(decay.log().cumsum(1), (0, 0, 1, 0))
    return (decays + (values - decays).logcumsumexp(1)).exp()[:, 1:]


SCANS: dict[str, Scan] = {
    "loop": loop,
    "doubling": doubling,
    "log-space": log_space,
    "chunks": linear_scan,
}


def milliseconds(scan: Scan, parts: tuple[Tensor, Tensor, Tensor]) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        scan(*parts).sum().backward()
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def main() -> None:
    torch.manual_seed(0)
    print(f"{'rows, time, width':20}", *(f"{name:>10}" for name in SCANS))
    for rows, length, width in SHAPES:
        decay = torch.rand(rows, length, width).requires_grad_()
        inputs = torch.rand(rows, length, width).requires_grad_()
        parts = (decay, inputs, torch.rand(rows, width))
        for scan in SCANS.values():
            torch.testing.assert_close(scan(*parts), loop(*parts), atol=1e-4, rtol=1e-4)
        figures = (f"{milliseconds(scan, parts):10.2f}" for scan in SCANS.values())
        print(f"{f'{rows}, {length}, {width}':20}", *figures, flush=True)


if __name__ == "__main__":
    main()
