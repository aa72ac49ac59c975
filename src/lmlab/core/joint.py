"""Systems that fill several masked tokens in together, by one distribution over all of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.distribution import Categorical
from lmlab.core.errors import LmlabWarning
from lmlab.core.filling import Filling
from lmlab.core.kinds import Kind
from lmlab.core.parts import Emission, Predictions, target_places
from lmlab.core.protocols import Joint
from lmlab.core.state import State
from lmlab.core.view import View

NOT_PROVEN = (
    "The search for the likeliest fillings was given up before it was sure; what is told is the "
    "best that was found."
)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One filling of a row's blanks."""

    tokens: tuple[int, ...]
    log_prob: float
    """In nats, of all tokens together."""
    kind: Kind = "exact"
    """pseudo where it is the sum of the tokens' conditionals, as their joint sum is not known."""
    proven: bool = True
    """Whether nothing that stands behind it in the ranking can be likelier."""


@runtime_checkable
class RankedJoint(Joint, Protocol):
    """A joint distribution that can tell its likeliest fillings in order."""

    def ranked(self, row: int, count: int) -> list[Ranked]:
        """The `count` likeliest fillings of one row's blanks, best first; fewer if there are."""
        ...


def likeliest(joint: RankedJoint, rows: int, device: torch.device) -> Tensor:
    """(N,) the likeliest tokens of each of `rows` rows; a warning where the search is not sure."""
    found = [joint.ranked(row, 1)[0] for row in range(rows)]
    if not all(each.proven for each in found):
        warnings.warn(NOT_PROVEN, LmlabWarning, stacklevel=3)
    tokens = [token for each in found for token in each.tokens]
    return torch.tensor(tokens, dtype=torch.int64, device=device)


class TokenJoint(Protocol):
    """A distribution of n tokens together for each of B rows, a row's blanks first.

    Behind a row's number of blanks anything may stand: it is not looked at.
    """

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of each row's tokens (B, n), together; 0 for a row of none."""
        ...

    def prefix_log_probs(self, tokens: Tensor) -> Tensor:
        """(B, n) log-probability of each row's tokens up to each place, later ones unknown."""
        ...

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n) tokens drawn together."""
        ...

    def marginals(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(B, n, V) log-probabilities of each place by itself, the others unknown."""
        ...

    def ranked(self, row: int, count: int) -> list[Ranked]:
        """The likeliest fillings of one row, best first."""
        ...


