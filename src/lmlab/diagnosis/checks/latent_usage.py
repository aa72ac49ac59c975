"""Latent variables: posteriors that tell nothing, states that nobody uses."""

from __future__ import annotations

import torch

from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.run_evidence import (
    NotApplicable,
    RunEvidence,
)

LATENT_KL = ("divergence", "latent kl")
"""Under these names a system with a latent vector reveals KL(posterior ‖ prior) of each unit."""
MIXTURE_USE = "mixture use"
"""What a system with discrete states reveals: the share of the predictions each carries."""
MIN_KL_DIVERGENCE = 0.01
"""Nats of a unit's KL: less tells its decoder nothing (Burda et al. 2016 call such units dead)."""
COLLAPSED_SHARE = 0.9
"""Share of silent units; a few unused ones are only too generous a width."""
UNUSED_SHARE = 0.01
"""Of its fair share 1/K, under which a state might as well not be there."""
MAX_UNUSED_STATES = 0.25
"""Share of unused states: a quarter of the table's numbers for nothing."""


def posterior_collapse(evidence: RunEvidence) -> Finding | None:
    """The posterior is the prior: the latent vector is not used."""
    names = [name for name in LATENT_KL if name in evidence.captures]
    if not names:
        raise NotApplicable("it reveals no latent vector")
    each = evidence.captures[names[0]].flatten()
    silent = float((each < MIN_KL_DIVERGENCE).double().mean())
    total = float(each.sum())
    if silent < COLLAPSED_SHARE:
        return None
    return Finding(
        name="posterior collapse",
        severity="serious",
        observed=f"{silent:.0%} of {len(each)} latent units carry less than {MIN_KL_DIVERGENCE} "
        f"nats; all of "
        f"them together carry {total:.4f} nats a sentence",
        why="the decoder does without the latent vector, and what is left is a language model "
        "with a costly ornament",
        suggestions=(
            "free bits, or annealing the KL from zero over more steps",
            "dropout of the decoder's input words",
            "a weaker decoder",
        ),
        numbers={"silent": silent, "kl": total, "largest": float(each.max())},
    )


def unused_states(evidence: RunEvidence) -> Finding | None:
    """Mixture states that carry nothing."""
    if MIXTURE_USE not in evidence.captures:
        raise NotApplicable("it reveals no mixture")
    use = evidence.captures[MIXTURE_USE].flatten()
    use = use / use.sum().clamp(min=1e-300)
    idle = use < UNUSED_SHARE / len(use)
    share = float(idle.double().mean())
    if share < MAX_UNUSED_STATES:
        return None
    effective = float(torch.exp(torch.special.entr(use).sum()))
    return Finding(
        name="unused states",
        severity="mild",
        observed=f"{int(idle.sum())} of {len(use)} states carry less than a hundredth of their "
        f"fair "
        f"share; the use of all is that of {effective:.1f} equal ones",
        why="they cost time and numbers, and a state that is never chosen gets no gradient to "
        "become useful",
        suggestions=(
            "fewer states",
            "a lower learning rate at the start (--set warmup_steps=100), so that none is lost",
            "other first states: another --seed",
        ),
        numbers={"unused": share, "states": float(len(use)), "effective": effective},
    )
