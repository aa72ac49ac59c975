"""Large products of float32 by oneDNN relative to torch's default BLAS, on one thread.

    python benchmarks/matrix_product.py [--rounds 9] [--out benchmarks/results/matrix_product.json]

The shapes are those of an output layer: positions times a vocabulary, forward and the two products
of the backward pass. Both sides take turns in one process; the ratio of medians is above 1 where
`layers/matrix_product.py` is faster.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measuring import measure_alternating, rate
from torch import Tensor

from lmlab.core.atomic_files import write_text
from lmlab.layers.matrix_product import product, uses_onednn

POSITIONS, WIDTH, VOCABULARY = 2048, 128, 10_000
SHAPES = {
    "logits": (POSITIONS, WIDTH, VOCABULARY),
    "gradient of the hidden states": (POSITIONS, VOCABULARY, WIDTH),
    "gradient of the weights": (VOCABULARY, POSITIONS, WIDTH),
}
"""(N, W, M) of (N, W) times (M, W)ᵀ."""
SECONDS = 0.3
"""CPU seconds of a measurement."""


def measure(shape: tuple[int, int, int], rounds: int) -> dict[str, object]:
    """Products per second of CPU time by each, after a warm-up."""
    rows, width, columns = shape
    left, right = torch.randn(rows, width), torch.randn(columns, width)
    if not uses_onednn(left, right):
        raise SystemExit("oneDNN is not used on this processor, so there is nothing to compare.")

    def speed(multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
        def step() -> int:
            multiply(left, right)
            return 1

        step()
        return rate(step, SECONDS, time.process_time)

    figures = measure_alternating(lambda: speed(product), lambda: speed(F.linear), rounds)
    return {"shape": shape} | figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measure(shape, options.rounds) for name, shape in SHAPES.items()}
    for name, result in results.items():
        print(name, result)
    if options.out is not None:
        record = {"torch": torch.__version__, "rounds": options.rounds, "products": results}
        write_text(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
