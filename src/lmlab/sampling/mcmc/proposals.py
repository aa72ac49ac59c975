"""MCMC proposal distributions at masked positions: masked LM, uniform, unigram; resampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, get_args

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import require
from lmlab.core.system_protocols import FillSystem, SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.vocabulary import Vocabulary
from lmlab.sampling.mcmc.mcmc_config import ProposalName

TOKENS_PER_BATCH = 8192
"""Tokens per forward pass."""
MAX_PROPOSAL_NUMBERS = 16_000_000
"""Maximum masked positions × vocabulary in memory at once."""


class ProposalDistribution(Protocol):
    """Proposal distribution of tokens at each masked position, independent of its current token."""

    @property
    def name(self) -> str:
        """Name of the setting: fill, uniform or unigram."""
        ...

    @property
    def size(self) -> int:
        """V, the vocabulary size."""
        ...

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        """(N, V) log-probabilities, one row per true entry of `masked` in row-major order.

        Must not depend on the tokens at masked positions: then the reverse move masks the same
        positions, sees the same context and has the same distribution.
        """
        ...


@dataclass(frozen=True)
class MaskedLMProposal:
    """Masked-LM proposal: a `Fill` system's conditionals given all unmasked tokens."""

    system: FillSystem = field(repr=False)
    name: str = "fill"

    @property
    def size(self) -> int:
        return self.system.vocabulary.size

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        log_probs = self.system.fill(batch, masked).log_probs
        allowed = allowed_tokens(self.system.vocabulary, log_probs.shape[-1]).to(log_probs.device)
        restricted = log_probs.masked_fill(~allowed, -torch.inf)
        total = restricted.logsumexp(-1, keepdim=True)
        if not total.isfinite().all():
            raise UserError(
                "this model gives probabilities that are NaN: either its training diverged, "
                "or the current text of a chain is impossible for it; start from a text that "
                "it knows (--start text)."
            )
        return restricted.sub_(total)


@dataclass(frozen=True, eq=False)
class IndependentProposal:
    """Context-independent proposal: the same distribution at every position, uniform or unigram."""

    token_log_probs: Tensor
    """(V,) log-probabilities; -inf for tokens not allowed in a text."""
    name: str = "uniform"

    @property
    def size(self) -> int:
        return len(self.token_log_probs)

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        return self.token_log_probs.to(masked.device).expand(int(masked.sum()), -1)


