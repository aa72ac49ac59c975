"""Verbs that evaluate models: compare, pairs, cloze, prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.options import Option
from lmlab.core.shared_options import Errors, RunErrors, SplitName, no_progress
from lmlab.scoring.multiple_comparisons import Correction
from lmlab.tasks.finetune_options import TaskData, TaskName

if TYPE_CHECKING:
    from lmlab.data.corpus import Corpus
    from lmlab.scoring.cloze import ClozeResult
    from lmlab.scoring.comparison_records import Comparison
    from lmlab.scoring.minimal_pairs import MinimalPairsComparison, MinimalPairsReport
    from lmlab.tasks.few_shot import FewShotResult
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import GivenModel


def compare(
    runs: Sequence[GivenModel],
    *,
    data: Annotated[
        str | Path | Corpus | None,
        Option("Corpus to compare on.", metavar="CORPUS", show_default="the runs' own"),
    ] = None,
    split: SplitName = "test",
    out: Annotated[
        str | Path | None,
        Option("Also write a file: .html (a report), .md, .tex or .json.", metavar="FILE"),
    ] = None,
    csv: Annotated[
        str | Path | None,
        Option(
            "Also write the table as CSV, a line for each model, and the differences beside it "
            "(NAME-differences.csv).",
            metavar="FILE",
        ),
    ] = None,
    correction: Annotated[
        Correction, Option("Correction of p-values for multiple comparisons.")
    ] = "holm",
    seed: Annotated[int, Option("Random seed of the bootstrap.")] = 0,
    errors: RunErrors = None,
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Compare trained models on one split: losses with their kind, intervals and tests.

    The differences of more than five models are shown as a matrix.

    >>> comparison = lmlab.compare(["runs/window", "runs/ngram"], out="report.html")
    >>> [(row.name, row.kind, row["regret"] > 0) for row in comparison.rows]
    [('ngram', 'exact', True), ('window', 'exact', True)]
    """
    from lmlab.data.corpus import Corpus
    from lmlab.reports.comparison_files import checked_file, comparison_writer, write_with_folder
    from lmlab.scoring.comparison_csv import comparison_csv_files
    from lmlab.scoring.model_comparison import compare_models
    from lmlab.verbs.loading import check_list, shared_corpus, trained_models

    check_list(runs, "compare")
    write = None if out is None else comparison_writer(Path(out))
    csv_file = None if csv is None else checked_file(Path(csv))
    models = trained_models(runs)
    corpus = data if isinstance(data, Corpus) else shared_corpus(models, data, errors)
    comparison = compare_models(
        models, corpus, split, seed=seed, correction=correction, progress=progress
    )
    if write is not None:
        write(comparison, models)
    if csv_file is not None:
        for path, text in comparison_csv_files(comparison, csv_file).items():
            write_with_folder(path, text)
    return comparison


def model_pairs(
    model: LanguageModel, *files: Path | str, progress: Callable[[int], None] = no_progress
) -> MinimalPairsReport:
    """Accuracy on minimal pairs, JSON lines of `sentence_good` and `sentence_bad` (BLiMP).

    `progress` is called with the number of tokens scored so far.

    >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
    >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
    >>> lmlab.load("runs/ngram").pairs("agreement.jsonl").overall.accuracy
    1.0
    """
    from lmlab.scoring.minimal_pairs import score_minimal_pair_files

    return score_minimal_pair_files(model.scorer(progress=progress), files)


def pairs(
    runs: Sequence[GivenModel],
    files: Sequence[Path | str],
    *,
    seed: int = 0,
    progress: Callable[[int], None] = no_progress,
) -> MinimalPairsComparison:
    """Evaluate minimal pairs: how often is the good sentence more probable than the bad one?

    Several models get intervals of their differences, by a bootstrap with that `seed`. `progress`
    is called with the number of tokens scored so far.

    >>> row = {"sentence_good": "the dog sleeps", "sentence_bad": "the dog sleep"}
    >>> _ = open("agreement.jsonl", "w").write(json.dumps(row))
    >>> comparison = lmlab.pairs(["runs/ngram", "runs/window"], ["agreement.jsonl"])
    >>> [(name, report.overall.pairs) for name, report in comparison.reports.items()]
    [('ngram', 1), ('window', 1)]
    """
    from lmlab.scoring.minimal_pairs import compare_minimal_pairs, unique_model_names
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import load

    if isinstance(runs, (str, Path)) or isinstance(files, (str, Path)):
        raise UserError("pairs takes lists of runs and of files; put each in a list.")
    models = [run if isinstance(run, LanguageModel) else load(run) for run in runs]
    if not models:
        raise UserError("no model given; name at least one.")
    names = unique_model_names([model.path for model in models])
    reports = {
        name: model.pairs(*files, progress=progress)
        for name, model in zip(names, models, strict=True)
    }
    return compare_minimal_pairs(reports, seed=seed)


def cloze(
    model: LanguageModel,
    texts: Iterable[str] | None = None,
    *,
    data: Annotated[
        str | Path | None,
        Option(
            "Use the test split of this corpus.", metavar="CORPUS", show_default="the run's own"
        ),
    ] = None,
    max_texts: Annotated[int, Option("Maximum number of texts.", flag="--texts")] = 2000,
    seed: Annotated[int, Option("Random seed of the masking.")] = 0,
    progress: Callable[[int], None] = no_progress,
) -> ClozeResult:
    """Measure cloze accuracy: mask one token per text and predict it.

    Without `texts`, those of the test split of `data`, or of the corpus of the run.

    >>> _ = lmlab.train(
    ...     "bert", data="grammar", out="runs/cloze", size="tiny", steps=2, quiet=True
    ... )
    >>> result = lmlab.load("runs/cloze").cloze(["the dog sleeps", "a cat sees mary"])
    >>> result.texts, 0 <= result.accuracy <= 1
    (2, True)
    """
    from lmlab.core.untrusted_input import check_texts, checked_texts
    from lmlab.scoring.cloze import cloze_accuracy
    from lmlab.verbs.loading import shared_corpus

    if texts is None:
        corpus = shared_corpus([model.model], data, None)
        texts = (example.text for example in corpus.split("test"))
    elif data is not None:
        raise UserError("data does not apply to texts; remove one of them.")
    check_texts(texts, "cloze")
    chosen = islice(checked_texts(texts), max_texts)
    return cloze_accuracy(model.system, model.tokenizer, chosen, seed=seed, progress=progress)


def prompt(
    model: LanguageModel,
    *,
    task: TaskName,
    data: TaskData,
    shots: Annotated[int, Option("Number of examples in each prompt.")] = 4,
    rows: Annotated[int, Option("Maximum number of test rows.")] = 200,
    seed: Annotated[int, Option("Random seed of the examples.")] = 0,
    errors: Errors = "strict",
) -> FewShotResult:
    """Few-shot prompting: do a task from examples in the prompt, without training."""
    from lmlab.tasks.few_shot import predict_few_shot
    from lmlab.tasks.task_registry import find_task
    from lmlab.tasks.task_rows import read_splits, split_seed

    if rows < 1:
        raise UserError(f"--rows must be at least 1, got {rows}.")
    kind = find_task(task)
    splits = read_splits(data, kind, seed=split_seed(model.config, data), errors=errors)
    test_rows = (splits.get("test") or splits.get("validation") or splits["train"])[:rows]
    return predict_few_shot(
        model.scorer(), kind, splits["train"], test_rows, shots=shots, seed=seed
    )
