"""Minimal gated unit (MGU) and a reduced one (MGRU), each term with an ablation switch.

A term that is off leaves the formula, and the parameters that only it used leave the model. Input
projections are computed for all steps at once; the loop has one or two products.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.errors import UserError
from lmlab.layers.recurrent_cells import CellState, RecurrentCell, lerp

MINIMAL_GRU_SWITCHES = (
    "gate-input",
    "gate-hidden",
    "gate-bias",
    "candidate-input",
    "candidate-hidden",
    "candidate-bias",
    "keep",
    "admit",
)
"""Terms of `MinimalGRUCell`, in the order of their numbers."""

MGRU_SWITCHES = (
    "gate-hidden",
    "candidate-input",
    "keep",
    "admit",
    "tanh",
    "forget",
    "no-centring",
    "centring-gate",
    "centring-output",
    "no-logit",
    "no-attention",
    "no-heads",
)
"""Switches of an `MGRUCell`, in the order of their numbers."""


class SwitchCell(RecurrentCell):
    """A cell with numbered switches; `off` has those that are off."""

    switches: tuple[str, ...] = ()
    """Their names, in the order of their numbers."""
    gate_captions = {"update gate": "1 takes the candidate, 0 keeps the old state"}

    def __init__(self, input_width: int, width: int, off: Collection[int]) -> None:
        super().__init__(input_width, width)
        assert set(off) <= set(range(len(self.switches))), "switches are parsed by core.switches"
        self.off = frozenset(off)

    def has(self, *switches: int) -> bool:
        """Whether all of these terms are on."""
        return not self.off.intersection(switches)

    def extra_repr(self) -> str:
        return "off=" + (",".join(map(str, sorted(self.off))) or "none")

    def run(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        outputs, last = [], state
        for after, _ in self.steps(inputs, state):
            outputs.append(after[0])
            last = after
        return self.shown(torch.stack(outputs, 1)), last

    def shown(self, hidden: Tensor) -> Tensor:
        """The outputs that the cell makes of its states."""
        return hidden

    @abstractmethod
    def steps(self, inputs: Tensor, state: CellState) -> Iterator[tuple[CellState, Tensor]]:
        """After each input: the state, and the gate that led to it (B, W)."""

    def gates(self, inputs: Tensor, state: CellState) -> dict[str, Tensor]:
        gates = torch.stack([gate for _, gate in self.steps(inputs, state)], 1)
        return {"update gate": gates.expand(*inputs.shape[:2], self.width)}

    def _matrix(self, rows: int, *, enabled: bool) -> nn.Parameter | None:
        if not enabled:
            return None
        bound = self.width**-0.5
        return nn.Parameter(torch.empty(rows, self.width).uniform_(-bound, bound))

    def _vector(self, *, enabled: bool) -> nn.Parameter | None:
        return nn.Parameter(torch.zeros(self.width)) if enabled else None


class MinimalGRUCell(SwitchCell):
    """Minimal gated unit: one gate updates and resets (Zhou et al. 2016), switches 0 to 7.

        f = σ(x U_f [0] + h V_f [1] + b_f [2])
        g = tanh(x U_h [3] + (h∘f) V_h [4] + b_h [5])
        h' = (1-f)∘h [6] + f∘g [7]

    Without term 7 the candidate is not used, so its terms go too. Without 0 and 3 the cell ignores
    its input. With neither 6 nor 7 there is no state, which is an error.
    """

    switches = MINIMAL_GRU_SWITCHES

    def __init__(self, input_width: int, width: int, *, off: Collection[int] = ()) -> None:
        super().__init__(input_width, width, off)
        if not self.has(6) and not self.has(7):
            raise _nothing_left("keep and admit (6 and 7)")
        has = self.has
        self.can_leave_zero = has(3, 7) or has(5, 7)
        self.gate_input = self._matrix(input_width, enabled=has(0))
        self.gate_hidden = self._matrix(width, enabled=has(1))
        self.gate_bias = self._vector(enabled=has(2))
        self.candidate_input = self._matrix(input_width, enabled=has(3, 7))
        self.candidate_hidden = self._matrix(width, enabled=has(4, 7))
        self.candidate_bias = self._vector(enabled=has(5, 7))

    def steps(self, inputs: Tensor, state: CellState) -> Iterator[tuple[CellState, Tensor]]:
        (hidden,) = state
        to_gate = _project(inputs, self.gate_input, self.gate_bias, self.width)
        to_candidate = _project(inputs, self.candidate_input, self.candidate_bias, self.width)
        for gate_term, candidate_term in zip(
            to_gate.unbind(0), to_candidate.unbind(0), strict=True
        ):
            gate = _add_product(gate_term, hidden, self.gate_hidden).sigmoid()
            if self.has(7):
                reset = hidden if self.candidate_hidden is None else hidden * gate
                candidate = _add_product(candidate_term, reset, self.candidate_hidden).tanh()
                hidden = lerp(hidden, candidate, gate) if self.has(6) else gate * candidate
            else:
                hidden = hidden - gate * hidden
            yield (hidden,), gate


class MGRUCell(SwitchCell):
    """MGRU: the gate sees only the state, the candidate only the input; switches 0 to 11.

        f = σ(h V_f)           [0 off: no h V_f]
        g = tanh(x U_h)        [1 off: no x U_h]       [4 off: sigmoid instead of tanh]
        h' = (1-f)∘j + f∘g     [2 off: no first term]  [3 off: no second term]  [5 off: adds f∘j]
        j = h                  [10 off: attention over all earlier states, by content and distance]
                               [11 off: attention by bilinear heads, queried by h]
        6 off: the gate sees h - ½ and the output is h' - ½;
        with it [7 off: the gate sees h] [8 off: the output is h']
                [9 off: the gate sees atanh(2(h - ½)), clipped]

    10: j = Σ_u softmax_u(h·h_u/√W + p_{t-u}) h_u, with a learned bias p for each distance. 11: head
    a has d of the units, j_a = Σ_u softmax_u(h A_a h_{u,a}/√d) h_{u,a}, A_a (W, d). Both attend to
    the last `attention_span` states, the initial one included, at linear cost; j is a mean of
    earlier states, so that with 4 off and 5 on all states stay between 0 and 1 if the initial one
    does; that then goes through a sigmoid. Without 1 or 3 the cell ignores its input.
    """

    switches = MGRU_SWITCHES
    CLIP = 1 - 1e-4
    """Largest |2(h - ½)| whose atanh is taken."""

    def __init__(
        self,
        input_width: int,
        width: int,
        *,
        off: Collection[int] = (),
        attention_span: int = 128,
        heads: int = 4,
    ) -> None:
        super().__init__(input_width, width, off)
        self._check_switches()
        self.can_leave_zero = self.has(1, 3) or not self.has(4)
        self.attention_span = attention_span
        self.attention_heads = 1 if self.has(11) else math.gcd(width, heads)
        self.gate_hidden = self._matrix(width, enabled=self.has(0))
        self.candidate_input = self._matrix(input_width, enabled=self.has(1, 3))
        self.distance = None if self.has(10) else nn.Parameter(torch.zeros(attention_span))
        self.affinity = self._matrix(width, enabled=not self.has(11))
        self.attends = not self.has(10, 11)
        self.names = ("hidden", "earlier") if self.attends else ("hidden",)

    def _check_switches(self) -> None:
        if not self.has(2) and not self.has(3) and self.has(5):
            raise _nothing_left("keep and admit (2 and 3)")
        if self.has(6):
            for switch in (7, 8, 9):
                if not self.has(switch):
                    raise UserError(
                        f"switch {switch} ({self.switches[switch]}) modifies switch 6 "
                        "(no-centring), so it has no effect alone; switch off 6 too."
                    )
        for one, other, why in (
            (7, 9, "the gate sees h by the one and atanh(2(h - ½)) by the other"),
            (10, 11, "each is another attention in the place of h"),
        ):
            if not self.has(one) and not self.has(other):
                raise UserError(
                    f"switches {one} ({self.switches[one]}) and {other} ({self.switches[other]}) "
                    f"can't both be off: {why}; choose one of them."
                )
        if not self.has(2) and self.has(5) and not self.has(10, 11):
            raise UserError(
                "with switch 2 (keep) off nothing reads the attention of switches 10 and 11; "
                "leave 2 on, or 10 and 11."
            )

    def state_from_free(self, free: CellState) -> CellState:
        hidden = free[0] if self.has(4) else free[0].sigmoid()
        return (hidden, self._by_head(hidden)) if self.attends else (hidden,)

    def shown(self, hidden: Tensor) -> Tensor:
        return hidden if self.has(6) or not self.has(8) else hidden - 0.5

    def steps(self, inputs: Tensor, state: CellState) -> Iterator[tuple[CellState, Tensor]]:
        squash = torch.tanh if self.has(4) else torch.sigmoid
        # Without a recurrent product, the nonlinearity of all steps is computed at once.
        candidates = squash(_project(inputs, self.candidate_input, None, self.width))
        zeros = inputs.new_zeros(len(inputs), self.width)
        for candidate in candidates.unbind(0):
            gate = _add_product(zeros, self._gate_view(state[0]), self.gate_hidden).sigmoid()
            hidden = self._join(gate, candidate, self._retained(state))
            state = (hidden, self._remember(state[1], hidden)) if self.attends else (hidden,)
            yield state, gate

    def _gate_view(self, hidden: Tensor) -> Tensor:
        """The gate's view of the state."""
        if self.has(6) or not self.has(7):
            return hidden
        centred = hidden - 0.5
        if self.has(9):
            return centred
        return torch.atanh((2 * centred).clamp(-self.CLIP, self.CLIP))

    def _join(self, gate: Tensor, candidate: Tensor, retained: Tensor) -> Tensor:
        """h' = (1-f)∘j [2] + f∘g [3] (+ f∘j without 5)."""
        if self.has(2, 3, 5):
            return lerp(retained, candidate, gate)
        if self.has(2):
            share = retained if not self.has(5) else retained - gate * retained
            return torch.addcmul(share, gate, candidate) if self.has(3) else share
        admitted = gate * candidate if self.has(3) else torch.zeros_like(gate)
        return admitted if self.has(5) else torch.addcmul(admitted, gate, retained)

    def _retained(self, state: CellState) -> Tensor:
        """j: the last state, or attention over the earlier ones."""
        if not self.attends:
            return state[0]
        hidden, earlier = state
        if self.affinity is not None:
            queries = self._by_head(hidden @ self.affinity)
            return F.scaled_dot_product_attention(queries, earlier, earlier).view_as(hidden)
        assert self.distance is not None
        states = earlier.squeeze(1)
        scores = torch.bmm(hidden[:, None], states.transpose(1, 2)) * self.width**-0.5
        weights = torch.softmax(scores + self.distance[: states.shape[1]].flip(0), dim=2)
        return torch.bmm(weights, states).squeeze(1)

    def _remember(self, earlier: Tensor, hidden: Tensor) -> Tensor:
        recent = earlier if earlier.shape[2] < self.attention_span else earlier[:, :, 1:]
        return torch.cat([recent, self._by_head(hidden)], 2)

    def _by_head(self, hidden: Tensor) -> Tensor:
        """(B, H, 1, W/H): one state, split into heads."""
        return hidden.view(len(hidden), self.attention_heads, 1, -1)


def _project(inputs: Tensor, weight: Tensor | None, bias: Tensor | None, width: int) -> Tensor:
    """(T, B, W) x U + b for every step; zeros if there is neither."""
    if weight is not None:
        return F.linear(inputs.transpose(0, 1), weight.t(), bias)
    fixed = inputs.new_zeros(width) if bias is None else bias
    return fixed.expand(inputs.shape[1], len(inputs), width)


def _add_product(term: Tensor, hidden: Tensor, weight: Tensor | None) -> Tensor:
    return term if weight is None else torch.addmm(term, hidden, weight)


def _nothing_left(terms: str) -> UserError:
    return UserError(f"with both {terms} off nothing is left of the state; leave one of them on.")
