"""Settings of the trainings by which a smaller system is fitted from a larger one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Settings of knowledge distillation (`--teacher`)."""

    soft_target_weight: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """With --teacher: α of the loss α · (soft targets) + (1 - α) · (own loss)."""
    soft_target_temperature: float = field(default=2.0, metadata={"above": 0})
    """With --teacher: temperature of both distributions in the loss of soft targets."""
    hidden_state_weight: float = field(default=0.0, metadata={"at_least": 0})
    """With --teacher: weight of the squared error to the teacher's hidden states; 0 for none."""
    hidden_state_layers: tuple[str, ...] = ()
    """With --teacher: pairs of a student's and a teacher's layer, as 0:0,2:4; none is all layers,
    mapped uniformly, with the embeddings (0)."""


@dataclass(frozen=True, kw_only=True)
class ModuleReplacingConfig:
    """Settings of module replacing (`--predecessor`)."""

    replacing_rate: float = field(default=0.5, metadata={"at_least": 0, "at_most": 1})
    """With --predecessor: probability at the first step that a module is replaced; it rises
    linearly to 1."""
    replacing_steps: int | None = field(default=None, metadata={"at_least": 0})
    """With --predecessor: steps until it is 1, after which the successor is trained alone; None is
    half of the budget of steps or epochs."""


OPTION_SETTINGS = {
    "teacher": frozenset(spec.name for spec in fields(DistillationConfig)),
    "predecessor": frozenset(spec.name for spec in fields(ModuleReplacingConfig)),
}
"""Settings that only one option reads."""