def uniform_proposal(vocabulary: Vocabulary) -> IndependentProposal:
    """Uniform proposal over all tokens allowed in a text."""
    allowed = allowed_tokens(vocabulary, vocabulary.size)
    weights = torch.zeros(vocabulary.size, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    return IndependentProposal(torch.log_softmax(weights, -1))


def unigram_proposal(
    texts: Iterable[str], tokenizer: TokenizerProtocol, vocabulary: Vocabulary
) -> IndependentProposal:
    """Unigram proposal: token frequencies in some texts, with add-one smoothing."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode(text))
    weights = torch.ones(vocabulary.size, dtype=torch.float64)
    for token, count in counts.items():
        weights[token] += count
    allowed = allowed_tokens(vocabulary, vocabulary.size)
    weights = weights.log().masked_fill(~allowed, -torch.inf)
    return IndependentProposal(torch.log_softmax(weights, -1), name="unigram")


def allowed_tokens(vocabulary: Vocabulary, size: int) -> Tensor:
    """(V,) bool: tokens allowed inside a text; no special tokens of its ends, no mask."""
    allowed = torch.ones(size, dtype=torch.bool)
    allowed[vocabulary.size :] = False
    edges = {*vocabulary.unpredictable, vocabulary.end, vocabulary.pad}
    allowed[[token for token in edges if token is not None]] = False
    return allowed


@dataclass(frozen=True, kw_only=True, eq=False)
class ProposedTexts:
    """A proposed text for each chain, with forward and backward proposal probabilities."""

    batch: Batch
    forward: Tensor
    """(C,) log-probability of proposing it from the current text, up to terms that cancel."""
    backward: Tensor
    """(C,) log-probability of proposing the current text from it, up to the same terms."""


def resample_positions(
    proposal: ProposalDistribution,
    batch: Batch,
    masked: Tensor,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> ProposedTexts:
    """Resample the tokens of `masked` (C, T), each position independently.

    They are sampled from q^(1/temperature), normalised; forward and backward are exact sums over
    the masked positions of a row, since samples are independent given the rest.
    """
    tokens = batch.tokens.clone()
    forward = torch.zeros(len(batch), dtype=torch.float64, device=tokens.device)
    backward = torch.zeros_like(forward)
    for rows in _row_groups(batch, masked, proposal):
        group, group_masked = batch.select(rows), masked[rows]
        log_probs = apply_temperature(proposal.log_probs(group, group_masked), temperature)
        sampled = sample_tokens(log_probs, generator)
        row_of_sample = rows[group_masked.nonzero()[:, 0]]
        forward.index_add_(0, row_of_sample, _token_log_probs(log_probs, sampled).double())
        backward.index_add_(
            0, row_of_sample, _token_log_probs(log_probs, group.tokens[group_masked]).double()
        )
        tokens[rows] = group.tokens.masked_scatter(group_masked, sampled)
    return ProposedTexts(batch=replace_tokens(batch, tokens), forward=forward, backward=backward)


def apply_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """Tempered distribution p^(1/temperature), normalised (…, V)."""
    if temperature == 1.0:
        return log_probs
    above = log_probs - log_probs.amax(-1, keepdim=True)
    return torch.log_softmax(above / temperature, -1)


def sample_tokens(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """(N,) one token per row (N, V) by inverse-CDF sampling.

    Several times as fast as torch.multinomial for a large vocabulary. The uniform number is in (0,
    total], so tokens of probability 0 are never sampled.
    """
    cdf = log_probs.double().exp().cumsum(-1)
    device = log_probs.device if generator is None else generator.device
    coins = torch.rand(len(log_probs), 1, generator=generator, dtype=torch.float64, device=device)
    return torch.searchsorted(cdf, (1 - coins.to(cdf.device)) * cdf[:, -1:])[:, 0]


def replace_tokens(batch: Batch, tokens: Tensor, lengths: Tensor | None = None) -> Batch:
    """The same rows with other tokens, and other lengths if given."""
    return Batch(
        tokens=tokens,
        lengths=batch.lengths if lengths is None else lengths,
        rows=batch.rows,
        condition=batch.condition,
    )


def make_proposal(
    system: SystemInfo,
    name: str | None,
    texts: Callable[[], Iterable[str]],
    tokenizer: TokenizerProtocol,
) -> ProposalDistribution:
    """The proposal of that name; by default fill if the system supports it, else uniform.

    `texts` are read only for the unigram proposal.
    """
    if name is None:
        name = "fill" if isinstance(system, FillSystem) else "uniform"
    if name not in get_args(ProposalName):
        raise unknown_name("proposal", name, get_args(ProposalName))
    if name == "fill":
        return MaskedLMProposal(require(system, FillSystem, "proposing tokens at masked positions"))
    if name == "uniform":
        return uniform_proposal(system.vocabulary)
    return unigram_proposal(texts(), tokenizer, system.vocabulary)


def _token_log_probs(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _row_groups(batch: Batch, masked: Tensor, proposal: ProposalDistribution) -> Sequence[Tensor]:
    """Rows in groups within the budgets of tokens and of probabilities."""
    rows = torch.arange(len(batch), device=masked.device)
    numbers = proposal.size * max(int(masked.sum(1).max()), 1)
    max_rows = min(TOKENS_PER_BATCH // batch.tokens.shape[1], MAX_PROPOSAL_NUMBERS // numbers)
    groups: Sequence[Tensor] = rows.split(max(1, max_rows))
    return groups
