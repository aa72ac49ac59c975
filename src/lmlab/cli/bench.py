"""`lmlab bench SUITE RUN... --data DIR`: the field's benchmark suites."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.arguments import split_models_and_data
from lmlab.cli.options import JsonOption, NoVerify
from lmlab.cli.output import print, print_json, print_table, text_progress_bar
from lmlab.cli.terminal import terminal
from lmlab.core.errors import UserError
from lmlab.verbs.benchmarks import bench as run_benchmark

if TYPE_CHECKING:
    from lmlab.scoring.suite_records import Benchmark, GroupResult

MAX_PARADIGMS = 12
"""Paradigms that are printed; with more, phenomena alone."""
HEADER = ("group", "n", "value", "95 % interval", "ties to first", "ties", "with unknown")


@terminal(run_benchmark, loads=True)
def bench(
    arguments: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs or Hub folders.")],
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    suite: str,
    out: str | None,
    predictions: str | None,
    **options: Any,
) -> None:
    models, others = split_models_and_data(arguments)
    if others:
        raise UserError(f"{others[0]} is no run; name the data by --data.")
    with text_progress_bar("scoring", results_follow=True) as done:
        benchmark = run_benchmark(
            suite, models, out=out, predictions=predictions, progress=done, **options
        )
    if as_json:
        print_json(benchmark.as_dict())
    else:
        print_benchmark(benchmark)
    for path in (out, predictions):
        if path is not None:
            print(f"written: {path}", file=sys.stderr)


def print_benchmark(benchmark: Benchmark) -> None:
    """Print averages and groups of all models, differences, and how to read them."""
    rows = []
    for result in benchmark.results:
        paradigms = result.level("paradigm")
        phenomena = result.level("phenomenon")
        groups = result.level("average") + (phenomena if len(paradigms) > 1 else [])
        if len(phenomena) < len(paradigms) <= MAX_PARADIGMS:
            groups += paradigms
        rows += [(result.model, result.suite, *_row(group, result.measure)) for group in groups]
    print_table(("model", "suite", *HEADER), rows)
    if benchmark.differences:
        print()
        print_table(
            ("suite", "difference", "value", "95 % interval", "p"),
            [
                (
                    difference.suite,
                    f"{difference.first} - {difference.second}",
                    f"{difference.interval.value:+.3f}",
                    f"[{difference.interval.low:+.3f}, {difference.interval.high:+.3f}]",
                    f"{difference.interval.p_value:.4f}",
                )
                for difference in benchmark.differences
            ],
        )
    print()
    for note in (*benchmark.notes(), *benchmark.conventions()):
        print(f"- {note}")


def _row(group: GroupResult, measure: str) -> tuple[str, ...]:
    first = "" if group.ties_to_first is None else f"{group.ties_to_first:.3f}"
    return (
        measure if group.by == "average" else group.name,
        str(group.n),
        f"{group.value:.3f}",
        f"[{group.low:.3f}, {group.high:.3f}]",
        first,
        str(group.ties),
        str(group.with_unknown),
    )
