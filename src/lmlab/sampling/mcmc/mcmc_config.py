"""MCMC settings (method, energy, steps, templates, proposals), and checks of combinations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.core.options import Option
from lmlab.core.shared_options import Seed, parse_length_range, parse_positions

McmcMethod = Literal["gibbs", "metropolis"]
StartName = Literal["random", "masked", "text", "lm"]
ProposalName = Literal["fill", "uniform", "unigram"]
ScanOrderName = Literal["sequential", "random"]
MAX_CHAINS = 4096
PANEL = "Markov chain Monte Carlo (--method gibbs or metropolis)"
"""Heading of these options in the help of `lmlab sample`."""


def option(help: str, **settings: Any) -> Option:
    """An option of MCMC, under its own heading."""
    return Option(help, panel=PANEL, **settings)


@dataclass(frozen=True, kw_only=True)
class McmcConfig:
    """Settings of MCMC sampling; None chooses a default from the other settings."""

    n: Annotated[int, Option("Number of texts.", flag="-n")] = field(default=1, kw_only=False)
    method: Annotated[
        McmcMethod,
        Option(
            "Algorithm: gibbs accepts every proposal, metropolis corrects to exp(-E / temperature)."
        ),
    ] = "gibbs"
    start: Annotated[
        StartName | None,
        option(
            "Initialisation: random tokens, masked, text, or lm (samples of a model).",
            show_default="text if given; masked if the model can, else random",
        ),
    ] = None
    text: Annotated[
        str | None,
        option("Initial text; all of its tokens are resampled, or --positions.", metavar="T"),
    ] = None
    positions: Annotated[
        Sequence[int],
        option(
            "Tokens of --text to resample, counted from 1.",
            metavar="1,3-5",
            parse=parse_positions,
            show_default="all of them",
        ),
    ] = ()
    template: Annotated[
        str | None,
        option("A text with <mask> or [MASK]; only these positions are resampled.", metavar="T"),
    ] = None
    prefix: Annotated[str, Option("Prefix of every text.", metavar="T")] = ""
    length: Annotated[
        int | None,
        option(
            "Length in tokens after the prefix; the maximum if the initialisation is lm.",
            show_default="10",
        ),
    ] = None
    lengths: Annotated[
        tuple[int, int] | None,
        option(
            "Range of lengths to sample over; for metropolis.",
            metavar="5-12",
            parse=parse_length_range,
        ),
    ] = None
    token_cost: Annotated[float, option("Energy per token, with --lengths.")] = 0.0
    steps: Annotated[
        int | None,
        option("MCMC steps per chain, burn-in included.", show_default="50 per free position"),
    ] = None
    burn_in: Annotated[int | None, option("Burn-in steps.", show_default="half of --steps")] = None
    thin: Annotated[
        int | None,
        option(
            "Thinning: steps between two samples of a chain.", show_default="as many as possible"
        ),
    ] = None
    chains: Annotated[
        int | None, option("Parallel chains.", show_default="one per text, from 4 to 64")
    ] = None
    masks: Annotated[int, option("Positions masked and resampled per step.")] = 1
    order: Annotated[ScanOrderName, option("Order of positions (scan order).")] = "random"
    temperature: Annotated[
        float, Option("Temperature of the target: below 1 sharper, above 1 flatter.")
    ] = 1.0
    proposal_temperature: Annotated[
        float, option("Factor on --temperature for proposals; metropolis corrects for it.")
    ] = 1.0
    anneal: Annotated[
        float | None,
        option("Initial temperature, annealed to --temperature by the end of burn-in."),
    ] = None
    energy: Annotated[
        Literal["raw", "norm", "own"] | None,
        option(
            "Energy: raw or norm of a masked model, or own; metropolis's target, reported by "
            "gibbs.",
            show_default="own if the system has one, else raw",
        ),
    ] = None
    proposal: Annotated[
        ProposalName | None,
        option("Proposal of metropolis.", show_default="fill if the model can, else uniform"),
    ] = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        for option, value, options in (
            ("method", self.method, get_args(McmcMethod)),
            ("order", self.order, get_args(ScanOrderName)),
            ("start", self.start, (None, *get_args(StartName))),
            ("proposal", self.proposal, (None, *get_args(ProposalName))),
        ):
            if value not in options:
                raise unknown_name(option, str(value), [name for name in options if name])
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
