"""What a system can do, as small protocols; each verb of the laboratory asks for the one it needs.

A `Batch` may carry a `condition` (a source sentence, a prompt), so a translator satisfies the same
protocols as a language model. A later protocol is added here with the first system that has it, and
its name goes on that system's card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.answers import Ask
from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.entity_mentions import MentionLink
from lmlab.core.errors import UserError
from lmlab.core.registry import catalogue
from lmlab.core.score_kind import ScoreKind
from lmlab.core.state import State
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class LogProbs:
    """Log-probabilities of a batch in nats, by place and by sequence.

    A sequence's log-probability is the sum of its row of `per_token` plus `per_sequence`.
    """

    per_token: Tensor
    """(B, T - 1): entry t is for the token at place t + 1 of the batch; 0 where nothing is."""
    kind: ScoreKind
    per_sequence: Tensor | None = None
    """(B,) the part that belongs to no token (a VAE's KL); None where there is none."""
    low: Tensor | None = None
    """(B,) lower end, where only an interval is known."""
    high: Tensor | None = None
    """(B,) upper end, where only an interval is known."""
    state: State | None = None
    """Where to go on from, for text that continues in the next batch."""
    whole_text_only: bool = False
    """Whether texts are scored as a whole: `per_token` is 0 everywhere, and says nothing."""

    @property
    def totals(self) -> Tensor:
        """(B,) log-probability of each sequence."""
        totals = self.per_token.sum(1)
        return totals if self.per_sequence is None else totals + self.per_sequence


class TokenizerProtocol(Protocol):
    """What a system may ask of a tokeniser before it is trained."""

    kind: str
    """word, character, bpe, wordpiece …"""

    def token(self, id: int) -> str:
        """What an id stands for."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, symbols left out."""
        ...


@runtime_checkable
class LogProb(Protocol):
    """Log-probability of given sequences."""

    def log_prob(
        self,
        batch: Batch,
        *,
        state: State | None = None,
        generator: torch.Generator | None = None,
    ) -> LogProbs: ...


@runtime_checkable
class Step(Protocol):
    """Token by token: a state to start from, `peek` at the next distribution, `advance` by tokens.

    `peek` never changes the state, so a system that predicts at a mask (UniLM) fits as well.
    """

    def start(self, rows: int, *, condition: Batch | None = None) -> State:
        """The state of `rows` sequences after their start symbol."""
        ...

    def peek(self, state: State) -> Categorical:
        """The distribution of the next token, (rows, V)."""
        ...

    def advance(self, state: State, tokens: Tensor) -> State:
        """The state after the given tokens (rows,) have been added."""
        ...


@runtime_checkable
class Sample(Protocol):
    """Draw whole sequences, for systems that can't step (a PCFG, a residual model)."""

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
    """A sequence as one vector."""

    def encode(self, batch: Batch) -> Tensor:
        """(B, L) a vector for each sequence; a latent's mean where it has a distribution."""
        ...


@runtime_checkable
class EncodeTokens(Protocol):
    """Each token of a sequence as a vector that has seen the others (as far as it may)."""

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) a vector for each place of the batch; anything at padding."""
        ...


@runtime_checkable
class Given(Protocol):
    """A distribution over sequences for each value of a latent vector."""

    def given(self, latents: Tensor) -> Any:
        """What sequences are like given the latents (rows, L): a system with LogProb and Step.

        One latent serves any number of rows; several serve as many rows as they are.
        """
        ...


@runtime_checkable
class Fill(Protocol):
    """The distribution of masked tokens given all the others, each masked place alone."""

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """One row (N, V) for each true entry of `masked` (B, T), in reading order.

        Tokens at masked places are not looked at; where a row of the batch has several, each of
        them is predicted with the others unknown. Place 0 and padding can't be masked.
        """
        ...


class JointDistribution(Protocol):
    """The distribution of all masked tokens of each row together.

    Tokens stand in reading order of the `masked` they were asked by, N over all rows, B rows.
    """

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of the given tokens (N,) of each row, together."""
        ...

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens drawn for all masked places."""
        ...

    def best(self) -> Tensor:
        """(N,) the likeliest tokens of each row, together."""
        ...


@runtime_checkable
class JointFill(Protocol):
    """The distribution of the masked tokens of a text together, given all the others."""

    def joint_fill(self, batch: Batch, masked: Tensor) -> JointDistribution:
        """For the true entries of `masked` (B, T), whose tokens are not looked at."""
        ...


LMHead = Literal["own", "none"]
"""own: the model's own way from a hidden state to scores of tokens; none: the inner product of the
last hidden state with the embedding of a token."""


@runtime_checkable
class Logits(Protocol):
    """Scores of tokens before they are normalised, at masked places and at others."""

    def logits(
        self, batch: Batch, masked: Tensor, asked: Tensor | None = None, *, head: LMHead = "own"
    ) -> Tensor:
        """(N, V) scores at the true entries of `asked` (B, T), those of `masked` unless given.

        The places of `masked` (B, T) are hidden; what stands at any other is seen, at its own
        place too. Tokens that are never predicted have -inf.
        """
        ...


@runtime_checkable
class Energy(Protocol):
    """An unnormalised log-probability: p(text | its length) ∝ exp(-E(text)).

    The start and the end symbol are part of the text, and the same in all texts of a length.
    """

    def energy(self, batch: Batch) -> Tensor:
        """(B,) E of each text, in nats."""
        ...


@runtime_checkable
class Vectors(Protocol):
    """A vector for each word of the vocabulary, whatever its context."""

    def vectors(self) -> Tensor:
        """(V, W) by id."""
        ...


@runtime_checkable
class Detect(Protocol):
    """Whether each token of a text is the one that was written, or was put in its place."""

    def detect(self, batch: Batch) -> Tensor:
        """(B, T) log-odds that the token at each place was replaced; -inf at padding."""
        ...


class InfillDecoder(Step, Protocol):
    """What writes the answers to the blanks of some texts, token by token, as any text is written.

    So one decoding loop and one search serve it. What it writes for a text is one sequence of
    its own `vocabulary`: all answers one after another, with whatever stands between them, to its
    end symbol. `peek` gives the system's own log-probabilities, but -inf where a token could not
    lead to an answer (T5: the sentinel of a blank out of turn), so they may sum to less than one.
    """

    vocabulary: Vocabulary
    answer_tokens: Tensor
    """(V,) bool: the tokens of its vocabulary that may stand in an answer."""

    def answers(self, row: int, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """The answer to each blank of text `row`, read out of what was written, its end left out.

        An answer may be empty. Where the writing was cut off, later answers are empty.
        """
        ...

    def linearise_fillings(self, row: int, answers: Sequence[Sequence[int]]) -> list[int]:
        """The other way: what is written where these are the answers, its end left out."""
        ...


@runtime_checkable
class Infill(Protocol):
    """Blanks of unknown length, written from left to right given all that stands around them."""

    def infill_decoder(self, batch: Batch) -> InfillDecoder:
        """What writes the blanks of each row: a mask symbol in the batch is one blank.

        Its `start(rows)` takes the number of rows of the batch, each with its own text.
        """
        ...


@runtime_checkable
class EncodeQueries(Protocol):
    """A question as one vector, in the space of the documents' vectors (`Encode`)."""

    def encode_queries(self, batch: Batch) -> Tensor:
        """(B, L) a vector for each question; its inner product with a document's is the score."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievedDocuments:
    """The documents that were found for each of B questions, the likeliest first."""

    numbers: Tensor
    """(B, K) by their place in the documents; -1 is the null document."""
    log_probs: Tensor
    """(B, K) log p(document | question), normalised over these K."""

    def select(self, rows: Tensor) -> RetrievedDocuments:
        return RetrievedDocuments(numbers=self.numbers[rows], log_probs=self.log_probs[rows])

    def ranked(self) -> RetrievedDocuments:
        """The most probable first."""
        order = self.log_probs.argsort(dim=1, descending=True, stable=True)
        return RetrievedDocuments(
            numbers=self.numbers.gather(1, order), log_probs=self.log_probs.gather(1, order)
        )


@runtime_checkable
class Retrieve(Protocol):
    """Documents looked up for a text."""

    documents: Any
    """What is looked up: a `retrieval.documents.Documents`."""

    def retrieve(self, batch: Batch, *, documents: int | None = None) -> RetrievedDocuments:
        """The likeliest documents for each row; as many as it was trained with unless told."""
        ...


@runtime_checkable
class WithDocuments(Retrieve, Protocol):
    """Documents that can be exchanged after training; no protocol of the cards, a use of one."""

    @property
    def max_document_length(self) -> int:
        """Tokens of a document that are read at most, its symbols counted."""
        ...

    @property
    def index_recall(self) -> float | None:
        """Share of the ten nearest documents that its index found when it was built."""
        ...

    def with_documents(
        self, documents: Any, *, vectors: Tensor | None = None, index: Any = None
    ) -> Any:
        """The same system, weights and all, that looks things up in other documents.

        They are embedded by its own encoder, unless it made their vectors (N, width) before, which
        may be searched by an index; the system itself stays as it is.
        """
        ...


@runtime_checkable
class WithFacts(Protocol):
    """Facts that can be exchanged after training; no protocol of the cards."""

    def with_facts(self, edits: Sequence[tuple[str, str, str]], knowledge: Any = None) -> Any:
        """The same system, weights and all, with other facts, and then some edited."""
        ...


@runtime_checkable
class Link(Protocol):
    """Mentions of entities found in a text, and told apart by what stands around them."""

    knowledge: Any
    """Whose entities they are: a `knowledge.knowledge.Knowledge`."""

    def link(self, batch: Batch) -> list[MentionLink]:
        """Every mention in the rows of a clean batch, by row, first and last place.

        Mentions may overlap. What the batch tells of entities is not looked at.
        """
        ...


@runtime_checkable
class Countable(Protocol):
    """Fitted by one pass of counting over the training sequences."""

    def fit_counts(self, tokens: Any, offsets: Any) -> str | None:
        """Set the tables from flat ids and the offsets of the sequences (numpy arrays).

        Returns a sentence that the user should read, where there is something to say.
        """
        ...


@runtime_checkable
class ExpectationMaximisation(Protocol):
    """Fitted by EM: expected counts over all batches, then the best parameters given them."""

    def expect(self, batch: Batch) -> dict[str, Tensor]:
        """Expected counts of one batch, to be added over batches and processes."""
        ...

    def maximise(self, counts: dict[str, Tensor]) -> None:
        """Set the parameters to the maximum of the expected log-likelihood."""
        ...


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
        EncodeQueries,
        Retrieve,
        Ask,
        Link,
        Countable,
        ExpectationMaximisation,
    )
}


MAX_NAMES_LISTED = 8
"""Systems that an error names; a longer list is not read."""


def require(system: object, protocol: type, verb: str) -> None:
    """A UserError that names the systems that could, if this one can't do what a verb needs."""
    if isinstance(system, protocol):
        return
    raise UserError(
        f"{verb} needs a system with {protocol.__name__}, and this one has none; "
        f"those that have it: {systems_with(protocol)}."
    )


def systems_with(protocol: type) -> str:
    """The names of the systems of the catalogue that have a protocol, the first of many."""
    able = [card.name for card in catalogue().values() if protocol.__name__ in card.protocols]
    more = (
        f" and {len(able) - MAX_NAMES_LISTED} more (lmlab systems)"
        if len(able) > MAX_NAMES_LISTED
        else ""
    )
    return ", ".join(able[:MAX_NAMES_LISTED]) + more
