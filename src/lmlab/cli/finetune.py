"""`lmlab finetune RUN --task T --data FILE --out RUN`, `lmlab predict` and `lmlab prompt`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lmlab.cli.options import Errors, Json, Run
from lmlab.cli.output import NO_ANSWER, console, print_json, print_json_list
from lmlab.cli.train import parse_settings
from lmlab.core.errors import UserError

TaskName = Annotated[
    str,
    typer.Option(
        metavar="TASK",
        help="classify, pair, tag, span, generate or hops; docs/tasks.md says what a row of each "
        "holds.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="ROWS",
        help="A file of JSON lines, a folder with train, valid and test files, or a built-in set: "
        "gloss-part-of-speech, gloss-hypernym, capitals-mentions, capitals-span, capitals-long, "
        "gloss-word, wordnet-hops, babi-long:FOLDER/qa2; for generate any corpus of pairs too.",
    ),
]


def finetune(
    run: Run,
    task: TaskName,
    data: Data,
    out: Annotated[str, typer.Option(metavar="RUN", help="The folder to write.")],
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Learn the head alone (feature transfer).")
    ] = False,
    long: Annotated[
        str | None,
        typer.Option(
            metavar="WAY",
            help="How texts longer than the window are read: head, tail, head-tail, windows, "
            "pooling (classify) or memrecall (CogLTX).",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            metavar="BY",
            help="What teaches memrecall's judge: labels (the rows' relevant) or interventions.",
        ),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(metavar="N", help="Train on the first N rows only.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the training, or of --long."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Budget: passes over the rows; 10.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: steps of the optimiser.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget: minutes by the clock.")] = None,
    seed: Annotated[int, typer.Option(help="Decides every random choice.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from a checkpoint.")] = False,
    as_json: Json = False,
    errors: Errors = "strict",
) -> None:
    """Put a trained run to a task: its features under a new head, or all its parameters.

    A run that was put to a task before is begun with as it is, but for its head.
    """
    given = parse_settings(settings or [])

    from lmlab.tasks.finetune import finetune as put_to_task

    found = put_to_task(
        run,
        task=task,
        data=data,
        out=out,
        frozen=frozen,
        long=long,
        judge=judge,
        examples=examples,
        settings=given,
        epochs=epochs,
        steps=steps,
        minutes=minutes,
        seed=seed,
        resume=resume,
        errors=errors,
        quiet=as_json,
    )
    if as_json:
        print_json(found.as_dict())
        return
    counts = ", ".join(f"{count:,} {split}" for split, count in found.rows.items())
    print(f"{task} on {data}: {counts} rows")
    if found.skipped or found.uneven:
        print(
            f"{found.skipped:,} training rows were skipped, empty or not to be understood, and "
            f"{found.uneven:,} left out, whose sides are of too uneven lengths.",
            file=sys.stderr,
        )
    if found.cut or found.dropped:
        print(
            f"{found.cut:,} texts were cut to what the system takes, and {found.dropped:,} rows "
            "left out, whose answer was cut away.",
            file=sys.stderr,
        )
    _tell_questions_cut(found.questions_cut)
    show_metrics(found.metrics, f"on the {found.split} split")
    print(f"{found.path}: answers in predictions.jsonl; ask it more by lmlab predict")


def _tell_questions_cut(count: int) -> None:
    if count:
        were = "question was" if count == 1 else "questions were"
        print(
            f"{count:,} {were} cut to half of what the system takes, for a text to fit beside.",
            file=sys.stderr,
        )


def predict(
    run: Run,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Rows as JSON lines; - or none: stdin.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="T", help="A text to classify or to go on from, or a question; several times."
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Draw the graph that an answer over hops stands on (hops)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask a fine-tuned run: an answer for each row or text.

    Where it reads long texts by blocks, those that were kept stand under the answer with the
    judge's scores.
    """
    from lmlab.tasks.hops.asking import is_hops
    from lmlab.tasks.runs import load_task_model

    if is_hops(run):
        return _predict_hops(run, _rows("hops", file, text or []), graph, as_json=as_json)
    if graph is not None:
        raise UserError("only a run of the task hops has a graph to draw; leave --graph out.")
    model = load_task_model(run)
    rows = _rows(model.task.name, file, text or [])
    found = model.answer(rows)
    _tell_questions_cut(model.reading.questions_cut(rows))
    if as_json:
        print_json_list({**row, **each.as_dict()} for row, each in zip(rows, found, strict=True))
        return
    for each in found:
        print(" ".join(each.answer) if isinstance(each.answer, list) else each.answer)
        for block in each.kept or ():
            print(f"    {block.score:.2f}  {block.text}")


