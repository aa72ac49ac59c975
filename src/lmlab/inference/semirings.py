"""Semirings (Goodman 1999) for dynamic programs: log, max, sample, entropy; marginals by gradient.

One program over a structure (`linear_chain.py`, `inside.py`) gives the likelihood, the best
structure, samples and the entropy, each with another semiring. The best or sampled structure is the
gradient of the value with respect to the potentials, as posterior marginals are the gradient of the
log-partition (Eisner 2016): so there are no backward passes to write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor


class Semiring(ABC):
    """Sums and products of elements: tensors of log-potentials, possibly with more.

    An element may have leading dimensions of its own; programs count dimensions from the end.
    """

    dimensions: ClassVar[int] = 0
    """Number of leading dimensions of an element."""

    def lift(self, potentials: Tensor) -> Tensor:
        """Log-potentials as elements."""
        return potentials

    def value(self, element: Tensor) -> Tensor:
        """The result of a program that ends in this element."""
        return element

    def times(self, first: Tensor, second: Tensor) -> Tensor:
        """The product, with broadcasting."""
        return first + second

    @abstractmethod
    def sum(self, elements: Tensor, dim: int) -> Tensor:
        """The sum over one dimension, counted from the end."""


class LogSemiring(Semiring):
    """Log semiring (sum-product): the value is log Σ_structures exp(score)."""

    def sum(self, elements: Tensor, dim: int) -> Tensor:
        assert dim < 0
        return torch.logsumexp(elements, dim)


class MaxSemiring(Semiring):
    """Max semiring (Viterbi): the value is the best score; ties are broken arbitrarily."""

    def sum(self, elements: Tensor, dim: int) -> Tensor:
        assert dim < 0
        return elements.max(dim).values


class SampleSemiring(Semiring):
    """Sampling semiring: as LogSemiring, but the gradient goes to one sampled term.

    So the gradient of a program's value is one structure, sampled from the posterior.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def sum(self, elements: Tensor, dim: int) -> Tensor:
        assert dim < 0
        total: Tensor = _SampledSum.apply(elements, dim, self.generator)
        return total


class _SampledSum(torch.autograd.Function):
    """logsumexp whose gradient is one-hot."""

    @staticmethod
    def forward(
        context: Any, elements: Tensor, dim: int, generator: torch.Generator | None
    ) -> Tensor:
        last = elements.movedim(dim, -1)
        total = torch.logsumexp(last, -1)
        # If no term is possible, any will do, since no gradient reaches it.
        probs = (last - total[..., None]).exp().nan_to_num(nan=1.0)
        sampled = torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, generator=generator)
        context.save_for_backward(sampled.view(total.shape))
        context.shape, context.dim = elements.shape, dim
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (sampled,) = context.saved_tensors
        dim = context.dim
        scattered = gradient.new_zeros(context.shape)
        index = sampled.unsqueeze(dim)
        return scattered.scatter(dim, index, gradient.unsqueeze(dim)), None, None


class EntropySemiring(Semiring):
    """Entropy semiring: elements (2, …) of a log-weight and an entropy in nats.

    A sum chooses one of its terms by weight, so H = Σ p_i H_i - Σ p_i log p_i; a product's
    entropies add up (Hernando et al. 2005). The value is the entropy of the posterior.
    """

    dimensions: ClassVar[int] = 1

    def lift(self, potentials: Tensor) -> Tensor:
        return torch.stack([potentials, torch.zeros_like(potentials)])

    def value(self, element: Tensor) -> Tensor:
        return element[1]

    def sum(self, elements: Tensor, dim: int) -> Tensor:
        assert dim < 0
        weights, entropies = elements[0], elements[1]
        total = torch.logsumexp(weights, dim)
        surprisal = total.unsqueeze(dim) - weights
        probs = (-surprisal).exp()
        # A term of no weight adds nothing, though its surprisal is infinite.
        terms = torch.where(probs > 0, probs * (entropies + surprisal), 0.0)
        return torch.stack([total, terms.sum(dim)])


LOG, MAX, ENTROPY = LogSemiring(), MaxSemiring(), EntropySemiring()


def structure_marginals(
    program: Callable[..., Tensor], *potentials: Tensor, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Structure marginals: the gradient of a program's value, summed over rows.

    With a program over LOG these are posterior marginals, over MAX the best structure, over
    SampleSemiring a sampled one. With `create_graph` they are differentiable again.
    """
    with torch.enable_grad():
        leaves = potentials if create_graph else tuple(p.detach() for p in potentials)
        leaves = tuple(p if p.requires_grad else p.detach().requires_grad_() for p in leaves)
        # A potential that the program never uses (a span of a single word) has none.
        return torch.autograd.grad(
            program(*leaves).sum(), leaves, create_graph=create_graph, materialize_grads=True
        )
