"""`lmlab mix RUN RUN… --out RUN`: interpolate trained runs, weights tuned on held-out text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.arguments import split_models_and_corpus
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import print, print_json, print_table, text_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.verbs.mixing import mix as mix_runs

if TYPE_CHECKING:
    from lmlab.scoring.mixing import MixResult


@terminal(mix_runs)
def mix(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN... [CORPUS]",
            help="Two runs or more, then the held-out text (or --data).",
        ),
    ],
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    data: str | None,
    **options: Any,
) -> None:
    runs, data = split_models_and_corpus(arguments, data, "mix")
    with text_progress_bar("scoring", results_follow=True) as progress:
        result = mix_runs(runs, data=data, progress=lambda run, tokens: progress(tokens), **options)
    if as_json:
        print_json(result.as_dict())
    else:
        print_result(result)


def print_result(result: MixResult) -> None:
    """The weights and figures of each run and of the mixture, how they were fitted, the notes."""
    from lmlab.scoring.mixing import perplexity

    header = ["model", "system", "weight"]
    rows = [[run.name, run.system, f"{run.weight:.4f}"] for run in result.runs]
    rows.append([result.path.name, "the mixture", ""])
    for figures in result.figures:
        header += [f"nats/token, {figures.split}", "perplexity"]
        for row, nats in zip(rows, [*figures.runs, figures.mixture], strict=True):
            row += [f"{nats:.4f}", f"{perplexity(nats):,.2f}"]
    print_table(header, rows)
    if result.fit is not None:
        print(
            f"weights by EM in {result.fit.iterations} iterations, at most {result.fit.gap:.1g} "
            "nats per token above the optimum"
        )
    for note in result.notes:
        print(f"- {note}")
    print(f"written: {result.path}")
