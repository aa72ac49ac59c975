"""`lmlab pairs RUN... FILE...`: accuracy on minimal pairs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lmlab.cli.arguments import split_models_and_data
from lmlab.cli.options import JsonOption, NoVerify, RawOption
from lmlab.cli.output import print, print_json, print_table, text_progress_bar, warn
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.verbs.evaluation import pairs as compare_on_pairs

if TYPE_CHECKING:
    from lmlab.scoring.minimal_pairs import MinimalPairsComparison, PairAccuracy
    from lmlab.verbs.language_model import LanguageModel


ACCURACY_HEADER = (
    "accuracy",
    "± error",
    "ties as 1/2",
    "by mean token",
    "pairs",
    "ties",
    "with unknown",
)


@terminal(compare_on_pairs, loads=True)
def pairs(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN... FILE...",
            help="Runs or Hub folders, then JSON lines of sentence_good and sentence_bad.",
        ),
    ],
    as_json: JsonOption = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: a row for each model and group of pairs.")
    ] = False,
    raw: RawOption = False,
    no_verify: NoVerify = False,
) -> None:
    runs, files = split_models_and_data(arguments)
    if not files:
        raise UserError(
            "no file of minimal pairs given; name one after the runs: lmlab pairs RUN FILE."
        )
    if as_json and as_csv:
        raise UserError("--csv does not apply to --json; remove one of them.")

    from lmlab.verbs.loading import load

    models = [load(run) for run in runs]
    with text_progress_bar("scoring pairs", results_follow=True) as done:
        comparison = compare_on_pairs(models, files, progress=done)
    warn_unknown(models, files)
    if as_csv:
        comparison.write_csv(sys.stdout, raw=raw)
    elif as_json:
        [*reports] = comparison.reports.values()
        print_json(reports[0].as_dict() if len(reports) == 1 else comparison.as_dict())
    else:
        print_comparison(comparison)


def warn_unknown(models: list[LanguageModel], files: list[str]) -> None:
    """Warn about models that do not know many of the words, each sentence once."""
    from lmlab.data.unknown_words import UnknownWords
    from lmlab.scoring.minimal_pairs import read_minimal_pairs

    counters = [UnknownWords(model.tokenizer) for model in models]
    for pair in read_minimal_pairs(files):
        for counter in counters:
            counter.add(pair.good)
            counter.add(pair.bad)
    for sentence in dict.fromkeys(counter.warning() for counter in counters):
        if sentence:
            warn(sentence)


def print_comparison(comparison: MinimalPairsComparison) -> None:
    """Print accuracy by file, phenomenon and paradigm, of all models in one table."""
    from lmlab.core.score_descriptions import describe_convention
    from lmlab.scoring.minimal_pairs import accuracies_by_group

    several = len(comparison.reports) > 1
    rows = [
        (*([model] if several else []), *_row(by, accuracy))
        for model, report in comparison.reports.items()
        for by, accuracy in accuracies_by_group(report)
    ]
    print_table((*(["model"] if several else []), "by", "name", *ACCURACY_HEADER), rows)
    if several:
        print()
        _print_differences(comparison)
    by_convention: dict[str, list[str]] = {}
    for model, report in comparison.reports.items():
        words = f"kind {report.kind}; {describe_convention(report.convention)}"
        by_convention.setdefault(words, []).append(model)
    print("\na tie is wrong in accuracy, and one half in the column after its error")
    for words, models in by_convention.items():
        print(f"{', '.join(models)}: {words}" if len(by_convention) > 1 else words)


def _print_differences(comparison: MinimalPairsComparison) -> None:
    rows = [
        (
            f"{difference.first} - {difference.second}",
            f"{difference.interval.value:+.3f}",
            f"[{difference.interval.low:+.3f}, {difference.interval.high:+.3f}]",
            f"{difference.interval.p_value:.4f}",
        )
        for difference in comparison.differences
    ]
    print_table(("difference, ties as 1/2", "accuracy", "95 % interval", "p"), rows)


def _row(group: str, accuracy: PairAccuracy) -> tuple[str, ...]:
    return (
        group,
        "" if group == "all" else accuracy.name,
        f"{accuracy.accuracy:.3f}",
        f"{accuracy.standard_error:.3f}",
        f"{accuracy.accuracy_ties_half:.3f}",
        f"{accuracy.accuracy_per_token:.3f}",
        str(accuracy.pairs),
        str(accuracy.ties),
        str(accuracy.with_unknown),
    )
