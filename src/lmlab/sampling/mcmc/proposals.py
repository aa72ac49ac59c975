"""What a Markov chain may put where it has hidden some tokens: one law for each hidden place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.protocols import Fill, require
from lmlab.core.vocabulary import Vocabulary

TOKENS_PER_BATCH = 8192
"""Tokens of texts that are read together."""
MAX_PROPOSAL_NUMBERS = 16_000_000
"""Hidden places times vocabulary whose probabilities stand in memory together."""


class ProposalDistribution(Protocol):
    """A law of tokens for each hidden place, independent of what stood there."""

    @property
    def name(self) -> str:
        """As it is asked for: fill, uniform, unigram."""
        ...

    @property
    def size(self) -> int:
        """V, the numbers of one law."""
        ...

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        """(N, V) log-probabilities, a row for each true entry of `masked` in reading order.

        It must not depend on the tokens at masked places: then the way back from the new text
        hides the same places, sees the same rest and has the same law.
        """
        ...


@dataclass(frozen=True)
class MaskedLMProposal:
    """What a system with `Fill` says of each hidden place given all that is not hidden."""

    system: Any = field(repr=False)
    name: str = "fill"

    def __post_init__(self) -> None:
        require(self.system, Fill, "proposing what stands at a hidden place")

    @property
    def size(self) -> int:
        return int(self.system.vocabulary.size)

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        log_probs: Tensor = self.system.fill(batch, masked).log_probs
        allowed = allowed_tokens(self.system.vocabulary, log_probs.shape[-1]).to(log_probs.device)
        found = log_probs.masked_fill(~allowed, -torch.inf)
        total = found.logsumexp(-1, keepdim=True)
        if not total.isfinite().all():
            raise UserError(
                "this model gives probabilities that are not numbers: either its training has gone "
                "wrong, or the text that a chain has come to is impossible for it; start from a "
                "text that it knows (--start text)."
            )
        return found.sub_(total)


@dataclass(frozen=True, eq=False)
class IndependentProposal:
    """The same law of tokens at every place, whatever stands around it: uniform, or unigram."""

    token_log_probs: Tensor
    """(V,) log-probabilities; -inf for what can't stand in a text."""
    name: str = "uniform"

    @property
    def size(self) -> int:
        return len(self.token_log_probs)

    def log_probs(self, batch: Batch, masked: Tensor) -> Tensor:
        return self.token_log_probs.to(masked.device).expand(int(masked.sum()), -1)


