"""Task rows (JSON lines) of a file, a folder of splits or a built-in set: read, check, split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from lmlab.core.errors import UserError, unknown_name_or_path
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.core.untrusted_input import parse_json
from lmlab.data.corpus import SPLITS, open_corpus
from lmlab.data.lines import ReadingReport, check_errors, held_lines
from lmlab.data.readers import read_fields
from lmlab.data.splitting import SPLIT_BLOCK, split_of_index
from lmlab.data.standard_datasets import CORPUS_PROTOCOLS
from lmlab.data.unknown_words import UnknownWords
from lmlab.tasks.builtin_datasets import BUILTIN_DATASETS, load_builtin_rows
from lmlab.tasks.long_context.long_babi import BABI_LONG, long_babi
from lmlab.tasks.long_context.relevance_labels import check_relevant
from lmlab.tasks.task import Row, Splits, Task
from lmlab.training.run_config import RunConfig

SPLIT_FILES = {"train": ("train",), "validation": ("val", "dev"), "test": ("test",)}
"""Prefixes of the file names of each split in a folder."""


class RowFormat(Protocol):
    """The format of a task's rows: a task's class, or a checker of rows with shared context."""

    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> Mapping[str, str]: ...

    @property
    def rows_like(self) -> str: ...

    @property
    def reads_pairs(self) -> bool: ...

    def check_row(self, row: Any) -> Row: ...

    def text(self, row: Mapping[str, Any]) -> str: ...


def read_splits(
    data: str | Path,
    task: RowFormat,
    *,
    seed: int = 0,
    errors: str = "strict",
    report: ReadingReport | None = None,
) -> Splits:
    """Rows by split: of a built-in set, of a folder with files for each split, or of one file.

    One file is split like a corpus, 90/5/5 by the seed, so that its test rows are never trained on.
    `babi-long:FOLDER/qa2` is bAbI's second task among distractors, made from the files of that
    folder. Generation also takes parallel corpora: `multi30k-de-en:FOLDER`,
    `parallel:de-en:FOLDER`, `pairs.tsv`. `report` counts problems of the training split.
    """
    report = ReadingReport() if report is None else report
    if str(data).startswith(BABI_LONG):
        splits = long_babi(str(data).removeprefix(BABI_LONG), as_label="label" in task.fields)
    elif str(data) in BUILTIN_DATASETS:
        task_name, splits = load_builtin_rows(str(data))
        if task_name not in (task.name, task.rows_like):
            raise UserError(f"{data} is made for the task {task_name}, not for {task.name}.")
    elif task.reads_pairs and is_corpus(str(data)):
        splits = _corpus_pairs(str(data), seed, errors, report)
    elif (path := Path(data)).is_dir():
        splits = _read_folder(path, task, errors, report)
    elif path.exists():
        splits = split_rows_by_seed(list(read_rows(path, task, errors, report)), seed)
    else:
        raise unknown_name_or_path("set of rows, file or folder", str(data), BUILTIN_DATASETS)
    if not splits.get("train"):
        raise UserError(f"{data} has no rows to train on.")
    return {name: rows for name, rows in splits.items() if rows}


def split_seed(config: RunConfig, data: str | Path) -> int:
    """The seed of the row split: that of the run's own training on them, else 0.

    Never the fine-tuning seed: runs of several seeds are comparable, and their test rows are those
    that `lmlab evaluate` and `lmlab train` hold out.
    """
    return config.corpus.seed if config.corpus.spec == str(data) else 0


def is_corpus(data: str) -> bool:
    """Whether the name is that of a corpus rather than of rows."""
    scheme, colon, _ = data.partition(":")
    parallel = bool(colon) and scheme == "parallel"
    return parallel or data.endswith(".tsv") or scheme in CORPUS_PROTOCOLS


def _corpus_pairs(data: str, seed: int, errors: str, report: ReadingReport) -> Splits:
    """The pairs of a corpus as rows of `generate`."""
    corpus = open_corpus(data, seed=seed, errors=errors)
    if corpus.layout.kind != "pairs":
        raise UserError(f"{data} has no pairs of texts; give a parallel corpus, or rows.")
    splits = {
        name: [{"source": example.condition or "", "target": example.text} for example in split]
        for name, split in corpus.splits.items()
    }
    report.add(corpus.splits["train"].report)
    return splits


def read_rows(
    path: Path, task: RowFormat, errors: str = "strict", report: ReadingReport | None = None
) -> Iterator[Row]:
    """The rows of a file of JSON lines, each checked.

    Rows that a corpus would skip (an empty text or side; malformed JSON, unless errors are strict)
    are skipped and counted, so that a file splits alike as rows and as a corpus.
    """
    report = ReadingReport() if report is None else report
    for number, line in held_lines(path, report, check_errors(errors)):
        if not line:
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            if errors == "strict":
                reason = getattr(error, "msg", error)
                raise UserError(f"{path}, line {number}: not a JSON object ({reason}).") from error
            report.bad_rows += 1
            continue
        if isinstance(row, dict) and not all(str(row[name]).strip() for name in read_fields(row)):
            report.empty_rows += 1
            continue
        try:
            checked = task.check_row(row)
            if "relevant" in checked:
                check_relevant(checked, task.text(checked))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        yield checked


def split_rows_by_seed(rows: list[Row], seed: int) -> Splits:
    """Split one list into three, as the examples of a single-file corpus are."""
    if len(rows) < SPLIT_BLOCK:
        raise UserError(
            f"{len(rows)} rows are too few for a validation and a test split; give at least "
            f"{SPLIT_BLOCK}, or a folder with train, valid and test files."
        )
    splits: Splits = {name: [] for name in SPLITS}
    for index, row in enumerate(rows):
        splits[split_of_index(index, seed)].append(row)
    return splits


def _read_folder(folder: Path, task: RowFormat, errors: str, report: ReadingReport) -> Splits:
    splits: Splits = {}
    for split, prefixes in SPLIT_FILES.items():
        split_report = report if split == "train" else ReadingReport()
        for path in sorted(folder.glob("*.jsonl")):
            if path.name.startswith(prefixes):
                splits.setdefault(split, []).extend(read_rows(path, task, errors, split_report))
    if "train" not in splits:
        raise UserError(f"{folder} has no train*.jsonl.")
    return splits


def count_unknown_words(
    rows: Iterable[Mapping[str, Any]], task: Task, tokenizer: TokenizerProtocol
) -> UnknownWords:
    """Count the unknown words of the input fields of rows, by the tokenizer that encodes them."""
    counter = UnknownWords(getattr(task, "source_tokenizer", None) or tokenizer)
    names = [*task.input_fields(), "question"]
    for row in rows:
        for name in names:
            value = row.get(name, "")
            counter.add(" ".join(map(str, value)) if isinstance(value, list) else str(value))
    return counter
