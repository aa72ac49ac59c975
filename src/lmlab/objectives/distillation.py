"""Knowledge distillation: soft targets and hidden states of a teacher, on its student's views.

Hinton et al. 2015; Sanh et al. 2019 (DistilBERT); Jiao et al. 2020 (TinyBERT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmlab.core.assembly import Assembly
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.parts import Emission, HiddenStates, Predictions, prediction_mask
from lmlab.core.state import State
from lmlab.core.system import System
from lmlab.core.untrusted_input import parse_integer
from lmlab.core.view import View
from lmlab.layers.stack import LayerPass, Stack
from lmlab.objectives.objective_interfaces import sum_losses

LayerPairs = Sequence[tuple[int, int]]
"""Pairs of a student's and a teacher's layer; 0 is the input of the first layer."""


def soft_target_losses(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """(N,) T² KL(p_T ‖ q_T) from the log-probabilities (N, V) of a teacher p and a student q.

    p_T ∝ p^(1/T), the softmax of the logits over T. The factor T² keeps the size of the gradient
    independent of T (Hinton et al. 2015). Tokens that the teacher never predicts add nothing.
    """
    log_p = F.log_softmax(teacher / temperature, -1)
    log_q = F.log_softmax(student / temperature, -1)
    differences = (log_p - log_q).masked_fill(log_p.isneginf(), 0.0)
    return temperature**2 * (log_p.exp() * differences).sum(-1)


def hidden_state_losses(student: Tensor, teacher: Tensor) -> Tensor:
    """(N,) mean squared errors of hidden states (N, W), over their units."""
    return (student - teacher).square().mean(-1)


def parse_layer_pairs(pairs: Sequence[str]) -> list[tuple[int, int]]:
    """Parse `2:4` as the student's layer 2 and the teacher's layer 4."""
    parsed = []
    for text in pairs:
        student, teacher = map(parse_integer, text.partition(":")[::2])
        if student is None or teacher is None:
            raise UserError(
                f"hidden_state_layers must be pairs such as 1:2,2:4 (layers of the student and of "
                f"the teacher, 0 for the embeddings), got {text!r}."
            )
        parsed.append((student, teacher))
    return parsed


def uniform_layer_pairs(student: int, teacher: int) -> list[tuple[int, int]]:
    """Layer m of M of a student to layer round(m N / M) of a teacher's N, embeddings included.

    TinyBERT's uniform mapping.
    """
    return [(m, round(m * teacher / student)) for m in range(student + 1)]


@dataclass(frozen=True, kw_only=True, eq=False)
class TeacherPredictions:
    """What a teacher predicts at the targets of a view."""

    log_probs: Tensor
    """(N, V)"""
    state: State | None
    passes: list[LayerPass]
    """Hidden states of each pass of a stack, where they are requested."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A trained system whose predictions another learns; frozen, in evaluation mode.

    It is no module of its student's: neither saved with it, nor trained, nor copied.
    """

    system: Assembly
    name: str
    """The name of its run."""

    def __post_init__(self) -> None:
        self.system.requires_grad_(False).eval()

    def __deepcopy__(self, memo: dict[int, object]) -> Teacher:
        return self

    @torch.no_grad()
    def predict(
        self, view: View, state: State | None = None, *, layers: bool = False
    ) -> TeacherPredictions:
        """Its distributions at the targets of a view, and its hidden states if requested."""
        limit, positions = self.system.backbone.max_positions, view.inputs.shape[1]
        if limit is not None and positions > limit:
            raise UserError(
                f"the teacher {self.name} encodes at most {limit} positions, got {positions}; give "
                f"shorter texts, or train the student with --set length={limit}."
            )
        with recorded_layers(self.system, layers) as passes:
            hidden = self.system.hidden(view, state)
        log_probs = self.system.distributions(view, hidden)
        return TeacherPredictions(log_probs=log_probs, state=hidden.state, passes=passes)


@contextmanager
def recorded_layers(system: Assembly, wanted: bool = True) -> Iterator[list[LayerPass]]:
    """Context manager that records the hidden states of every pass of the backbone's stacks."""
    passes: list[LayerPass] = []
    with ExitStack() as recordings:
        for module in system.backbone.modules():
            if wanted and isinstance(module, Stack):
                recordings.enter_context(module.recorded_passes(passes))
        yield passes