def uniform_proposal(vocabulary: Vocabulary) -> IndependentProposal:
    """All tokens that can stand in a text, each as often."""
    allowed = allowed_tokens(vocabulary, vocabulary.size)
    law = torch.zeros(vocabulary.size, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    return IndependentProposal(torch.log_softmax(law, -1))


def unigram_proposal(
    texts: Iterable[str], tokenizer: Any, vocabulary: Vocabulary
) -> IndependentProposal:
    """Tokens as often as in some texts, one added to each count so that none is out of reach."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(tokenizer.encode(text))
    law = torch.ones(vocabulary.size, dtype=torch.float64)
    for token, count in counts.items():
        law[token] += count
    allowed = allowed_tokens(vocabulary, vocabulary.size)
    law = law.log().masked_fill(~allowed, -torch.inf)
    return IndependentProposal(torch.log_softmax(law, -1), name="unigram")


def allowed_tokens(vocabulary: Vocabulary, size: int) -> Tensor:
    """(V,) bool: what can stand inside a text; not symbols of its edges, nor the mask."""
    allowed = torch.ones(size, dtype=torch.bool)
    allowed[vocabulary.size :] = False
    edges = {*vocabulary.unpredictable, vocabulary.end, vocabulary.pad}
    allowed[[token for token in edges if token is not None]] = False
    return allowed


@dataclass(frozen=True, kw_only=True, eq=False)
class ProposedTexts:
    """A text to go to from each chain's present one, and how likely it was to be proposed."""

    batch: Batch
    forward: Tensor
    """(C,) log-probability of proposing it from the present text, up to what cancels."""
    backward: Tensor
    """(C,) log-probability of proposing the present text from it, up to the same."""


def resample_positions(
    proposal: ProposalDistribution,
    batch: Batch,
    masked: Tensor,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> ProposedTexts:
    """The texts with the tokens of `masked` (C, T) drawn anew, each place by itself.

    The law is q^(1/temperature), normalised; forward and backward are those of all places of a row
    together, which are the ones really used, as the draws are independent given the rest.
    """
    tokens = batch.tokens.clone()
    forward = torch.zeros(len(batch), dtype=torch.float64, device=tokens.device)
    backward = torch.zeros_like(forward)
    for rows in _rows_at_once(batch, masked, proposal):
        some, hidden = batch.select(rows), masked[rows]
        law = apply_temperature(proposal.log_probs(some, hidden), temperature)
        drawn = sample_tokens(law, generator)
        owner = rows[hidden.nonzero()[:, 0]]
        forward.index_add_(0, owner, _at(law, drawn).double())
        backward.index_add_(0, owner, _at(law, some.tokens[hidden]).double())
        tokens[rows] = some.tokens.masked_scatter(hidden, drawn)
    return ProposedTexts(batch=replace_tokens(batch, tokens), forward=forward, backward=backward)


def apply_temperature(log_probs: Tensor, temperature: float) -> Tensor:
    """p^(1/temperature), normalised (…, V)."""
    if temperature == 1.0:
        return log_probs
    above = log_probs - log_probs.amax(-1, keepdim=True)
    return torch.log_softmax(above / temperature, -1)


def sample_tokens(log_probs: Tensor, generator: torch.Generator | None) -> Tensor:
    """(N,) a token from each row (N, V): the first whose cumulative probability reaches a coin.

    Several times as fast as torch.multinomial over a large vocabulary. The coin is in (0, total],
    so that a token of probability 0 never comes.
    """
    reached = log_probs.double().exp().cumsum(-1)
    where = log_probs.device if generator is None else generator.device
    coins = torch.rand(len(log_probs), 1, generator=generator, dtype=torch.float64, device=where)
    return torch.searchsorted(reached, (1 - coins.to(reached.device)) * reached[:, -1:])[:, 0]


def replace_tokens(batch: Batch, tokens: Tensor, lengths: Tensor | None = None) -> Batch:
    """The same rows with other tokens, and other lengths where they are given."""
    return Batch(
        tokens=tokens,
        lengths=batch.lengths if lengths is None else lengths,
        rows=batch.rows,
        condition=batch.condition,
    )


PROPOSALS = ("fill", "uniform", "unigram")


def make_proposal(
    system: Any, name: str | None, texts: Callable[[], Iterable[str]], tokenizer: Any
) -> ProposalDistribution:
    """The proposal of that name; fill where a system has it, else uniform, unless one is named.

    `texts` are counted for the unigram law, and not asked for otherwise.
    """
    if name is None:
        name = "fill" if isinstance(system, Fill) else "uniform"
    if name not in PROPOSALS:
        raise unknown_name("proposal", name, PROPOSALS)
    if name == "fill":
        return MaskedLMProposal(system)
    if name == "uniform":
        return uniform_proposal(system.vocabulary)
    return unigram_proposal(texts(), tokenizer, system.vocabulary)


def _at(law: Tensor, tokens: Tensor) -> Tensor:
    return law.gather(-1, tokens[:, None]).squeeze(-1)


def _rows_at_once(batch: Batch, masked: Tensor, proposal: ProposalDistribution) -> Iterable[Tensor]:
    """Rows in groups that fit the budget of tokens and of numbers."""
    rows = torch.arange(len(batch), device=masked.device)
    numbers = proposal.size * max(int(masked.sum(1).max()), 1)
    most = min(TOKENS_PER_BATCH // batch.tokens.shape[1], MAX_PROPOSAL_NUMBERS // numbers)
    return rows.split(max(1, most))
