"""Settings of CogQA multi-hop question answering, which a system may carry to its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class CogQAConfig:
    """Settings of the two systems of CogQA (Ding et al. 2019)."""

    starts: int = field(default=3, metadata={"at_least": 1})
    """Top K span starts per paragraph, for next hops and answers each."""
    max_span_length: int = field(default=8, metadata={"at_least": 0})
    """Maximum distance of a span's end from its start, in tokens."""
    semantics_layer: int = field(default=0, metadata={"at_least": 0})
    """Layer whose hidden state at position 0 represents a node, from 1; 0 for the second to
    last."""
    max_graph_nodes: int = field(default=16, metadata={"at_least": 1})
    """Maximum number of graph nodes."""
    graph_steps: int = field(default=2, metadata={"at_least": 0})
    """Message-passing steps of the graph network."""
    predictor_width: int = field(default=0, metadata={"at_least": 0})
    """Hidden width of the answer predictors; 0 for a node's own width."""
    joint_training: bool = False
    """Whether the second stage also trains the encoder, as Ding et al. do; else it is frozen."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> CogQAConfig:
        """The CogQA settings among given settings, defaults for the rest."""
        return cls(
            **{each.name: settings[each.name] for each in fields(cls) if each.name in settings}
        )
