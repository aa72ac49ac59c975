"""Matrix products by oneDNN where torch's default BLAS (MKL) is slower: float32 on x86 CPUs.

MKL is slow on processors of other makers: on one of AMD, oneDNN computed the products of an output
layer 1.4 to 2.4 times as fast (`benchmarks/matrix_product.py`). torch ships it as well, but uses it
for recurrent layers and convolutions alone. Both round as float32 does; sums may be in another
order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

WORTH_ONEDNN = 2**21
"""Multiplications from which on oneDNN is used; a new shape costs it about a millisecond once."""


def _available() -> bool:
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    # The operator is no part of torch's public interface; without it there is F.linear.
    named = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return vectors and torch.backends.mkldnn.is_available() and named


_AVAILABLE = _available()


def uses_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether (N, W) times (M, W)ᵀ is computed by oneDNN."""
    return (
        _AVAILABLE
        and left.numel() * len(right) >= WORTH_ONEDNN
        and left.is_cpu
        and right.is_cpu
        and left.dtype == right.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left rightᵀ + bias without gradients: (N, W), (M, W), (M,) → (N, M)."""
    if uses_onednn(left, right):
        output: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
        return output
    return F.linear(left, right, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return product(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        for_inputs, for_weight, for_bias = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if for_inputs else None,
            product(gradient.t(), inputs.t()) if for_weight else None,
            gradient.sum(0) if for_bias else None,
        )


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """inputs weightᵀ + bias, as `F.linear`, differentiable once: (…, W), (M, W), (M,) → (…, M)."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    if not uses_onednn(flat, weight):
        return F.linear(inputs, weight, bias)
    output: Tensor = _Linear.apply(flat, weight, bias)
    return output.view(*inputs.shape[:-1], len(weight))


class Linear(nn.Linear):
    """`nn.Linear` by `linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)
