"""`lmlab finetune RUN --task T`, `lmlab predict` with it, and few-shot `lmlab prompt`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmlab.cli.options import JsonOption, NoVerify, RawOption, RunArgument
from lmlab.cli.output import (
    NO_ANSWER,
    console,
    one_line,
    print,
    print_json,
    print_json_list,
    text_progress_bar,
    warn,
    with_progress,
)
from lmlab.cli.terminal import terminal
from lmlab.cli.text_inputs import FileOption, file_or_texts, read_texts
from lmlab.core.errors import UserError
from lmlab.core.shared_options import Errors
from lmlab.core.untrusted_input import parse_json
from lmlab.data.readers import Example
from lmlab.verbs import training as verbs
from lmlab.verbs.evaluation import prompt as few_shot

if TYPE_CHECKING:
    from lmlab.tasks.finetuned_model import FinetunedModel, TaskAnswer
    from lmlab.tasks.task import Task


TaskRow = dict[str, Any]
NumberedRow = tuple[int, TaskRow | None]
"""A line number and its row; None for a line without text."""


def read_input_rows(
    task: Task, file: str | None, texts: list[str], errors: str
) -> list[NumberedRow]:
    """The rows of a file, of `--text`, or of standard input (the default).

    A file holds JSON objects if its first non-empty line begins with `{`, else texts.
    """
    if file is None and not texts:
        file = "-"
    text_input = read_texts(file, texts, errors, instead="--text", plain=True)
    lines = list(text_input.lines)
    first = next((line.text for line in lines if line.text), "")
    if not texts and first.startswith("{"):
        return [(line.line or 0, _json_row(line, text_input.name)) for line in lines]
    if task.text_field is None:
        raise UserError(
            f"a row of {task.name} has several texts; give JSON objects, one per line, in a file."
        )
    return [
        (line.line or 0, task.row_from_text(line.text) if line.text else None) for line in lines
    ]


def _json_row(line: Example, name: str) -> TaskRow | None:
    if not line.text:
        return None
    try:
        row = parse_json(line.text)
    except ValueError as error:
        reason = getattr(error, "msg", error)
        raise UserError(
            f"{name}, line {line.line}: expected a JSON object, but {reason}."
        ) from error
    if not isinstance(row, dict):
        raise UserError(
            f"{name}, line {line.line}: expected a JSON object, got {type(row).__name__}."
        )
    return row


CHUNK_ROWS = 256
"""Rows predicted per batch, so that results stream while a long file is read."""


@terminal(verbs.finetune, config=True)
def finetune(
    as_json: JsonOption = False,
    no_verify: NoVerify = False,
    *,
    run: str,
    task: str,
    data: str,
    **options: Any,
) -> None:
    result = verbs.finetune(run, task=task, data=data, quiet=as_json, **options)
    if as_json:
        print_metric_warnings(result)
        print_json(result.as_dict())
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in result.rows.items())
    print(f"{task} on {data}: {counts} rows")
    if result.skipped or result.dropped_by_length_ratio:
        print(
            f"{result.skipped:,} training rows were skipped (empty or malformed), and "
            f"{result.dropped_by_length_ratio:,} dropped by max_length_ratio.",
            file=sys.stderr,
        )
    if result.truncated or result.dropped:
        print(
            f"{result.truncated:,} texts were truncated to the model's window, and "
            f"{result.dropped:,} rows dropped, whose answer was truncated.",
            file=sys.stderr,
        )
    _warn_truncated_questions(result.truncated_questions)
    print_metrics(result, f"on the {result.split} split")
    print(f"{result.path}: answers in predictions.jsonl; ask it more by lmlab predict")


def _warn_truncated_questions(count: int) -> None:
    if count:
        were = "question was" if count == 1 else "questions were"
        print(
            f"{count:,} {were} truncated to half of the model's window, to leave room for the "
            "text.",
            file=sys.stderr,
        )


@terminal(verbs.predict)
def predict(
    run: RunArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | - | TEXT...]",
            help="A file of rows as JSON lines, or of one text per line where a row has one; "
            "- or nothing for standard input; or texts themselves.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="T", help="A text to classify or to continue, or a question; repeatable."
        ),
    ] = None,
    named_file: FileOption = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Plot the cognitive graph of an answer (hops)."),
    ] = None,
    as_json: JsonOption = False,
    raw: RawOption = False,
    errors: Errors = "strict",
    no_verify: NoVerify = False,
) -> None:
    """With --long memrecall the selected blocks and their relevance scores are printed too."""
    from lmlab.tasks.loading import load_task

    file, texts = file_or_texts(arguments, text, named_file)
    model = load_task(run)
    if graph is not None and not model.has_graph:
        raise UserError(f"--graph does not apply to the task {model.task.name}; remove it.")
    lines = read_input_rows(model.task, file, texts, errors)
    answers: list[TaskAnswer] = []
    with text_progress_bar("answering", unit="rows") as done:
        results = with_progress(_predict_in_chunks(model, lines, answers), done)
        if as_json:
            print_json_list(_answer_record(*result) for result in results)
        else:
            _print_answers(results)
    if graph is not None:
        _write_graphs(answers, graph, quiet=as_json)
    rows = [row for _, row in lines if row is not None]
    _warn_truncated_questions(model.questions_cut(rows))
    metrics = model.metrics(rows, [item.answer for item in answers])
    if metrics is not None:
        print_metrics(metrics, f"on {len(rows):,} rows", file=sys.stderr)
    if sentence := unknown_words_warning(model, rows):
        warn(sentence)


def _predict_in_chunks(
    model: FinetunedModel, lines: list[NumberedRow], answers: list[TaskAnswer]
) -> Iterator[tuple[int, TaskRow | None, TaskAnswer | None]]:
    """Number, row and answer of each line; no answer for a line without a row.

    The answers are also appended to `answers`, for metrics and figures over all of them.
    """
    model.check([row for _, row in lines if row is not None])
    for first in range(0, len(lines), CHUNK_ROWS):
        chunk = lines[first : first + CHUNK_ROWS]
        answered = model.predict_with_details([row for _, row in chunk if row is not None])
        answers += answered
        results = iter(answered)
        for number, row in chunk:
            yield number, row, None if row is None else next(results)


def unknown_words_warning(model: FinetunedModel, rows: list[TaskRow]) -> str | None:
    """A warning if more than a few per cent of the rows' words are unknown."""
    from lmlab.tasks.task_rows import count_unknown_words

    return count_unknown_words(rows, model.task, model.tokenizer).warning()


