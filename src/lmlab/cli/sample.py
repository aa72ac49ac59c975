"""`lmlab sample RUN`: text generation by sampling, greedy or beam search, or MCMC."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.arguments import parse_positions
from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_json, step_progress_bar
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.untrusted_input import parse_integer

if TYPE_CHECKING:
    from lmlab.language_model import LanguageModel
    from lmlab.sampling.mcmc.diagnostics import ConvergenceDiagnostics, McmcResult


INTERRUPTED = 130
"""Exit code after Ctrl-C, as in `lmlab.cli.main`."""


def parse_length_range(text: str) -> tuple[int, int]:
    """Parse 5-12 as (5, 12)."""
    minimum, maximum = (parse_integer(part.strip()) for part in text.partition("-")[::2])
    if minimum is None or maximum is None:
        raise UserError(f"--lengths must be a range such as 5-12, got {text!r}.")
    return minimum, maximum


def sample_by_mcmc(model: LanguageModel, as_json: bool, **options: Any) -> int:
    """Run MCMC with a progress bar, print diagnostics on standard error, then the texts."""
    figure: Path | None = options.pop("draw", None)
    if figure is not None:
        from lmlab.inspection.mcmc_traces import write_mcmc_traces
        from lmlab.plotting.figure import check_figure_path

        check_figure_path(figure)
    with step_progress_bar() as update:
        result = model.chains(progress=partial(update, f"{options['method']}, step"), **options)
    if figure is not None:
        write_mcmc_traces(result, figure)
    print_mcmc_summary(result)
    if as_json:
        print_json(result.as_dict())
    else:
        for sample in result.texts:
            print(one_line(sample.text))
    return INTERRUPTED if result.interrupted else 0


def print_mcmc_summary(result: McmcResult) -> None:
    """Print MCMC diagnostics and warnings on standard error."""
    mixing = result.diagnostics
    energy = "no energies recorded after the burn-in"
    if not math.isnan(mixing.energy_mean):
        energy = (
            f"energy ({result.energy}) {mixing.energy_mean:.2f} ± {mixing.energy_std:.2f}, "
            f"{_describe_mixing(mixing)}"
        )
    print(
        f"{result.chains} chains of {result.steps} steps in {result.seconds:.1f} s: accepted "
        f"{mixing.acceptance_rate:.3f}, changed {mixing.change_rate:.3f}; {energy}.",
        file=sys.stderr,
    )
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _describe_mixing(mixing: ConvergenceDiagnostics) -> str:
    """R-hat and effective sample size, or that they are unknown."""
    if math.isnan(mixing.r_hat) or math.isnan(mixing.effective_sample_size):
        return f"R-hat unknown after {mixing.recorded} samples"
    size = f"effective sample size {mixing.effective_sample_size:.0f} of {mixing.recorded}"
    return f"R-hat {mixing.r_hat:.3f}, {size}"


DECODING = ("ancestral", "greedy", "beam")
CHAINS = ("gibbs", "metropolis")
MCMC_PANEL = "Markov chain Monte Carlo (--method gibbs or metropolis)"


def mcmc_option(help: str, **options: Any) -> Any:
    """An option of MCMC, in its own panel of the help."""
    return typer.Option(rich_help_panel=MCMC_PANEL, help=help, **options)


def sample(
    run: RunArgument,
    n: Annotated[int, typer.Option("-n", help="Number of texts.")] = 1,
    prefix: Annotated[str, typer.Option(metavar="T", help="Prefix of every text.")] = "",
    source: Annotated[
        str | None, typer.Option(metavar="T", help="Source text, for translation models.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="ancestral, greedy or beam; gibbs or metropolis for MCMC.")
    ] = "ancestral",
    temperature: Annotated[
        float | None, typer.Option(help="Softmax temperature; for ancestral and MCMC.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the K most probable tokens; for ancestral.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: the most probable tokens of mass P; for ancestral."),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; for beam.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Length penalty, larger prefers longer texts; for beam.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum number of tokens after the prefix; 100.")
    ] = None,
    start: Annotated[
        str | None,
        mcmc_option("Initialisation: random tokens, masked, text, or lm (samples of a model)."),
    ] = None,
    text: Annotated[str | None, mcmc_option("Initial text.", metavar="T")] = None,
    positions: Annotated[
        str | None,
        mcmc_option("Tokens of --text to resample, counted from 1; all of them.", metavar="1,3-5"),
    ] = None,
    template: Annotated[
        str | None,
        mcmc_option(
            "A text with <mask> or [MASK]; only these positions are resampled.", metavar="T"
        ),
    ] = None,
    lm: Annotated[
        str | None,
        mcmc_option(
            "Model that --start lm samples from; the run itself if it generates.", metavar="RUN"
        ),
    ] = None,
    length: Annotated[int | None, mcmc_option("Length in tokens after the prefix; 10.")] = None,
    lengths: Annotated[
        str | None, mcmc_option("Range of lengths to sample over; for metropolis.", metavar="5-12")
    ] = None,
    token_cost: Annotated[float | None, mcmc_option("Energy per token, with --lengths; 0.")] = None,
    steps: Annotated[
        int | None, mcmc_option("MCMC steps per chain, burn-in included; 50 per free position.")
    ] = None,
    burn_in: Annotated[int | None, mcmc_option("Burn-in steps; half of --steps.")] = None,
    thin: Annotated[
        int | None, mcmc_option("Thinning: steps between two samples of a chain; as many as fit.")
    ] = None,
    chains: Annotated[
        int | None, mcmc_option("Parallel chains; as many as texts, from 4 to 64.")
    ] = None,
    masks: Annotated[int | None, mcmc_option("Positions masked and resampled per step; 1.")] = None,
    order: Annotated[
        str | None, mcmc_option("Order of positions: sequential or random; random.")
    ] = None,
    anneal: Annotated[
        float | None,
        mcmc_option("Initial temperature, annealed to --temperature by the end of burn-in."),
    ] = None,
    proposal_temperature: Annotated[
        float | None,
        mcmc_option("Factor on --temperature for proposals; metropolis corrects for it."),
    ] = None,
    energy: Annotated[
        str | None,
        mcmc_option(
            "Energy: raw or norm of a masked model, or own; metropolis's target, reported by gibbs."
        ),
    ] = None,
    proposal: Annotated[
        str | None,
        mcmc_option("Proposal of metropolis: fill (if the model can), uniform or unigram."),
    ] = None,
    draw: Annotated[
        Path | None,
        mcmc_option(
            "Trace plot, FILE.svg or FILE.png: energies, autocorrelation, acceptance.",
            metavar="FILE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: JsonOption = False,
    raw: RawOption = False,
    no_verify: NoVerify = False,
) -> int:
    """Generate texts, one per line; masked and energy models are sampled by MCMC."""
    decoding = {
        "source": source,
        "top_k": top_k,
        "top_p": top_p,
        "beam": beam,
        "length_penalty": length_penalty,
        "max_length": max_length,
    }
    mcmc = {
        "start": start,
        "text": text,
        "positions": None if positions is None else parse_positions(positions),
        "template": template,
        "length": length,
        "lengths": None if lengths is None else parse_length_range(lengths),
        "token_cost": token_cost,
        "steps": steps,
        "burn_in": burn_in,
        "thin": thin,
        "chains": chains,
        "masks": masks,
        "order": order,
        "anneal": anneal,
        "proposal_temperature": proposal_temperature,
        "energy": energy,
        "proposal": proposal,
        "lm": lm,
        "draw": draw,
    }
    if method not in (*DECODING, *CHAINS):
        raise unknown_name("method", method, (*DECODING, *CHAINS))
    use_mcmc = method in CHAINS
    refuse_options(method, decoding if use_mcmc else mcmc)
    options = given_options({"temperature": temperature, **(mcmc if use_mcmc else decoding)})

    from lmlab.api import load

    model = load(run)
    if use_mcmc:
        return sample_by_mcmc(
            model, as_json, n=n, prefix=prefix, method=method, seed=seed, **options
        )
    if note := model.encode_prefix(prefix).note:
        print(f"note: {note}", file=sys.stderr)
    texts = model.sample(n, prefix=prefix, method=method, seed=seed, **options)
    if as_json:
        print_json([asdict(text) for text in texts])
        return 0
    for generated in texts:
        print(one_line(generated.text))
    return 0


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user has set."""
    return {name: value for name, value in options.items() if value is not None}


def refuse_options(method: str, options: dict[str, Any]) -> None:
    """Raise an error for an option that does not apply to the method."""
    for name in given_options(options):
        raise UserError(
            f"--{name.replace('_', '-')} does not apply to --method {method}; remove it."
        )
