"""Gradient checks: vanishing or exploding, by layer, over training steps, by distance in time."""

from __future__ import annotations

import math
from statistics import median

from lmlab.core.assembly import ComposedSystem
from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.measurements import trigram_gain
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence
from lmlab.inspection.gradient_flow import GradientByDistance

VANISHED_RATIO = 1e-6
"""RMS gradient of a tensor relative to the median tensor: vanishing below a millionth.

Single precision has seven digits.
"""
EXPLODED_RATIO = 1e4
"""The same for exploding: one tensor then takes all of a clipped step."""
EXPLODED_NORM = 100.0
"""Maximum gradient norm of the mean loss; healthy norms are around one."""
VANISHING_FACTOR = 0.25
"""Minimum gradient factor per step: a quarter leaves a thousandth after five tokens.

Healthy recurrent networks keep 0.4 to 0.95.
"""
EXPLODING_FACTOR = 1.2
"""Maximum gradient factor per step: 1.2 is fortyfold after twenty tokens.

In memory tasks such as copying, healthy networks have up to 1.1.
"""
DIRECT_CONNECTIONS = ("sources", "components")
"""Output kind of a backbone that selects earlier tokens: its gradient follows the choice."""
MIN_DISTANCES = 6
"""Minimum distances with a gradient for a trend; a window of a few tokens has none."""
MIN_TRIGRAM_GAIN = 0.03
"""Minimum gain of a trigram over a bigram model, in nats; Penn Treebank and captions have 0.2.

With less, the text needs no memory, and a vanishing gradient is correct.
"""


def vanishing_or_exploding_layers(evidence: RunEvidence) -> Finding | None:
    """Tensors whose gradient vanishes or dominates relative to the others."""
    layers = evidence.parameter_gradients
    sizes = {name: layer.root_mean_square for name, layer in layers.items()}
    typical = median([size for size in sizes.values() if size > 0] or [0.0])
    if not typical:
        return _layer_finding("none of the tensors gets a gradient", sizes, list(sizes))
    not_finite = [name for name, size in sizes.items() if not math.isfinite(size)]
    vanished = [name for name, size in sizes.items() if size < VANISHED_RATIO * typical]
    exploded = [name for name, size in sizes.items() if size > EXPLODED_RATIO * typical]
    if not not_finite and not vanished and not exploded:
        return None
    symptoms = []
    if not_finite:
        symptoms.append(f"the gradient of {_list_names(not_finite)} is not finite")
    if vanished:
        symptoms.append(f"{_list_names(vanished)} gets less than a millionth of the usual gradient")
    if exploded:
        symptoms.append(
            f"{_list_names(exploded)} gets more than {EXPLODED_RATIO:,.0f} times the usual gradient"
        )
    return _layer_finding("; ".join(symptoms), sizes, [*not_finite, *vanished, *exploded])


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _layer_finding(observed: str, sizes: dict[str, float], names: list[str]) -> Finding:
    return Finding(
        name="vanishing or exploding layers",
        severity="serious",
        observed=observed,
        why="a layer without a gradient stays at its initialisation, and one that dominates "
        "leaves little for the rest",
        suggestions=(
            "a smaller initialisation, or a lower learning rate, so that nothing saturates",
            "check whether that layer takes part in the loss at all",
        ),
        numbers={name: sizes[name] for name in names},
    )


def exploding_gradient(evidence: RunEvidence) -> Finding | None:
    """Gradient norms in training far above healthy ones."""
    if not evidence.by_gradient:
        raise NotApplicable("it was not trained by gradient descent")
    norms = [w.gradient_norm for w in evidence.history.train if w.gradient_norm is not None]
    if not norms:
        raise MissingEvidence("its metrics have no gradient norms")
    if median(norms) <= EXPLODED_NORM:
        return None
    return Finding(
        name="exploding gradient",
        severity="serious",
        observed=f"the median gradient norm in training was {median(norms):.3g}, the largest "
        f"{max(norms):.3g}",
        why="a healthy gradient of a loss in nats per token has a norm around one; here the "
        "gradient explodes",
        suggestions=(
            "a smaller initialisation",
            "--set grad_clip=1",
            "a gated cell, where it is recurrent",
        ),
        numbers={"median": median(norms), "largest": max(norms)},
    )


def gradient_vanishes_with_distance(evidence: RunEvidence) -> Finding | None:
    """Vanishing gradient: tokens slightly further back do not influence learning."""
    gradients, factor = _gradient_trend(evidence)
    if factor is None or factor >= VANISHING_FACTOR or trigram_gain(evidence) < MIN_TRIGRAM_GAIN:
        return None
    return Finding(
        name="gradient vanishes with distance",
        severity="mild",
        observed=f"each word further back has {factor:.3f} of the gradient of the one after it: "
        f"{_describe_norms(gradients)}",
        why="what lies a few words back cannot be learnt from, though the state carries it on",
        suggestions=(
            "a gated cell instead of a plain one",
            "initial recurrent weights with a spectral radius near one",
            "a lower learning rate, if units are saturated",
        ),
        numbers={"factor": factor, "nearest": gradients.norms[0]},
    )


def gradient_explodes_with_distance(evidence: RunEvidence) -> Finding | None:
    """Exploding gradient: influence grows with distance."""
    gradients, factor = _gradient_trend(evidence)
    if factor is None or factor <= EXPLODING_FACTOR:
        return None
    return Finding(
        name="gradient explodes with distance",
        severity="serious",
        observed=f"each word further back has {factor:.2f} times the gradient of the one after it: "
        f"{_describe_norms(gradients)}",
        why="the beginning of a long sentence dominates the gradient, and training is unstable",
        suggestions=(
            "initial recurrent weights with a spectral radius of one or less",
            "--set grad_clip=1",
            "a gated cell instead of a plain one",
        ),
        numbers={"factor": factor, "nearest": gradients.norms[0]},
    )


def _gradient_trend(evidence: RunEvidence) -> tuple[GradientByDistance, float | None]:
    system = evidence.system
    if isinstance(system, ComposedSystem) and system.backbone.output_kind in DIRECT_CONNECTIONS:
        raise NotApplicable("it attends to each word directly, not through a recurrent state")
    gradients = evidence.distance_gradients
    nonzero = [norm for norm in gradients.norms if norm > 0 and math.isfinite(norm)]
    return gradients, gradients.factor if len(nonzero) >= MIN_DISTANCES else None


def _describe_norms(gradients: GradientByDistance) -> str:
    last = min(len(gradients.norms), MIN_DISTANCES) - 1
    return (
        f"{gradients.norms[0]:.1e} at distance 1 and {gradients.norms[last]:.1e} at distance "
        f"{gradients.distances[last]}"
    )