def _predict_hops(
    run: str, rows: list[dict[str, Any]], graph: Path | None, *, as_json: bool
) -> None:
    """Answers with the way that led to each, and their graphs drawn."""
    from lmlab.tasks.hops.asking import load_hops

    found = load_hops(run).predict(rows)
    drawn: list[Path] = []
    if graph is not None:
        from lmlab.diagnostics.graph_picture import write_graphs

        drawn = write_graphs(found, graph)
    if as_json:
        print_json_list({**row, **each.as_dict()} for row, each in zip(rows, found, strict=True))
        return
    for each in found:
        print(each.answer or NO_ANSWER)
        for (origin, target), (_, clue) in zip(each.path, each.evidence, strict=True):
            print(f"    {origin} → {target}: {clue}")
    for file in drawn:
        print(file)


def prompt(
    run: Run,
    task: TaskName,
    data: Data,
    shots: Annotated[int, typer.Option(help="Examples shown before each question.")] = 4,
    rows: Annotated[int, typer.Option(help="Test rows that are asked at most.")] = 200,
    seed: Annotated[int, typer.Option(help="Decides which examples are shown.")] = 0,
    as_json: Json = False,
    errors: Errors = "strict",
) -> None:
    """Do a task by few-shot prompting: examples in the text itself, nothing is trained."""
    from lmlab.api import load
    from lmlab.tasks.catalogue import find_task
    from lmlab.tasks.prompting import prompt_rows
    from lmlab.tasks.rows import data_seed, read_splits

    if rows < 1:
        raise UserError(f"the number of rows must be 1 or more, and {rows} came.")
    kind, model = find_task(task), load(run)
    splits = read_splits(data, kind, seed=data_seed(model.config, data), errors=errors)
    asked = (splits.get("test") or splits.get("validation") or splits["train"])[:rows]
    with console(stderr=True).status(f"asking {len(asked)} rows"):
        found = prompt_rows(model.scorer(), kind, splits["train"], asked, shots=shots, seed=seed)
    if as_json:
        print_json(found.as_dict())
        return
    if found.note:
        print(f"note: {found.note}", file=sys.stderr)
    print(f"one prompt: {found.example}")
    show_metrics(found.metrics, f"on {found.rows} rows with {found.shots} examples each")


def show_metrics(metrics: Any, where: str) -> None:
    """A line for each measure."""
    for name, value in metrics.items():
        print(f"{name.replace('_', ' '):17} {value:.3f}  {where}")


def _rows(task: str, file: Path | None, texts: list[str]) -> list[dict[str, Any]]:
    if texts:
        single = {"classify": "text", "tag": "words", "generate": "source", "hops": "question"}
        if task not in single:
            raise UserError(f"a row of {task} has several texts; give it as JSON, in a file.")
        return [{single[task]: t.split() if task == "tag" else t} for t in texts]
    reading = sys.stdin if file is None or str(file) == "-" else file.open(encoding="utf-8")
    found = []
    with reading:
        for number, line in enumerate(reading, start=1):
            try:
                found += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise UserError(f"line {number} is not a JSON object ({error}).") from error
    if not found or not all(isinstance(row, dict) for row in found):
        raise UserError("there are no rows to answer; give JSON objects, one a line, or --text.")
    return found
