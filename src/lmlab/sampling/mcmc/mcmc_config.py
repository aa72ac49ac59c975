"""MCMC settings (method, energy, steps, templates, proposals), and checks of combinations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.sampling.mcmc.initialisation import INITIALISATIONS
from lmlab.sampling.mcmc.proposals import PROPOSALS
from lmlab.sampling.mcmc.schedule import SCAN_ORDERS

MCMC_METHODS = ("gibbs", "metropolis")
MAX_CHAINS = 4096


@dataclass(frozen=True, kw_only=True)
class McmcConfig:
    """Settings of MCMC sampling; None chooses a default from the other settings."""

    n: int = 1
    """Number of samples."""
    method: str = "gibbs"
    """gibbs accepts every proposal; metropolis corrects it to target exp(-E / temperature)."""
    start: str | None = None
    """Initialisation: random tokens, masked (sampled one by one), text, or lm (its samples)."""
    text: str | None = None
    """Initial text; all of its tokens are resampled, or those at `positions`."""
    positions: Sequence[int] = ()
    """Positions of the initial text that are resampled, 1-based."""
    template: str | None = None
    """A text with <mask> or [MASK]; only these positions are resampled."""
    prefix: str = ""
    """Fixed prefix of every text."""
    length: int | None = None
    """Tokens after the prefix [default: 10]; the maximum if the initialisation is lm."""
    lengths: tuple[int, int] | None = None
    """Minimum and maximum tokens, for chains that change the length; metropolis only."""
    token_cost: float = 0.0
    """Energy added per token if the length changes."""
    steps: int | None = None
    """Steps per chain, burn-in included [default: 50 sweeps over the free positions]."""
    burn_in: int | None = None
    """Steps before the first sample [default: half of the steps]."""
    thin: int | None = None
    """Steps between two samples of a chain [default: as many as possible]."""
    chains: int | None = None
    """Number of parallel chains [default: one per sample, from 4 to 64]."""
    masks: int = 1
    """Positions masked per step, each sampled independently given the rest."""
    order: str = "random"
    """Scan order: sequential or random."""
    temperature: float = 1.0
    """Temperature τ of the target distribution; below 1 sharper, above 1 flatter."""
    proposal_temperature: float = 1.0
    """Temperature of the proposal, times `temperature`; metropolis only, which corrects for it."""
    anneal: float | None = None
    """Temperature at the start of the burn-in; it falls to `temperature` by its end."""
    energy: str | None = None
    """raw, norm or own: the target of metropolis; for gibbs only reported."""
    proposal: str | None = None
    """Proposal distribution: fill, uniform or unigram; gibbs takes only fill."""
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value, options in (
            ("method", self.method, MCMC_METHODS),
            ("order", self.order, tuple(SCAN_ORDERS)),
            ("start", self.start or INITIALISATIONS[0], INITIALISATIONS),
            ("proposal", PROPOSALS[0] if self.proposal is None else self.proposal, PROPOSALS),
        ):
            if value not in options:
                raise unknown_name(option, value, options)
        for option, number in (
            ("number of texts", self.n),
            ("number of masks", self.masks),
            ("length", 1 if self.length is None else self.length),
            ("number of chains", 1 if self.chains is None else self.chains),
        ):
            if number < 1:
                raise UserError(f"the {option} must be 1 or more, got {number}.")
        check_limit("texts", self.n, called="the number of texts")
        check_limit("length", self.length or 1, called="the length")
        check_limit("length", max(self.lengths or (1,)), called="the length")
        check_limit("steps", self.steps or 1, called="the number of steps")
        if self.chains is not None and self.chains > MAX_CHAINS:
            raise UserError(
                f"the number of chains must be at most {MAX_CHAINS}, got {self.chains}."
            )
        if not 0 < self.proposal_temperature < math.inf:
            raise UserError(f"a temperature must be above 0, got {self.proposal_temperature:g}.")
        if not math.isfinite(self.token_cost):
            raise UserError(
                f"the cost of a token must be a finite number, got {self.token_cost:g}."
            )
        if self.anneal is not None and 0 < self.anneal < self.temperature:
            raise UserError(
                f"--anneal must be above the temperature {self.temperature:g}, got "
                f"{self.anneal:g}; give a higher one."
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"a seed must be from 0 to {2**31 - 1}, got {self.seed}.")
        _check_templates(self)
        _check_method(self)

    @property
    def chain_count(self) -> int:
        return min(max(self.n, 4), 64) if self.chains is None else self.chains


def _check_templates(settings: McmcConfig) -> None:
    """Check that text, template, prefix, start and length are compatible."""
    given = {
        "template": settings.template is not None,
        "text": settings.text is not None,
        "prefix": bool(settings.prefix),
    }
    if sum(given.values()) > 1:
        names = " and ".join(name for name, is_given in given.items() if is_given)
        raise UserError(f"give one of text, template and prefix, got {names}.")
    if settings.start == "text" and settings.text is None:
        raise UserError("a start from a text needs the text; give it by --text.")
    if settings.text is not None and settings.start not in (None, "text"):
        raise UserError(f"--text does not apply to --start {settings.start}; remove one of them.")
    if settings.start == "lm" and (given["template"] or given["prefix"]):
        raise UserError("a template or prefix does not apply to --start lm; remove it.")
    if settings.positions and settings.text is None:
        raise UserError("positions are those of a text; give it by --text.")
    if settings.length is not None and (given["template"] or given["text"]):
        raise UserError(
            "--length does not apply to a template or a text, which has its own; remove it."
        )


def _check_method(settings: McmcConfig) -> None:
    """Check the settings that need Metropolis-Hastings' correction."""
    if settings.lengths is not None:
        min_length, max_length = settings.lengths
        if not 1 <= min_length <= max_length:
            raise UserError(
                f"lengths must be 1 or more and in ascending order, got {min_length} to "
                f"{max_length}."
            )
        if settings.template is not None or settings.prefix or settings.positions:
            raise UserError("--lengths does not apply to a text with fixed positions; remove it.")
    elif settings.token_cost:
        raise UserError("--token-cost applies only with --lengths; give --lengths, or remove it.")
    if settings.method == "metropolis":
        return
    if settings.lengths is not None:
        raise UserError("--lengths applies only to --method metropolis; remove it.")
    if settings.proposal_temperature != 1.0:
        raise UserError(
            "a proposal temperature applies only to --method metropolis; give --temperature."
        )
    if settings.proposal not in (None, "fill"):
        raise UserError(
            f"--proposal {settings.proposal} does not apply to --method gibbs; remove it, or "
            "give --method metropolis."
        )
