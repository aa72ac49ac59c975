"""Linear interpolation of language models: p(token | prefix) = Σ_k w_k p_k(token | prefix)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from lmlab.core.batch import Batch
from lmlab.core.capture import Capture
from lmlab.core.distribution import Categorical
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.protocols import LogProbs, ScoringDecoder, require
from lmlab.core.score import ScorerKind
from lmlab.core.state import State
from lmlab.core.system import FrozenSystem, System, TrainableSystem

SUM_TOLERANCE = 1e-6
"""How far the sum of weights may be from one."""


def checked_weights(weights: Sequence[float], components: int) -> tuple[float, ...]:
    """Weights of a mixture; a UserError unless there is one per component and they sum to one."""
    if len(weights) != components:
        raise UserError(
            f"weights must be as many as the models, {components}, got {len(weights)}; give one "
            "for each."
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        listed = ", ".join(f"{weight:g}" for weight in weights)
        raise UserError(f"weights must be 0 or more, got {listed}.")
    total = math.fsum(weights)
    if abs(total - 1) > SUM_TOLERANCE:
        raise UserError(
            f"weights must sum to 1, got {total:g}; divide each by their sum, or leave them out to "
            "tune them."
        )
    return tuple(float(weight) for weight in weights)


@dataclass(frozen=True, eq=False)
class MixtureState:
    """The states of the components, None for one of weight zero."""

    states: tuple[State | None, ...]

    def select(self, rows: Tensor) -> MixtureState:
        return self._map(lambda state: state.select(rows))

    def detach(self) -> MixtureState:
        return self._map(lambda state: state.detach())

    def _map(self, function: Callable[[State], State]) -> MixtureState:
        mapped = (None if state is None else function(state) for state in self.states)
        return MixtureState(tuple(mapped))


class InterpolatedLM(TrainableSystem):
    """Linear interpolation of autoregressive models (Jelinek and Mercer 1980), components frozen.

    p(x_t | x_<t) = Σ_k w_k p_k(x_t | x_<t): the next-token distributions are mixed, not those of
    whole texts, so it is a distribution if the components are. In log space, one component after
    the other: memory is that of two distributions. Those of weight zero are not computed.
    """

    scorer_kind: ClassVar[ScorerKind] = "left-to-right"
    fitting = "em"
    log_weights: Tensor

    def __init__(
        self, components: Sequence[System], weights: Sequence[float], names: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.vocabulary = components[0].vocabulary
        for component in components:
            require(component, ScoringDecoder, "interpolation")
        self.components = nn.ModuleList(FrozenSystem(component) for component in components)
        self.register_buffer("log_weights", torch.zeros(len(components)), persistent=False)
        self.names = tuple(names) or tuple(f"component {k + 1}" for k in range(len(components)))
        self.set_weights(weights)

    def set_weights(self, weights: Sequence[float]) -> None:
        """Set the weights w_k, which must sum to one."""
        checked = checked_weights(weights, len(self.components))
        self.log_weights.copy_(torch.tensor(checked, dtype=torch.float64).log())
        self._active = [index for index, weight in enumerate(checked) if weight > 0]

    def _systems(self) -> Iterator[tuple[int, ScoringDecoder]]:
        """The components that have a weight, with their numbers."""
        systems = self._all_systems()
        for index in self._active:
            # As required of it above.
            yield index, cast(ScoringDecoder, systems[index])

    def _all_systems(self) -> list[System]:
        return [cast(FrozenSystem, component).system for component in self.components]

    @property
    def parameter_count(self) -> int:
        """The sum over the components, whose parameters are frozen and whose tables count too."""
        systems = self._all_systems()
        return sum(max(s.parameter_count, sum(p.numel() for p in s.parameters())) for s in systems)

    @property
    def window(self) -> int | None:
        """The shortest window of its components."""
        return min((w for s in self._all_systems() if (w := s.window) is not None), default=None)

    @property
    def segment_length(self) -> int | None:
        """A common multiple, so that every component is given whole segments."""
        lengths = [n for s in self._all_systems() if (n := s.segment_length) is not None]
        return math.lcm(*lengths) if lengths else None

    @property
    def memory_length(self) -> int | None:
        """The longest memory of its components; None if one forgets nothing."""
        lengths = [system.memory_length for system in self._all_systems()]
        known = [length for length in lengths if length is not None]
        return max(known) if len(known) == len(lengths) else None

    @property
    def cpu_tokens_at_once(self) -> int | None:
        known = [n for s in self._all_systems() if (n := s.cpu_tokens_at_once) is not None]
        return min(known, default=None)

    def check_length(self, tokens: int) -> None:
        for system in self._all_systems():
            system.check_length(tokens)

    def max_generation_length(self, condition: int | None) -> int | None:
        lengths = [system.max_generation_length(condition) for system in self._all_systems()]
        return min((length for length in lengths if length is not None), default=None)

    def _mixed(self, terms: Iterator[tuple[int, Tensor]]) -> Tensor:
        """log Σ_k w_k exp(term k), one term after the other."""
        total: Tensor | None = None
        for index, term in terms:
            weighted = term + self.log_weights[index]
            total = weighted if total is None else torch.logaddexp(total, weighted)
        assert total is not None, "the weights sum to one, so that one is above zero"
        return total

    def log_prob(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> LogProbs:
        """Σ_t log Σ_k w_k p_k(x_t | x_<t), exact."""
        states: list[State | None] = [None] * len(self.components)
        carried = state.states if isinstance(state, MixtureState) else states

        def terms() -> Iterator[tuple[int, Tensor]]:
            for index, component in self._systems():
                before = carried[index]
                scored = component.log_prob(batch, state=before, generator=generator)
                states[index] = scored.state
                yield index, scored.per_token

        mixed = self._mixed(terms())
        carries = all(states[index] is not None for index in self._active)
        return LogProbs(
            per_token=mixed.masked_fill(~batch.targets_mask()[:, 1:], 0.0),
            kind="exact",
            state=MixtureState(tuple(states)) if carries else None,
        )

    def start(self, rows: int, *, condition: Batch | None = None) -> MixtureState:
        """The states of the components before the first token."""
        if condition is not None:
            raise UserError("a condition does not apply to an interpolation; remove it.")
        return self._new_state(lambda index, component: component.start(rows))

    def peek(self, state: MixtureState) -> Categorical:
        """The distribution of the next token, (rows, V)."""
        return Categorical(
            self._mixed(
                (index, component.peek(state.states[index]).log_probs)
                for index, component in self._systems()
            )
        )

    def advance(self, state: MixtureState, tokens: Tensor) -> MixtureState:
        """The states after one more token in each row, (rows,)."""
        return self._new_state(
            lambda index, component: component.advance(state.states[index], tokens)
        )

    def _new_state(self, make: Callable[[int, ScoringDecoder], State]) -> MixtureState:
        states: list[State | None] = [None] * len(self.components)
        for index, component in self._systems():
            states[index] = make(index, component)
        return MixtureState(tuple(states))

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        """The cross-entropy; it has no gradient, as the components are frozen."""
        scored = self.log_prob(batch, state=state, generator=generator)
        count = torch.tensor(float(batch.count), device=scored.per_token.device)
        return Loss(-scored.per_token.sum(), count), scored.state

    @torch.no_grad()
    def capture_internals(self, batch: Batch) -> dict[str, Capture]:
        """The weights, and for each token the posterior over the components."""
        weights = self.log_weights.exp()
        joint = torch.full((*batch.tokens[:, 1:].shape, len(weights)), -torch.inf)
        for index, component in self._systems():
            joint[..., index] = component.log_prob(batch).per_token + self.log_weights[index]
        # Nothing at all at padding.
        posterior = torch.softmax(joint, -1) * batch.targets_mask()[:, 1:, None]
        names = {"choice": tuple(f"{k} {name}" for k, name in enumerate(self.names))}
        return {
            "weights": Capture(
                values=weights,
                axes=("choice",),
                caption="The weight of each component.",
                sums_to_one="choice",
                names=names,
                titles={"choice": "component"},
            ),
            "posterior": Capture(
                values=posterior,
                axes=("batch", "time", "choice"),
                caption="For each token, how probable it is that each component predicted it.",
                sums_to_one="choice",
                names=names,
                titles={"choice": "component"},
            ),
        }
