"""Verbs on large files, divided among processes: score, encode, translate and fill a file.

Each writes rows to a file, in the order of the input, and continues where it was killed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lmlab.core.errors import UserError
from lmlab.core.options import Option, as_keywords, takes
from lmlab.experiments.large_files.file_options import FileOptions
from lmlab.sampling.generation_options import TranslateOptions
from lmlab.scoring.scoring_options import EmbeddingOptions, ScoringOptions
from lmlab.verbs.generation import FillOptions
from lmlab.verbs.score_tables import WordOptions

if TYPE_CHECKING:
    from lmlab.experiments.large_files.run_file import FileResult
    from lmlab.verbs.loading import GivenModel


@dataclass(frozen=True, kw_only=True)
class ScoreFileOptions(FileOptions, WordOptions, ScoringOptions):
    """How the texts of a file are scored, and by how many processes."""

    per_word: Annotated[
        bool, Option("Also print each word; with --out, a row for each word instead.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class EncodeFileOptions(FileOptions, EmbeddingOptions):
    """How the texts of a file are encoded, and by how many processes."""


@dataclass(frozen=True, kw_only=True)
class TranslateFileOptions(FileOptions, TranslateOptions):
    """How the texts of a file are translated, and by how many processes."""


@dataclass(frozen=True, kw_only=True)
class FillFileOptions(FileOptions, FillOptions):
    """How the masks of a file are filled, and by how many processes."""


@takes(ScoreFileOptions)
def score_file(
    runs: Sequence[GivenModel], file: str | Path, out: str | Path, options: ScoreFileOptions
) -> FileResult:
    """Score a file of any size by one or several models: a row for each text and model, or word.

    The rows do not depend on `jobs`. `out` is JSON lines, CSV or Parquet by its suffix. A call that
    was killed continues when it is repeated.

    >>> _ = open("texts.txt", "w").write("the cat sleeps\\na dog sees mary\\n")
    >>> result = lmlab.score_file(["runs/ngram"], "texts.txt", "scores.csv")
    >>> result.texts, result.rows, result.summaries["ngram"].tokens
    (2, 2, 9)
    """
    if not isinstance(options.words_by, str) or options.words_by == "column":
        raise UserError("words_by must be spaces, file:PATH or regex:PATTERN for a large file.")
    from lmlab.verbs.loading import check_list

    check_list(runs, "score_file")
    return _run("score", runs, file, out, options, _options(options, ScoreFileOptions))


@takes(EncodeFileOptions)
def encode_file(
    run: GivenModel, file: str | Path, out: str | Path, options: EncodeFileOptions
) -> FileResult:
    """Encode the texts of a file of any size as vectors: Parquet, JSON lines or .npy shards."""
    if options.per_token:
        raise UserError("vectors of tokens are written to an .npz file by one process alone.")
    return _run("encode", [run], file, out, options, _options(options, EncodeFileOptions))


@takes(TranslateFileOptions)
def translate_file(
    run: GivenModel, file: str | Path, out: str | Path, options: TranslateFileOptions
) -> FileResult:
    """Translate a file of any size: a row for each translation; of two columns the first."""
    return _run("translate", [run], file, out, options, _options(options, TranslateFileOptions))


@takes(FillFileOptions)
def fill_file(
    run: GivenModel, file: str | Path, out: str | Path, options: FillFileOptions
) -> FileResult:
    """Fill the masks of a file of any size: a row for each answer."""
    if options.joint and options.blanks:
        raise UserError("blanks are always filled jointly; leave out --joint.")
    return _run("fill", [run], file, out, options, _options(options, FillFileOptions))


def _options(options: FileOptions, of: type) -> dict[str, Any]:
    """What the operation takes, as plain data; a UserError for what no other process can take."""
    of_file = FileOptions.__dataclass_fields__
    chosen = {
        name: value
        for name, value in as_keywords(options, of).items()
        if name not in of_file and name != "progress"
    }
    for name, value in chosen.items():
        try:
            json.dumps(value)
        except TypeError:
            raise UserError(
                f"{name} must be plain data for a large file, got {type(value).__name__}."
            ) from None
    return chosen


def _run(
    operation: str,
    runs: Sequence[GivenModel],
    file: str | Path,
    out: str | Path,
    options: FileOptions,
    chosen: dict[str, Any],
) -> FileResult:
    from lmlab.core.untrusted_input import check_path, check_whole_number
    from lmlab.data.lines import check_errors
    from lmlab.experiments.executors import make_executor
    from lmlab.experiments.large_files import storage
    from lmlab.experiments.large_files.operations import OPERATIONS
    from lmlab.experiments.large_files.row_formats import row_format
    from lmlab.experiments.large_files.run_file import run_file

    check_path(file, "file")
    check_path(out, "out")
    compute = options.compute()
    check_whole_number("threads", compute.threads)
    assert compute.threads is not None
    check_whole_number("chunk_bytes", options.chunk_bytes)
    check_errors(options.errors)
    kind = OPERATIONS[operation]
    rows_format = row_format(str(out), kind.row_class(chosen))
    job = _job(operation, runs, str(file), str(out), options, chosen)
    alone = options.jobs in (None, 1) and options.on is None and options.executor is None
    for location in (job.input, job.out):
        storage.check_shared(location, alone=alone)
    folder = storage.local_path(job.parts)
    executor = options.executor or make_executor(options, threads=compute.threads, folder=folder)
    return run_file(job, rows_format, executor, options.report, sources=kind.sources)


def _job(
    operation: str,
    runs: Sequence[GivenModel],
    file: str,
    out: str,
    options: FileOptions,
    chosen: dict[str, Any],
) -> Any:
    """The job as plain data."""
    from lmlab.core.manifest import verifies
    from lmlab.core.registry import registered_systems
    from lmlab.core.system_origin import FileOrigin
    from lmlab.data.lines import check_errors
    from lmlab.experiments.large_files import storage
    from lmlab.experiments.large_files.file_job import FileJob, hash_model
    from lmlab.scoring.minimal_pairs import unique_model_names

    paths = [_run_path(run) for run in runs]
    if not paths:
        raise UserError("no model given; name at least one.")
    systems = registered_systems().values()
    return FileJob(
        operation=operation,
        runs=dict(zip(unique_model_names(paths), map(str, paths), strict=True)),
        models_sha256=[hash_model(path) for path in paths],
        options=chosen,
        input=storage.absolute(file),
        out=storage.absolute(out),
        errors=check_errors(options.errors),
        chunk_bytes=options.chunk_bytes,
        compute=asdict(options.compute()),
        language=options.language,
        verify=verifies(),
        system_files=[str(s.file) for s in systems if isinstance(s.origin, FileOrigin)],
    )


def _run_path(run: GivenModel) -> Path:
    """The folder of a run, which other processes load."""
    from lmlab.verbs.language_model import LanguageModel

    path = run.path if isinstance(run, LanguageModel) else Path(run)
    if not (path / "config.json").is_file():
        raise UserError(
            f"there is no run at {path}; a large file needs the folder of a run (with config.json)."
        )
    return path.absolute()
