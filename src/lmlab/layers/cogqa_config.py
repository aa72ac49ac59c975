"""Settings of reading over several hops, which a system may carry to the task that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CogQAConfig:
    """Settings of the two systems of CogQA (Ding et al. 2019)."""

    starts: int = field(default=3, metadata={"at_least": 1})
    """Spans that are taken of a paragraph at most, next hops and answers each: the top K starts."""
    max_span_length: int = field(default=8, metadata={"at_least": 0})
    """Tokens that the end of a span may stand behind its start."""
    semantics_layer: int = field(default=0, metadata={"at_least": 0})
    """The layer whose hidden state at place 0 is a node's meaning, from 1; 0 for the one before the
    last."""
    max_graph_nodes: int = field(default=16, metadata={"at_least": 1})
    """Nodes at which the graph is large enough and grows no more."""
    graph_steps: int = field(default=2, metadata={"at_least": 0})
    """Times that nodes hear from those before them."""
    predictor_width: int = field(default=0, metadata={"at_least": 0})
    """Hidden units of the networks that predict answers from nodes; 0 for a node's own width."""
    joint_training: bool = False
    """Whether the second stage trains the reader too, as Ding et al. do; else it stays as it is."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CogQAConfig:
        """Those of some settings that are these, the others as they are by default."""
        return cls(
            **{each.name: settings[each.name] for each in fields(cls) if each.name in settings}
        )
