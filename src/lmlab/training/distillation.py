"""Knowledge distillation (`--teacher RUN`): a student with its teacher, as what is optimised."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from lmlab.core.assembly import Assembly
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.loss import Loss
from lmlab.core.state import State, TensorState
from lmlab.core.system import System, TrainableSystem
from lmlab.objectives.distillation import (
    DistillationWeights,
    HiddenStateMatcher,
    StudentNetwork,
    Teacher,
    check_distillable,
    distillation_loss,
    parse_layer_pairs,
)
from lmlab.training.compression_config import DistillationConfig


class Distillation(TrainableSystem):
    """A student with its teacher: what gradient descent optimises in place of the student.

    The teacher is no part of its weights; projections of hidden states are, in checkpoints, and are
    dropped with the training. The objective's randomness and state are the student's own.
    """

    loss_is_comparable = False

    def __init__(
        self,
        student: Assembly,
        teacher: Teacher,
        weights: DistillationWeights,
        matcher: HiddenStateMatcher | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = student.vocabulary
        self.validation_metric = student.validation_metric
        self.student = student
        self.teacher = teacher
        self.weights = weights
        self.matcher = matcher

    @property
    def parameter_count(self) -> int:
        return self.student.parameter_count

    def begin_step(self, step: int) -> None:
        self.student.begin_step(step)

    def loss(
        self, batch: Batch, *, state: State | None = None, generator: torch.Generator | None = None
    ) -> tuple[Loss, State | None]:
        student_state, teacher_state = split_states(state)
        network = StudentNetwork(self.student, layers=self.matcher is not None)
        own, student_state = self.student.objective.loss(
            network, batch, state=student_state, generator=generator
        )
        assert network.view is not None
        taught = self.teacher.predict(network.view, teacher_state, layers=self.matcher is not None)
        loss = distillation_loss(own, network, taught, self.weights, self.matcher)
        return loss, join_states(student_state, taught.state)


STUDENT, TEACHER = "student.", "teacher."
"""Prefixes of the tensors of a joint state."""


def join_states(student: State | None, teacher: State | None) -> State | None:
    """The states of student and teacher as one, which a checkpoint can hold; None if both are."""
    tensors: dict[str, Tensor] = {}
    for prefix, state in ((STUDENT, student), (TEACHER, teacher)):
        if state is not None:
            assert isinstance(state, TensorState), "a state carried over batches is a TensorState"
            tensors |= {prefix + name: value for name, value in state.tensors.items()}
    return TensorState(tensors) if tensors else None


def split_states(state: State | None) -> tuple[State | None, State | None]:
    """Inverse of `join_states`."""
    if state is None:
        return None, None
    assert isinstance(state, TensorState)
    student, teacher = (
        {n.removeprefix(prefix): t for n, t in state.tensors.items() if n.startswith(prefix)}
        for prefix in (STUDENT, TEACHER)
    )
    return TensorState(student) if student else None, TensorState(teacher) if teacher else None


def make_distillation(
    student: System, teacher: System, name: str, config: DistillationConfig, batch: Batch
) -> Distillation:
    """The distillation of a teacher into a student; a UserError where they do not fit.

    The `batch`, of the training split, tells whether the teacher can encode it, and which layers
    there are.
    """
    if student.fitting != "gradient":
        raise UserError(
            "--teacher applies only to systems that are trained by gradient; remove it."
        )
    student, teacher = check_distillable(student, teacher, name)
    weights = DistillationWeights(
        soft_targets=config.soft_target_weight,
        hidden_states=config.hidden_state_weight,
        temperature=config.soft_target_temperature,
    )
    distillation = Distillation(student, Teacher(system=teacher, name=name), weights)
    if config.hidden_state_layers and not config.hidden_state_weight:
        raise UserError(
            "hidden_state_layers needs a weight; give --set hidden_state_weight=1, say."
        )
    if config.hidden_state_weight:
        distillation.matcher = _make_matcher(distillation, config, batch)
    return distillation


@torch.no_grad()
def _make_matcher(
    distillation: Distillation, config: DistillationConfig, batch: Batch
) -> HiddenStateMatcher:
    """Projections for the widths found in a pass over one batch, which changes no state."""
    trial = copy.deepcopy(distillation.student).eval()
    network = StudentNetwork(trial, layers=True)
    batch = batch.to(next(trial.parameters()).device)
    generator = torch.Generator(batch.tokens.device).manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trial.objective.loss(network, batch, generator=generator)
        assert network.view is not None
        taught = distillation.teacher.predict(network.view, layers=True)
        return HiddenStateMatcher.of_passes(
            network.passes,
            taught.passes,
            network.view,
            parse_layer_pairs(config.hidden_state_layers),
        )