@dataclass(eq=False)
class StudentNetwork:
    """The network seen by an objective's loss; it records the view, hidden states, distributions.

    Probabilities of targets are read from the whole distributions, which are computed once.
    """

    network: Assembly
    layers: bool = False
    """Whether the hidden states of all layers are recorded."""
    view: View | None = None
    output: HiddenStates | None = None
    passes: list[LayerPass] = field(default_factory=list)
    _log_probs: Tensor | None = None

    @property
    def emission(self) -> Emission:
        return self.network.emission

    def hidden(self, view: View, state: State | None = None) -> HiddenStates:
        assert self.view is None, "an objective that predicts from one view"
        with recorded_layers(self.network, self.layers) as self.passes:
            self.view, self.output = view, self.network.hidden(view, state)
        return self.output

    def distributions(self) -> Tensor:
        """(N, V) log-probabilities of all tokens at the targets of the view."""
        assert self.view is not None and self.output is not None
        if self._log_probs is None:
            self._log_probs = self.network.distributions(self.view, self.output)
        return self._log_probs

    def target_log_probs(self, view: View, state: State | None = None) -> Predictions:
        return self.predict(view, self.hidden(view, state))

    def predict(self, view: View, hidden: HiddenStates) -> Predictions:
        assert view is self.view and hidden is self.output
        mask, targets = prediction_mask(view), view.prediction_view.targets
        assert targets is not None
        log_probs = self.distributions().gather(-1, targets[mask][:, None]).squeeze(-1)
        return Predictions(log_probs=log_probs, target_mask=mask, state=hidden.state)

    def scores(
        self, hidden: HiddenStates, mask: Tensor, candidates: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        return self.network.scores(hidden, mask, candidates, shared)

    def initialise_logits(self, log_probs: Tensor) -> None:
        self.network.initialise_logits(log_probs)


class HiddenStateMatcher(nn.Module):
    """Mean squared error of a student's hidden states to those of its teacher, layer by layer.

    For each pair of layers (m, n) and each position, ‖W_m h_m - h'_n‖² / width, averaged over the
    pairs. W_m (no bias) is learned where the widths differ, and no part of the student; else it is
    left out. An encoder-decoder has two stacks, whose layers are paired alike.
    """

    def __init__(
        self, pairs: Sequence[LayerPairs], widths: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        super().__init__()
        self.pairs = pairs
        self.projections = nn.ModuleList(
            nn.ModuleList(nn.Identity() if s == t else nn.Linear(s, t, bias=False) for s, t in each)
            for each in widths
        )

    @classmethod
    def of_passes(
        cls, student: list[LayerPass], teacher: list[LayerPass], view: View, chosen: LayerPairs = ()
    ) -> HiddenStateMatcher:
        """For networks whose passes over a view are given; by default the layers are mapped
        uniformly."""
        count = 1 if view.decoder is None else 2
        if len(student) != count or len(teacher) != count:
            raise UserError(
                "hidden_state_weight needs a student and a teacher that each have one stack of "
                "layers for every text; use --set hidden_state_weight=0."
            )
        pairs = [
            list(chosen) or uniform_layer_pairs(len(own) - 1, len(other) - 1)
            for own, other in zip(student, teacher, strict=True)
        ]
        for own, other, chosen_pairs in zip(student, teacher, pairs, strict=True):
            _check_layers(chosen_pairs, len(own) - 1, len(other) - 1)
        widths = [
            [(own[m].shape[-1], other[n].shape[-1]) for m, n in chosen_pairs]
            for own, other, chosen_pairs in zip(student, teacher, pairs, strict=True)
        ]
        return cls(pairs, widths)

    def forward(self, student: list[LayerPass], teacher: list[LayerPass], view: View) -> Loss:
        """The errors of all positions that hold a token, and their number."""
        views = [view] if view.decoder is None else [view, view.decoder]
        losses = []
        passes = zip(student, teacher, views, self.pairs, self.projections, strict=True)
        for own, other, own_view, pairs, projections in passes:
            positions = torch.arange(own[0].shape[1], device=own_view.lengths.device)
            mask = positions < own_view.lengths[:, None]
            assert isinstance(projections, nn.ModuleList)
            errors = [
                hidden_state_losses(project(own[m][mask]), other[n][mask].to(own[m].dtype))
                for (m, n), project in zip(pairs, projections, strict=True)
            ]
            losses.append(torch.stack(errors).mean(0))
        return sum_losses(torch.cat(losses))


def _check_layers(pairs: LayerPairs, student: int, teacher: int) -> None:
    for m, n in pairs:
        if m > student or n > teacher:
            raise UserError(
                f"hidden_state_layers must be layers from 0 to {student} of the student and from 0 "
                f"to {teacher} of the teacher, got {m}:{n}."
            )


@dataclass(frozen=True, kw_only=True)
class DistillationWeights:
    """α, β and T of the distillation loss (1 - α) own + α T² KL + β MSE."""

    soft_targets: float
    hidden_states: float
    temperature: float


def distillation_loss(
    own: Loss,
    student: StudentNetwork,
    taught: TeacherPredictions,
    weights: DistillationWeights,
    matcher: HiddenStateMatcher | None = None,
) -> Loss:
    """(1 - α) own + α T² KL(teacher_T ‖ student_T) + β MSE, as totals over the own count.

    The errors of hidden states are summed over all positions; a masked LM has more of these than
    targets.
    """
    view, log_probs = student.view, student.distributions()
    assert view is not None
    losses = soft_target_losses(log_probs, taught.log_probs.to(log_probs), weights.temperature)
    if view.prediction_view.weights is not None:
        losses = losses * view.prediction_view.weights[prediction_mask(view)]
    soft = sum_losses(losses)
    parts = {"own": own, "soft targets": soft}
    total = (1 - weights.soft_targets) * own.total + weights.soft_targets * soft.total
    if matcher is not None:
        parts["hidden states"] = matcher(student.passes, taught.passes, view)
        total = total + weights.hidden_states * parts["hidden states"].total
    return Loss(total, own.count, parts)


def check_distillable(student: System, teacher: System, name: str) -> tuple[Assembly, Assembly]:
    """Student and teacher, typed; a UserError unless the teacher can predict at the student's
    targets."""
    student, teacher = _predictor(student, "this student"), _predictor(teacher, f"the run {name}")
    own, other = student.objective.prediction_kind, teacher.objective.prediction_kind
    if own != other:
        raise UserError(
            f"the teacher {name} predicts tokens given a {other}, and the student given a {own}; "
            "give a teacher that predicts as its student does."
        )
    if student.sampled_loss is not None:
        raise UserError(
            "a sampled loss does not compute the student's distribution, which distillation "
            "needs; remove --objective, or --teacher."
        )
    return student, teacher


def _predictor(system: System, called: str) -> Assembly:
    predicts = isinstance(system, Assembly) and system.predicts_by_hidden_state
    if isinstance(system, Assembly) and predicts and system.objective.prediction_kind:
        return system
    raise UserError(
        "distillation needs a distribution over the vocabulary at every predicted position, given "
        f"a prefix, a masked text or a source, which {called} does not have; use another system, "
        "or remove --teacher."
    )
