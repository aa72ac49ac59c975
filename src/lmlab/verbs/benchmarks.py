"""Verb that runs the field's benchmark suites: bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.options import Argument, Option
from lmlab.core.shared_options import no_progress

if TYPE_CHECKING:
    from lmlab.scoring.suite_records import Benchmark, SuiteDifference, SuiteFailure, SuiteResult
    from lmlab.verbs.loading import GivenModel


def bench(
    suite: Annotated[
        str,
        Argument(
            "Suite: blimp, supplement, syntaxgym, entity-tracking, wug; babylm: all but syntaxgym.",
            metavar="SUITE",
        ),
    ],
    runs: Sequence[GivenModel],
    *,
    data: Annotated[
        str | Path,
        Option(
            "Folder or file of the suite's data, or the folder of BabyLM's tasks.", metavar="DIR"
        ),
    ],
    out: Annotated[
        str | Path | None, Option("Also write a report as .html.", metavar="FILE")
    ] = None,
    predictions: Annotated[
        str | Path | None,
        Option("Also write the predictions to this folder in BabyLM's layout.", metavar="DIR"),
    ] = None,
    seed: Annotated[int, Option("Random seed of the bootstrap.")] = 0,
    progress: Callable[[int], None] = no_progress,
) -> Benchmark:
    """Run a benchmark suite: blimp, supplement, syntaxgym, entity-tracking, wug, or babylm.

    `babylm` is blimp, supplement, entity-tracking and wug. Any model that scores texts can be
    evaluated; one that can't do a suite is listed in `failures`, with the reason. `progress` is
    called with the number of tokens scored so far.

    >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep", "UID": "number"}
    >>> _ = open("number.jsonl", "w").write(json.dumps(row))
    >>> benchmark = lmlab.bench("blimp", ["runs/ngram", "runs/window"], data="number.jsonl")
    >>> [(result.model, result.kind, result.average.n) for result in benchmark.results]
    [('ngram', 'exact', 1), ('window', 'exact', 1)]
    """
    from lmlab.scoring.babylm_predictions import write_babylm_predictions
    from lmlab.scoring.minimal_pairs import unique_model_names
    from lmlab.scoring.suite_evaluation import evaluate_models, suite_differences
    from lmlab.scoring.suite_records import Benchmark
    from lmlab.scoring.suite_registry import all_suites, find_suites
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import check_list, load

    check_list(runs, "bench")
    chosen = find_suites(suite, Path(data))
    report = None if out is None else Path(out)
    if report is not None:
        from lmlab.reports.suite_report import checked_report_file, write_suite_report

        checked_report_file(report)
    if predictions is not None and not any(part.suite.babylm_task for part in chosen):
        raise UserError(f"--predictions does not apply to {suite}, which BabyLM lacks; remove it.")
    models = [run if isinstance(run, LanguageModel) else load(run) for run in runs]
    names = unique_model_names([model.path for model in models])
    scorers = {
        name: model.scorer(progress=progress) for name, model in zip(names, models, strict=True)
    }
    results: list[SuiteResult] = []
    differences: list[SuiteDifference] = []
    failures: list[SuiteFailure] = []
    for part in chosen:
        of_suite, failed = evaluate_models(part, scorers, seed=seed)
        if predictions is not None:
            write_babylm_predictions(Path(predictions), part, of_suite)
        results += of_suite
        failures += failed
        differences += suite_differences(of_suite, seed=seed)
    if not results:
        raise UserError(failures[0].reason)
    benchmark = Benchmark(
        name=suite,
        title=all_suites()[suite].title,
        sources=tuple(dict.fromkeys(part.suite.source for part in chosen)),
        results=tuple(results),
        differences=tuple(differences),
        failures=tuple(failures),
    )
    if report is not None:
        write_suite_report(report, benchmark)
    return benchmark