class JointEmission(Emission):
    """Hidden states at several blanks of a text to one distribution over all their tokens.

    As an emission it gives what one blank has by itself.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"vectors"})

    def joint(
        self, hidden: Tensor, lengths: Tensor, *, generator: torch.Generator | None = None
    ) -> TokenJoint:
        """The distribution given hidden states (B, n, W), of which `lengths` (B,) are blanks.

        A generator is given in training alone, to those that choose something at random there.
        """
        raise TypeError(f"{type(self).__name__} does not define joint")

    def joint_loss(
        self,
        hidden: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B,) what training minimises: minus the log-probability of tokens (B, n) together."""
        return -self.joint(hidden, lengths, generator=generator).log_prob(tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class Blanks:
    """Where the blanks of each row are: from (B, T) and back."""

    masked: Tensor
    """(B, T) bool."""
    lengths: Tensor
    """(B,) how many each row has."""
    index: Tensor
    """(B, n) their places in reading order; other places behind a row's own."""

    @classmethod
    def of(cls, masked: Tensor) -> Blanks:
        """Those of a mask (B, T); n is the most that a row has, and at least one."""
        lengths = masked.sum(1)
        most = max(1, int(lengths.max())) if len(masked) else 1
        index = (~masked).long().argsort(dim=1, stable=True)[:, :most]
        return cls(masked=masked, lengths=lengths, index=index)

    @property
    def real(self) -> Tensor:
        """(B, n) bool: whether there is such a blank."""
        number = torch.arange(self.index.shape[1], device=self.index.device)
        return number < self.lengths[:, None]

    def gather(self, values: Tensor) -> Tensor:
        """(B, n, …) what stands at the blanks in (B, T, …)."""
        row = torch.arange(len(values), device=values.device)[:, None]
        return values[row, self.index]

    def pad(self, packed: Tensor) -> Tensor:
        """(B, n, …) from the (N, …) of all blanks in reading order; 0 where there is none."""
        padded = packed.new_zeros(*self.index.shape, *packed.shape[1:])
        return padded.index_put(self.real.nonzero(as_tuple=True), packed)


@dataclass(frozen=True, eq=False)
class PackedJoint:
    """A TokenJoint asked by the (N,) tokens of all blanks in reading order: protocol `Joint`."""

    blanks: Blanks
    padded: TokenJoint

    def log_prob(self, tokens: Tensor) -> Tensor:
        """(B,) log-probability of the given tokens (N,) of each row, together."""
        return self.padded.log_prob(self.blanks.pad(tokens))

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """(N,) tokens drawn for all blanks."""
        return self.padded.sample(generator=generator)[self.blanks.real]

    def best(self) -> Tensor:
        """(N,) the likeliest tokens of each row, together; a warning where it is not sure."""
        return likeliest(self, len(self.blanks.masked), self.blanks.masked.device)

    def ranked(self, row: int, count: int) -> list[Ranked]:
        """The likeliest fillings of one row, best first."""
        return self.padded.ranked(row, count)


class JointFilling(Filling):
    """A system that fills masked tokens in together, by an emission for several of them."""

    emission: JointEmission

    def joint_fill(self, batch: Batch, masked: Tensor) -> PackedJoint:
        """The distribution of the tokens at the true entries of `masked` (B, T), together."""
        blanks, hidden = self._at(batch, masked)
        return PackedJoint(blanks, self.emission.joint(hidden, blanks.lengths))

    def fill(
        self, batch: Batch, masked: Tensor, *, generator: torch.Generator | None = None
    ) -> Categorical:
        """(N, V) each place by itself: the joint's marginals, in reading order."""
        blanks, hidden = self._at(batch, masked)
        joint = self.emission.joint(hidden, blanks.lengths)
        return Categorical(joint.marginals(generator=generator)[blanks.real])

    def _at(self, batch: Batch, masked: Tensor) -> tuple[Blanks, Tensor]:
        """The blanks and their hidden states (B, n, W)."""
        blanks = Blanks.of(masked)
        return blanks, blanks.pad(self.hidden_at(self.objective.fill_view(batch, masked), masked))

    def marginals_at(self, batch: Batch, masked: Tensor, asked: Tensor) -> Tensor:
        """(N,) log-probabilities of the tokens at `asked` (B, T), each as `fill` gives it.

        A place that is asked and not masked is seen, and the emission's alone.
        """
        hidden = self.hidden(self.objective.fill_view(batch, masked)).values
        blanks = Blanks.of(masked)
        joint = self.emission.joint(blanks.gather(hidden), blanks.lengths)
        tokens = blanks.gather(batch.tokens)
        each = joint.marginals().gather(-1, tokens[..., None])[..., 0]
        found = torch.zeros(masked.shape, dtype=each.dtype, device=each.device)
        found = found.masked_scatter(masked, each[blanks.real])
        seen = asked & ~masked
        alone = self.emission.log_prob(hidden[seen], batch.tokens[seen])
        return found.masked_scatter(seen, alone.to(found))[asked]

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        """Each target given those before it, by the chain rule: their sum is the joint's."""
        blanks, hidden, tokens = self._asked(view)
        so_far = self.emission.joint(hidden, blanks.lengths).prefix_log_probs(tokens)
        before = torch.cat([torch.zeros_like(so_far[:, :1]), so_far[:, :-1]], 1)
        return Predictions(log_probs=(so_far - before)[blanks.real], places=blanks.masked)

    def joint_loss(self, view: View, *, generator: torch.Generator | None = None) -> Tensor:
        """(B,) what is lost on the targets of each row, together."""
        blanks, hidden, tokens = self._asked(view)
        lost = self.emission.joint_loss(hidden, blanks.lengths, tokens, generator=generator)
        # A row without a blank has nothing to lose.
        return torch.where(blanks.lengths > 0, lost, 0.0)

    def _asked(self, view: View) -> tuple[Blanks, Tensor, Tensor]:
        """A view's targets as blanks, their hidden states (B, n, W) and their tokens (B, n)."""
        assert view.targets is not None
        blanks = Blanks.of(target_places(view))
        hidden = blanks.pad(self.hidden_at(view, blanks.masked))
        return blanks, hidden, blanks.pad(view.targets[blanks.masked])
