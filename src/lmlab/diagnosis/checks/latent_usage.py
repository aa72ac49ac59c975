"""Latent variable checks: posterior collapse and unused states."""

from __future__ import annotations

import torch

from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.run_evidence import NotApplicable, RunEvidence

LATENT_KL = ("divergence", "latent kl")
"""Captures with KL(posterior ‖ prior) of each latent unit."""
MIXTURE_USE = "mixture use"
"""Capture with each discrete state's share of the predictions."""
MIN_KL_DIVERGENCE = 0.01
"""Minimum KL of an active unit in nats (Burda et al. 2016: inactive units)."""
COLLAPSED_SHARE = 0.9
"""Maximum share of inactive units; a few only mean that the latent is wide."""
UNUSED_SHARE = 0.01
"""Fraction of the fair share 1/K below which a state counts as unused."""
MAX_UNUSED_STATES = 0.25
"""Maximum share of unused states: a quarter of the table wasted."""


def posterior_collapse(evidence: RunEvidence) -> Finding | None:
    """Posterior collapse: the posterior equals the prior, the latent is ignored."""
    names = [name for name in LATENT_KL if name in evidence.captures]
    if not names:
        raise NotApplicable("it has no latent vector")
    kl = evidence.captures[names[0]].flatten()
    inactive = float((kl < MIN_KL_DIVERGENCE).double().mean())
    total = float(kl.sum())
    if inactive < COLLAPSED_SHARE:
        return None
    return Finding(
        name="posterior collapse",
        severity="serious",
        observed=f"{inactive:.0%} of {len(kl)} latent units carry less than "
        f"{MIN_KL_DIVERGENCE} nats; all of them together carry {total:.4f} nats per "
        "sentence",
        why="posterior collapse: the decoder ignores the latent vector, and what is left is "
        "a language model",
        suggestions=(
            "free bits, or annealing the KL from zero over more steps",
            "dropout of the decoder's input words",
            "a weaker decoder",
        ),
        numbers={"silent": inactive, "kl": total, "largest": float(kl.max())},
    )


def unused_states(evidence: RunEvidence) -> Finding | None:
    """Mixture states without predictions."""
    if MIXTURE_USE not in evidence.captures:
        raise NotApplicable("it has no mixture")
    use = evidence.captures[MIXTURE_USE].flatten()
    use = use / use.sum().clamp(min=1e-300)
    unused = use < UNUSED_SHARE / len(use)
    share = float(unused.double().mean())
    if share < MAX_UNUSED_STATES:
        return None
    effective = float(torch.exp(torch.special.entr(use).sum()))
    return Finding(
        name="unused states",
        severity="mild",
        observed=f"{int(unused.sum())} of {len(use)} states carry less than a hundredth of a "
        f"uniform share; the effective number of states is {effective:.1f}",
        why="they cost time and parameters, and a state that is never chosen gets no "
        "gradient to become useful",
        suggestions=(
            "fewer states",
            "a lower learning rate at the start (--set warmup_steps=100), so that none is lost",
            "another initialisation: another --seed",
        ),
        numbers={"unused": share, "states": float(len(use)), "effective": effective},
    )
