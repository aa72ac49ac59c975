"""`lmlab evaluate RUN [RUN...] --data CORPUS --metric bleu,chrf`: translation quality."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.arguments import split_models_and_corpus
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import print, print_json, print_table, text_progress_bar, warn
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.verbs.generation import evaluate as evaluate_runs

if TYPE_CHECKING:
    from lmlab.sampling.translation_evaluation import TranslationEvaluation

MAX_SHOWN = 5
"""Most texts named in a warning."""


@terminal(evaluate_runs, loads=True)
def evaluate(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... [CORPUS]",
            help="Trained runs, each tested against the first; then a parallel corpus (or --data).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a file of translations per run to this folder."),
    ] = None,
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    data: str | None,
    **options: Any,
) -> None:
    runs, data = split_models_and_corpus(arguments, data, "evaluate")

    if options["limit"] is not None and options["limit"] < 1:
        raise UserError(f"--limit must be at least 1, got {options['limit']}.")
    if out is not None:
        make_folder(out)
    with text_progress_bar("translating", unit="texts", results_follow=True) as done:
        evaluation = evaluate_runs(runs, data=data, progress=lambda name, count: done(1), **options)
    if evaluation.skipped:
        were = "pair was" if evaluation.skipped == 1 else "pairs were"
        warn(
            f"{evaluation.skipped:,} {were} skipped (an empty side, or malformed); the files of "
            "--out have no line for them."
        )
    for sentence in truncation_warnings(evaluation):
        print(f"warning: {sentence}", file=sys.stderr)
    if out is not None:
        write_translations(evaluation, out)
    if as_json:
        print_json(evaluation.as_dict())
        return
    print_evaluation(evaluation)


def print_evaluation(evaluation: TranslationEvaluation) -> None:
    """Print a row per system and metric, and the sacreBLEU signatures."""
    count = f"{evaluation.scores[0].texts:,} texts"
    print(f"{evaluation.corpus}, {evaluation.split} split: {count}, {evaluation.method}")
    rows = [
        (
            score.system,
            score.metric,
            f"{score.score:.2f}",
            f"{score.mean:.2f} ± {score.interval:.2f}",
            "" if score.p_value is None else f"{score.p_value:.4f}",
        )
        for score in evaluation.scores
    ]
    print_table(("run", "metric", "score", "95 % by bootstrap", "p against the first"), rows)
    for signature in dict.fromkeys(score.signature for score in evaluation.scores):
        print(signature)


def truncation_warnings(evaluation: TranslationEvaluation) -> list[str]:
    """For each run that truncated sources: how many, and which."""
    sentences = []
    for name, numbers in evaluation.cut.items():
        if numbers:
            listed = ", ".join(f"{number:,}" for number in numbers[:MAX_SHOWN])
            listed += " …" if len(numbers) > MAX_SHOWN else ""
            sentences.append(f"{name} truncated the sources of {len(numbers):,} texts: {listed}")
    return sentences


def make_folder(folder: Path) -> None:
    """Create a folder and check that it is writable, before the work starts."""
    from lmlab.core.atomic_files import telling_disk_errors

    with telling_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def write_translations(evaluation: TranslationEvaluation, folder: Path) -> None:
    from lmlab.core.atomic_files import write_text
    from lmlab.training.distributed import lock_output

    with lock_output(folder, wait=60):
        for name, texts in evaluation.translations.items():
            lines = "".join(text.replace("\n", " ") + "\n" for text in texts)
            # A run may be named by its path.
            write_text(folder / f"{name.strip('/').replace('/', '-')}.txt", lines)
