"""HMM-like transitions of K latent states: one matrix, or a matrix that depends on the token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class StateTransition(nn.Module):
    """P(z') = Σ_z P(z' | z) P(z), one matrix P(z' | z) = softmax_z'(a_z · b_z') for every token.

    Each state has an outgoing and an incoming embedding of W numbers (cf. Chiu and Rush 2020): K²
    free numbers learn much more slowly (multi30k-l20, 100 states, 400 steps: 5.19 nats per token
    against 4.37). Log-probabilities (N, K) to (N, K); cost N · K².
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.leaving = nn.Parameter(torch.randn(count, width))
        self.arriving = nn.Parameter(torch.randn(count, width) * width**-0.5)

    def scores(self) -> Tensor:
        """(K, K) a_z · b_z'."""
        return self.leaving @ self.arriving.t()

    def forward(self, log_from: Tensor, tokens: Tensor) -> Tensor:
        """log P(z') from log P(z) (N, K); the N tokens have no effect here."""
        moved = log_from.double().exp() @ torch.softmax(self.scores().double(), dim=1)
        return _log(moved).to(log_from.dtype)

    def table(self, token: Tensor) -> Tensor:
        """(K, K) P(z' | z) after a token."""
        return torch.softmax(self.scores(), dim=1)


class TokenStateTransition(StateTransition):
    """P(z' | z) = softmax_z'(a_z · b_z' + c_z' · e(s)): the matrix is a function of the token s.

    The potential of a linear-chain CRF with a one-token window, locally normalised. Its exponential
    is a product, so the normaliser of every z is a matrix product too, and no (N, K, K) is ever
    built. `dropout` applies to e(s), once per given token. Cost N · K².
    """

    def __init__(self, count: int, embedding: nn.Embedding, dropout: float = 0.0) -> None:
        super().__init__(count, embedding.embedding_dim)
        self.embedding = embedding
        self.pull = nn.Linear(embedding.embedding_dim, count, bias=False)
        self.dropout = nn.Dropout(dropout)

    def _pulls(self, tokens: Tensor) -> Tensor:
        return self.pull(self.dropout(self.embedding(tokens)))

    def forward_clear(self, log_from: Tensor, tokens: Tensor) -> Tensor:
        """The same step with explicit (N, K, K) matrices."""
        scores = self.scores() + self._pulls(tokens)[:, None, :]
        return torch.logsumexp(log_from[:, :, None] + F.log_softmax(scores, dim=2), dim=1)

    def forward(self, log_from: Tensor, tokens: Tensor) -> Tensor:
        """log P(z') from log P(z) (N, K) after the tokens (N,)."""
        # In double: if state and token disagree, their products are tiny.
        pulls, scores = self._pulls(tokens).double(), self.scores().double()
        weights = (pulls - pulls.amax(1, keepdim=True).detach()).exp()
        matrix = (scores - scores.amax(1, keepdim=True).detach()).exp()
        normaliser = (weights @ matrix.t()).clamp(min=torch.finfo(torch.float64).tiny)
        moved = weights * ((log_from.double().exp() / normaliser) @ matrix)
        return _log(moved).to(log_from.dtype)

    def table(self, token: Tensor) -> Tensor:
        return torch.softmax(self.scores() + self._pulls(token[None]), dim=1)


def _log(probabilities: Tensor) -> Tensor:
    """The logarithm, clamped so that it and its gradient stay finite in double precision."""
    return probabilities.clamp(min=torch.finfo(torch.float64).tiny).log()
