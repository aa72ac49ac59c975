"""Verbs of the run store: runs, and runs show, diff, tag, rm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.options import Argument, Option
from lmlab.core.untrusted_input import check_path, check_texts

if TYPE_CHECKING:
    from lmlab.run_store.run_details import RunDetails, RunDiff
    from lmlab.run_store.run_listing import RunListing

RUNS = "runs"
"""The default folder of runs."""


def parse_columns(text: str) -> list[str]:
    """Parse names separated by commas."""
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]


def runs(
    folder: Annotated[
        str | Path, Argument("Folder that holds runs, at any depth.", metavar="[FOLDER]")
    ] = RUNS,
    *,
    sort: Annotated[
        str | None,
        Option(
            "Key to sort by: a column or a setting; -KEY for descending.",
            metavar="KEY",
            show_default="run",
        ),
    ] = None,
    where: Annotated[
        str | None,
        Option(
            'Condition, such as "system=lstm and not (data=grammar or best>3)"; '
            "signs: = != < > <= >= ~ (contains).",
            metavar="CONDITION",
        ),
    ] = None,
    columns: Annotated[
        Sequence[str],
        Option(
            "Columns, separated by commas: fields, age, tag or settings.",
            metavar="A,B,C",
            parse=parse_columns,
            show_default="run, system, data, status, best, kind, disk, age, differs",
        ),
    ] = (),
    rebuild: Annotated[bool, Option("Read every folder again, whatever the index says.")] = False,
) -> RunListing:
    """List the runs below a folder: what they are, how far they came, and how they differ.

    A run is running, finished, stopped (`--resume` continues it) or failed. The index, in the
    user's cache, only makes it quicker.

    >>> [run.status for run in lmlab.runs("runs/ngram", where="system=ngram")]
    ['finished']
    """
    check_path(folder, "folder")
    from lmlab.run_store.run_index import RunIndex
    from lmlab.run_store.run_listing import list_runs

    index = RunIndex()
    if rebuild:
        index.discard()
    return list_runs(Path(folder), sort=sort, where=where, columns=columns, index=index)


def runs_show(
    run: Annotated[str | Path, Argument("The folder of a run.", metavar="RUN")],
) -> RunDetails:
    """Show a run: status, figures, settings, data, the runs that it comes from, environment.

    >>> details = lmlab.runs_show("runs/ngram")
    >>> details.record.system, details.corpus["spec"]
    ('ngram', 'grammar')
    """
    check_path(run, "a run")
    from lmlab.run_store.run_details import run_details

    return run_details(run)


def runs_diff(
    runs: Annotated[
        Sequence[str | Path], Argument("The folders of two runs or more.", metavar="RUN...")
    ],
) -> RunDiff:
    """Compare runs: the settings, data, environment and figures in which they differ.

    >>> rows = lmlab.runs_diff(["runs/ngram", "runs/window"]).rows
    >>> next(row.values for row in rows if row.key == "system")
    ('ngram', 'window')
    """
    check_texts(runs, "runs_diff", noun="run")
    from lmlab.run_store.run_details import diff_runs

    return diff_runs(runs)


def runs_tag(
    run: Annotated[str | Path, Argument("The folder of a run.", metavar="RUN")],
    tags: Annotated[Sequence[str], Argument("Words to add.", metavar="[WORD...]")] = (),
    *,
    remove: Annotated[Sequence[str], Option("A word to remove; repeatable.", metavar="WORD")] = (),
) -> tuple[str, ...]:
    """Add tags to a run and remove some; return those that it has then.

    >>> lmlab.runs_tag("runs/ngram", ["baseline"])
    ('baseline',)
    """
    check_path(run, "a run")
    check_texts(tags, "runs_tag", noun="tag")
    check_texts(remove, "runs_tag", noun="tag")
    from lmlab.run_store.run_listing import open_run_record
    from lmlab.run_store.run_tags import change_tags

    return change_tags(open_run_record(run).path, tags, remove)


def runs_rm(
    runs: Annotated[Sequence[str | Path], Argument("The folders of runs.", metavar="RUN...")],
    *,
    folder: Annotated[
        str | Path, Option("Remove only runs inside of this folder.", metavar="FOLDER")
    ] = RUNS,
) -> tuple[Path, ...]:
    """Remove runs from the disk; one that is being written is refused, and links are not followed.

    >>> _ = lmlab.train("ngram", data="grammar", out="runs/old", size="tiny", quiet=True)
    >>> [path.name for path in lmlab.runs_rm(["runs/old"])]
    ['old']
    """
    check_texts(runs, "runs_rm", noun="run")
    check_path(folder, "folder")
    from lmlab.run_store.remove_runs import removable_runs, remove_runs

    chosen = removable_runs(runs, Path(folder))
    remove_runs(chosen)
    return tuple(run.path for run in chosen)
