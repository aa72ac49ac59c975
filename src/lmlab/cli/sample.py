"""`lmlab sample RUN`: text generation by sampling, greedy or beam search, or MCMC."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import one_line, print, print_json, step_progress_bar
from lmlab.cli.terminal import Given, terminal
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.options import declared_options
from lmlab.sampling.generation_options import SampleOptions
from lmlab.sampling.mcmc.mcmc_config import PANEL, McmcMethod
from lmlab.verbs import generation as verbs

if TYPE_CHECKING:
    from lmlab.sampling.mcmc.diagnostics import ConvergenceDiagnostics, McmcResult
    from lmlab.verbs.language_model import LanguageModel


INTERRUPTED = 130
"""Exit code after Ctrl-C, as in `lmlab.cli.main`."""


def sample_by_mcmc(model: LanguageModel, as_json: bool, figure: Path | None, **options: Any) -> int:
    """Run MCMC with a progress bar, print diagnostics on standard error, then the texts."""
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


MCMC_METHODS = get_args(McmcMethod)
SHARED = {"n", "prefix", "method", "temperature", "seed"}
"""Options that apply to every method."""
DECODING, MCMC = (
    {option.name for option in declared_options(verb)} - SHARED
    for verb in (verbs.sample, verbs.chains)
)


@terminal(verbs.sample, verbs.chains)
def sample(
    run: RunArgument,
    draw: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=PANEL,
            help="Trace plot, FILE.svg or FILE.png: energies, autocorrelation, acceptance.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    no_verify: NoVerify = False,
    *,
    given: Given,
    method: Any,
    **options: Any,
) -> int:
    decoding_methods = get_args(get_type_hints(SampleOptions)["method"])
    if method not in (*decoding_methods, *MCMC_METHODS):
        raise unknown_name("method", method, (*decoding_methods, *MCMC_METHODS))
    use_mcmc = method in MCMC_METHODS
    refused = given & DECODING if use_mcmc else given & MCMC
    if draw is not None and not use_mcmc:
        refused |= {"draw"}
    for name in sorted(refused):
        raise UserError(
            f"--{name.replace('_', '-')} does not apply to --method {method}; remove it."
        )
    chosen = {name: value for name, value in options.items() if name in given}

    from lmlab.verbs.loading import load

    model = load(run)
    if use_mcmc:
        return sample_by_mcmc(model, as_json, draw, method=method, **chosen)
    if note := model.encode_prefix(options["prefix"]).note:
        print(f"note: {note}", file=sys.stderr)
    texts = model.sample(method=method, **chosen)
    if as_json:
        print_json([asdict(text) for text in texts])
        return 0
    for generated in texts:
        print(one_line(generated.text))
    return 0
