"""What any system tells about itself, and that together with one capability (`StepSystem` …).

A function that takes a system and uses one capability of it takes the combined protocol; `require`
returns a system as that.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lmlab.core.protocols import Energy, Fill, Infill, JointFill, Logits, LogProb, Sample, Step
from lmlab.core.score import ScoreKind, ScorerKind
from lmlab.core.vocabulary import Vocabulary


@runtime_checkable
class SystemInfo(Protocol):
    """What every `System` declares, documented there: its vocabulary, limits and kind of scorer."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def window(self) -> int | None: ...

    @property
    def segment_length(self) -> int | None: ...

    @property
    def memory_length(self) -> int | None: ...

    @property
    def cpu_tokens_at_once(self) -> int | None: ...

    @property
    def scorer_kind(self) -> ScorerKind: ...

    @property
    def scores_end(self) -> bool: ...

    @property
    def fill_score_kind(self) -> ScoreKind: ...

    def check_length(self, tokens: int) -> None: ...

    def check_condition_length(self, tokens: int) -> None: ...

    def max_generation_length(self, condition: int | None) -> int | None: ...


@runtime_checkable
class LogProbSystem(LogProb, SystemInfo, Protocol):
    """A system that scores texts."""


@runtime_checkable
class StepSystem(Step, SystemInfo, Protocol):
    """A system that generates token by token, hence a `Decoder`."""


@runtime_checkable
class SampleSystem(Sample, SystemInfo, Protocol):
    """A system that samples whole sequences."""


@runtime_checkable
class FillSystem(Fill, SystemInfo, Protocol):
    """A system that predicts masked tokens."""


@runtime_checkable
class JointFillSystem(JointFill, SystemInfo, Protocol):
    """A system that predicts masked tokens jointly."""


@runtime_checkable
class InfillSystem(Infill, SystemInfo, Protocol):
    """A system that fills in blanks of unknown length."""


@runtime_checkable
class LogitsSystem(Logits, SystemInfo, Protocol):
    """A system with unnormalised token scores."""


@runtime_checkable
class EnergySystem(Energy, SystemInfo, Protocol):
    """A system with an energy of texts."""