def _answer_record(number: int, row: TaskRow | None, answered: Any) -> dict[str, Any]:
    if row is None:
        return {"line": number, "answered": ""}
    return {**row, **answered.as_dict(), "line": number}


def _print_answers(results: Iterable[tuple[int, TaskRow | None, TaskAnswer | None]]) -> None:
    for _, _, answered in results:
        if answered is None:
            print()
            continue
        answer = (
            " ".join(answered.answer) if isinstance(answered.answer, list) else str(answered.answer)
        )
        print(one_line(answer) if answer.strip() else NO_ANSWER)
        for line in answered.details():
            print(f"    {one_line(line)}")


def _write_graphs(answers: list[Any], graph: Path, *, quiet: bool) -> None:
    """Plot the graph of each answer, and print the files."""
    from lmlab.inspection.cognitive_graph_figure import write_cognitive_graphs

    for file in write_cognitive_graphs(answers, graph):
        if not quiet:
            print(file)


@terminal(few_shot)
def prompt(
    run: RunArgument, as_json: JsonOption = False, no_verify: NoVerify = False, **options: Any
) -> None:
    from lmlab.verbs.loading import load

    if options["rows"] < 1:
        raise UserError(f"--rows must be at least 1, got {options['rows']}.")
    model = load(run)
    with console(stderr=True).status("asking"):
        result = model.prompt(**options)
    if as_json:
        print_json(result.as_dict())
        return
    if result.note:
        print(f"note: {result.note}", file=sys.stderr)
    print(f"one prompt: {result.example}")
    print_metrics(result, f"on {result.rows} rows with {result.shots} examples each")


def print_metrics(measured: Any, where: str, *, file: Any = None) -> None:
    """Print each metric with its 95 % interval, and warnings on standard error."""
    for name, value in measured.metrics.items():
        bounds = measured.intervals.get(name)
        interval = "" if bounds is None else f"  95 % {bounds[0]:.3f} to {bounds[1]:.3f}"
        print(f"{name.replace('_', ' '):17} {value:.3f}  {where}{interval}", file=file)
    print_metric_warnings(measured)


def print_metric_warnings(measured: Any) -> None:
    """Print the metrics' warnings on standard error."""
    for sentence in measured.warnings:
        print(f"warning: {sentence}", file=sys.stderr)
