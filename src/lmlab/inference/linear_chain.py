"""Linear-chain CRF/HMM inference: partition, forward-backward, Viterbi, sampling, entropy.

    score(z) = Σ_i unary[i, z_i] + Σ_i pairwise[i, z_i, z_{i+1}]

Unary potentials are (…, N, K), pairwise ones (…, N - 1, K, K), both in logs and of any sign; -inf
forbids. A transition shared by all steps is `pairwise.expand(N - 1, K, K)`: no memory. Rows of
different length are given by `lengths` (…,): padding is ignored. One dynamic program
(`forward_messages`) serves all; its cost is N · K² per row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmlab.inference.semirings import (
    ENTROPY,
    LOG,
    MAX,
    SampleSemiring,
    Semiring,
    structure_marginals,
)


def forward_messages(
    unary: Tensor, pairwise: Tensor, *, semiring: Semiring = LOG, lengths: Tensor | None = None
) -> Tensor:
    """(…, N, K) forward messages, each including the variable's own potential.

    Beyond a row's length the last message is repeated.
    """
    pairwise = pairwise.expand(*unary.shape[:-2], *pairwise.shape[-3:])
    unary, pairwise = semiring.lift(unary), semiring.lift(pairwise)
    message = unary[..., 0, :]
    messages = [message]
    for position in range(1, unary.shape[-2]):
        scores = semiring.times(message[..., :, None], pairwise[..., position - 1, :, :])
        updated = semiring.times(semiring.sum(scores, -2), unary[..., position, :])
        if lengths is not None:
            updated = torch.where((position < lengths)[..., None], updated, message)
        messages.append(updated)
        message = updated
    return torch.stack(messages, dim=-2)


def total(
    unary: Tensor, pairwise: Tensor, *, semiring: Semiring = LOG, lengths: Tensor | None = None
) -> Tensor:
    """(…) the semiring's sum over all K^N assignments."""
    last = forward_messages(unary, pairwise, semiring=semiring, lengths=lengths)[..., -1, :]
    return semiring.value(semiring.sum(last, -1))


def log_partition(unary: Tensor, pairwise: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """(…) log Σ_z exp(score(z))."""
    return total(unary, pairwise, lengths=lengths)


def forward_backward(unary: Tensor, pairwise: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """(…, N, K) posterior p(z_i) by the forward-backward algorithm.

    Differentiable; zero beyond a row's length.
    """
    if lengths is not None:
        unary, pairwise = mask_padding(unary, pairwise, lengths)
    forward = forward_messages(unary, pairwise)
    backward = forward_messages(unary.flip(-2), pairwise.flip(-3).transpose(-1, -2)).flip(-2)
    # Both messages contain the variable's own potential; remove one.
    finite_unary = torch.where(unary.isinf(), 0.0, unary)
    posterior = torch.softmax(forward + backward - finite_unary, dim=-1)
    if lengths is None:
        return posterior
    positions = torch.arange(unary.shape[-2], device=unary.device)
    return posterior * (positions < lengths[..., None])[..., None]


def mask_padding(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Potentials under which the variables beyond a row's length repeat its last one."""
    count, states = unary.shape[-2:]
    positions = torch.arange(count, device=unary.device)
    real = positions < lengths[..., None]
    identity = torch.eye(states, device=unary.device, dtype=unary.dtype).log()
    unary = torch.where(real[..., None], unary, 0.0)
    pairwise = torch.where(real[..., 1:, None, None], pairwise, identity)
    return unary, pairwise


def pair_marginals(unary: Tensor, pairwise: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """(…, N - 1, K, K) posterior p(z_i, z_{i+1}), detached; zero beyond a row's length."""
    shape = (*unary.shape[:-2], unary.shape[-2] - 1, *pairwise.shape[-2:])
    (parts,) = structure_marginals(
        lambda p: total(unary.detach(), p, lengths=lengths), pairwise.expand(shape)
    )
    return parts


def viterbi(
    unary: Tensor, pairwise: Tensor, *, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Viterbi: the best score (…) and its assignment (…, N); 0 beyond a row's length."""
    with torch.no_grad():
        score = total(unary, pairwise, semiring=MAX, lengths=lengths)
    return score, _argmax(unary, pairwise, MAX, lengths)


def sample(
    unary: Tensor,
    pairwise: Tensor,
    *,
    lengths: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """(…, N) one assignment per row, sampled from the posterior; 0 beyond a row's length."""
    return _argmax(unary, pairwise, SampleSemiring(generator), lengths)


def entropy(unary: Tensor, pairwise: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """(…) entropy of the posterior over assignments, in nats."""
    return total(unary, pairwise, semiring=ENTROPY, lengths=lengths)


def _argmax(unary: Tensor, pairwise: Tensor, semiring: Semiring, lengths: Tensor | None) -> Tensor:
    pairwise = pairwise.detach()
    (indicators,) = structure_marginals(
        lambda u: total(u, pairwise, semiring=semiring, lengths=lengths), unary
    )
    return indicators.argmax(-1)
