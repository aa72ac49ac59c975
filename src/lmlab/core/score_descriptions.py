"""What kinds of score and scoring conventions mean, in a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmlab.core.score import Convention, ScoreKind

KIND_DESCRIPTIONS: dict[ScoreKind, str] = {
    "exact": "the model's own log-probability",
    "bound": "never above the model's log-probability: the true figure is as good or better",
    "estimate": "computed by sampling: right on average or in the limit, and a little random",
    "pseudo": "a sum of conditionals that need not come from one distribution: no perplexity",
    "reconstruction": "the log-probability of a text given its own encoding: no perplexity",
    "unnormalised": "right up to an unknown constant: only differences mean something",
}


def describe_convention(convention: Convention) -> str:
    """The convention behind a score, in one line."""
    parts = [
        f"{convention.tokenizer} in the vocabulary",
        "start token given" if convention.start else "no start token",
        "end predicted" if convention.end else "end not predicted",
        f"unknown words {convention.unknown}",
    ]
    if convention.source:
        parts.append("each text given its source")
    if convention.state_carried:
        context = "windows continue" if convention.lookahead else "state carried"
        parts.append(f"{context} from line to line")
    if convention.window is not None:
        stride = "" if convention.stride is None else f", stride {convention.stride}"
        middle = " in the middle of its windows" if convention.lookahead else ""
        parts.append(f"context of {convention.window} tokens{stride}{middle}")
    if convention.memory is not None:
        memory = (
            "each"
            if convention.segment_length is None
            else f"segments of {convention.segment_length}, each"
        )
        parts.append(f"{memory} with a memory of {convention.memory} tokens")
    if convention.max_length is not None:
        parts.append(f"cut at {convention.max_length} tokens")
    if convention.method != "own":
        positions = ",".join(map(str, convention.positions))
        masked = f" at {positions}" if positions else ""
        head = " without its head" if convention.head == "none" else ""
        parts.append(f"method {convention.method}{masked}{head}")
    if convention.precision != "float32":
        parts.append(f"layers in {convention.precision}")
    return "; ".join([*parts, convention.order])
