"""Capability protocols of models (score, decode, sample, embed, fill, energy, EM), and their check.

A `Batch` may carry a `condition` (a source sentence, a prompt), so a translation model satisfies
the same protocols as a language model. A new protocol is added here with the first system that has
it, and named on that system's card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.answers import Ask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.core.retrieval_protocols import EncodeQueries, Link, Retrieve
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class LogProbs:
    """Log-probabilities of a batch in nats, per token and per sequence.

    A sequence's log-probability is the sum of its row of `per_token` plus `per_sequence`.
    """

    per_token: Tensor
    """(B, T - 1): entry t is for the token at position t + 1 of the batch; 0 at padding."""
    kind: ScoreKind
    per_sequence: Tensor | None = None
    """(B,) the term that belongs to no token (a VAE's KL); None if there is none."""
    low: Tensor | None = None
    """(B,) lower bound, if only an interval is known."""
    high: Tensor | None = None
    """(B,) upper bound, if only an interval is known."""
    state: State | None = None
    """The final state, for text that continues in the next batch."""
    whole_text_only: bool = False
    """Whether only whole texts are scored; `per_token` is then 0 everywhere."""

    @property
    def totals(self) -> Tensor:
        """(B,) log-probability of each sequence."""
        totals = self.per_token.sum(1)
        return totals if self.per_sequence is None else totals + self.per_sequence


@runtime_checkable
class LogProb(Protocol):
    """Log-probability of given sequences."""

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs: ...


@runtime_checkable
class Step(Protocol):
    """Autoregressive decoding: `start` a state, `peek` at the next-token distribution, `advance`.

    `peek` never changes the state, so a system that predicts at a mask token (UniLM) fits too. A
    state is the system's own: `peek` and `advance` take what its `start` or `advance` returned.
    """

    def start(self, rows: int, *, condition: Batch | None = None) -> State:
        """The state of `rows` sequences after their start token."""

    def peek(self, state: Any) -> Categorical:
        """The distribution of the next token, (rows, V)."""

    def advance(self, state: Any, tokens: Tensor) -> State:
        """The state after appending the given tokens (rows,)."""


@runtime_checkable
class Decoder(Step, Protocol):
    """What the decoding algorithms need: a system with `Step`, or the decoder of a text's blanks.

    Not listed on cards, which name `Step`.
    """

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the tokens that it generates."""

    def max_generation_length(self, condition: int | None) -> int | None:
        """Maximum number of tokens, the prefix included, given a condition of so many tokens.

        None if there is no limit.
        """


@runtime_checkable
class Sample(Protocol):
    """Sampling of whole sequences, for systems without `Step` (a PCFG, a residual model)."""

    def sample(
        self,
        rows: int,
        *,
        max_length: int,
        condition: Batch | None = None,
        generator: torch.Generator | None = None,
    ) -> list[list[int]]: ...


@runtime_checkable
class Encode(Protocol):
    """Sequence embedding: one vector per sequence."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) a vector for each sequence; the mean of the latent if that has a distribution."""


@runtime_checkable
class EncodeTokens(Protocol):
    """Contextual token embeddings: a vector for each token of a sequence."""

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) a vector for each position of the batch; arbitrary at padding."""


@runtime_checkable
class ScoringDecoder(LogProb, Decoder, Protocol):
    """What scores sequences and generates them token by token."""


@runtime_checkable
class Given(Protocol):
    """Latent-variable decoder: a distribution over sequences for each latent vector."""

    def given(self, latents: Tensor) -> ScoringDecoder:
        """The system with LogProb and Step conditioned on the latents (rows, L).

        One latent serves any number of rows; several serve as many rows as there are latents.
        """


@runtime_checkable
class Fill(Protocol):
    """Masked prediction: the distribution of each masked token given the unmasked ones."""

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """One row (N, V) for each true entry of `masked` (B, T), in row-major order.

        Tokens at masked positions are ignored; if a row has several, each is predicted with the
        others unknown. Position 0 and padding can't be masked.
        """


class JointDistribution(Protocol):
    """Joint distribution of all masked tokens of each row.

    Tokens are in row-major order of `masked`: N over all rows, B rows.
    """

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) joint log-probability of the given tokens (N,) of each row."""

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens sampled for all masked positions."""

    def best(self) -> Tensor:
        """(N,) the jointly most probable tokens of each row."""


@runtime_checkable
class JointFill(Protocol):
    """Joint masked prediction: the joint distribution of a text's masked tokens."""

    def joint_fill(self, batch: Batch, masked: Tensor) -> JointDistribution:
        """For the true entries of `masked` (B, T), whose tokens are ignored."""


LMHead = Literal["own", "none"]
"""own: the model's own LM head; none: the inner product of the last hidden state with the token
embedding."""


@runtime_checkable
class Logits(Protocol):
    """Unnormalised token scores (logits), at masked and at unmasked positions."""

    def logits(
        self, batch: Batch, masked: Tensor, targets: Tensor | None = None, *, head: LMHead = "own"
    ) -> Tensor:
        """(N, V) logits at the true entries of `targets` (B, T), by default those of `masked`.

        The positions of `masked` (B, T) are masked; at any other, the model also sees the token of
        that position itself. Tokens that are never predicted have -inf.
        """


@runtime_checkable
class Energy(Protocol):
    """Energy-based model: p(text | its length) ∝ exp(-E(text)).

    The start and the end token are part of the text, and the same in all texts of a length.
    """

    def energy(self, batch: Batch, blanks: Tensor | None = None) -> Tensor:
        """(B,) E of each text, in nats.

        `blanks` (B, T): the free positions of a template that the texts share, for systems whose
        energy treats template and blanks differently; others ignore it.
        """


@runtime_checkable
class Vectors(Protocol):
    """Static word embeddings: one vector per vocabulary entry, independent of context."""

    def vectors(self) -> Tensor:
        """(V, W) by id."""


@runtime_checkable
class Detect(Protocol):
    """Replaced token detection (ELECTRA): whether each token is the original."""

    def detect(self, batch: Batch) -> Tensor:
        """(B, T) log-odds that the token at each position was replaced; -inf at padding."""


@runtime_checkable
class Multilingual(Protocol):
    """Language embeddings (XLM): a text without a source is in a selected language."""

    languages: tuple[str, ...]

    def use_language(self, name: str) -> None:
        """Take texts without a source to be in this language; a UserError if it is unknown."""


class InfillDecoder(Decoder, Protocol):
    """Decoder of the answers to a text's blanks, used as any autoregressive decoder.

    For each text it generates one sequence over its own `vocabulary`: all answers in turn, with
    separators, up to its end token. `peek` gives the system's own log-probabilities, but -inf where
    a token could not lead to an answer (T5: the sentinel of a blank out of turn), so they may sum
    to less than one.
    """

    answer_tokens: Tensor
    """(V,) bool: the tokens of its vocabulary that may occur in an answer."""

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The answer to each blank of text `row`, parsed from tokens without the end token.

        An answer may be empty. If generation was cut off, later answers are empty.
        """

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        """The inverse of `answers`: the token sequence for these answers, without the end token."""


@runtime_checkable
class Infill(Protocol):
    """Infilling: blanks of unknown length, decoded left to right given both contexts."""

    def infill_decoder(self, batch: Batch) -> InfillDecoder:
        """The decoder of each row's blanks; each mask token in the batch is one blank.

        Its `start(rows)` takes the number of rows of the batch, each with its own text.
        """


@runtime_checkable
class Countable(Protocol):
    """Count-based estimation in one pass over the training sequences."""

    def fit_counts(self, tokens: Any, offsets: Any) -> str | None:
        """Set the tables from flat ids and the offsets of the sequences (numpy arrays).

        Returns a message for the user, if there is one.
        """


@runtime_checkable
class ExpectationMaximisation(Protocol):
    """Expectation maximisation: expected counts over all batches, then the best parameters."""

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        """E-step: expected counts of one batch, to be summed over batches and processes."""

    def maximise(self, counts: dict[str, Tensor]) -> None:
        """M-step: set the parameters to the maximum of the expected log-likelihood."""


PROTOCOLS: dict[str, type] = {
    protocol.__name__: protocol
    for protocol in (
        LogProb,
        Step,
        Sample,
        Encode,
        EncodeTokens,
        Given,
        Fill,
        JointFill,
        Logits,
        Infill,
        Energy,
        Vectors,
        Detect,
        Multilingual,
        EncodeQueries,
        Retrieve,
        Ask,
        Link,
        Countable,
        ExpectationMaximisation,
    )
}


MAX_NAMES_LISTED = 8
"""Maximum number of systems listed in an error."""


P = TypeVar("P")


def require(system: object, protocol: type[P], verb: str) -> P:
    """The system, typed by the protocol; a UserError that lists capable ones if it lacks it.

    Of a combined protocol (`StepSystem`), the error names the one that cards name (`Step`).
    """
    if isinstance(system, protocol):
        return system
    raise UserError(
        f"{verb} needs a system with {_card_name(protocol)}, which this one lacks; systems that "
        f"have it: {systems_with(protocol)}."
    )


def _card_name(protocol: type) -> str:
    """The name of a protocol on cards; that of the first one combined in it, if there is one."""
    return next((c.__name__ for c in protocol.__mro__ if c.__name__ in PROTOCOLS), "")


def systems_with(protocol: type) -> str:
    """The names of the catalogue's systems with a protocol, truncated."""
    name = _card_name(protocol)
    names = [card.name for card in catalogue().values() if name in card.protocols]
    more = (
        f" and {len(names) - MAX_NAMES_LISTED} more (lmlab systems)"
        if len(names) > MAX_NAMES_LISTED
        else ""
    )
    return ", ".join(names[:MAX_NAMES_LISTED]) + more
